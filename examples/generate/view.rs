//! [`View`]: a weight tensor opened for reading, whatever its number format.

use tenslab::tensor::ReadGuard;
use tenslab::{DType, Tensor, bf16, f16};

use crate::kernels::{Kernels, Number};
use crate::threads::Team;
use crate::trouble::Trouble;

/// The elements of a weight, where they lie. Weights are frozen: a view costs a
/// load and writes nothing.
#[derive(Debug)]
pub(crate) enum View<'a> {
    /// Single precision.
    F32(ReadGuard<'a, f32>),
    /// Half precision, IEEE.
    F16(ReadGuard<'a, f16>),
    /// Half precision with the exponent of f32.
    Bf16(ReadGuard<'a, bf16>),
}

impl<'a> View<'a> {
    /// Opens `tensor`.
    ///
    /// # Errors
    ///
    /// Another dtype, or a tensor that cannot be read.
    pub(crate) fn of(tensor: &'a Tensor) -> Result<Self, Trouble> {
        Ok(match tensor.dtype() {
            DType::F32 => Self::F32(tensor.read()?),
            DType::F16 => Self::F16(tensor.read()?),
            DType::BF16 => Self::Bf16(tensor.read()?),
            other => return Err(Trouble::new(format!("cannot compute with {other}"))),
        })
    }

    /// Row `row` of as many elements as `out` has, widened.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        fn widen<W: Number>(from: &[W], row: usize, out: &mut [f32]) {
            let from = &from[row * out.len()..][..out.len()];
            for (out, from) in out.iter_mut().zip(from) {
                *out = from.wide();
            }
        }
        match self {
            Self::F32(w) => widen(w, row, out),
            Self::F16(w) => widen(w, row, out),
            Self::Bf16(w) => widen(w, row, out),
        }
    }

    /// `out[r][t] = w[r] . x[t]` over all rows, shared among the team. `w` is
    /// `[rows, cols]`, `x` is `[tokens, cols]`, `out` is `[rows, tokens]`.
    ///
    /// # Errors
    ///
    /// None; for the team's sake.
    pub(crate) fn matmul(
        &self,
        kernels: Kernels,
        team: &Team,
        x: &[f32],
        cols: usize,
        out: &mut [f32],
    ) -> Result<(), Trouble> {
        team.split([out], x.len() / cols, x.len(), &|first, [out]| {
            self.part(kernels, first, x, cols, out);
            Ok(())
        })
    }

    /// The rows from `first` on, as many as `out` has room for.
    pub(crate) fn part(
        &self,
        kernels: Kernels,
        first: usize,
        x: &[f32],
        cols: usize,
        out: &mut [f32],
    ) {
        let rows = out.len() * cols / x.len();
        let range = first * cols..(first + rows) * cols;
        match self {
            Self::F32(w) => kernels.matmul(&w[range], x, cols, out),
            Self::F16(w) => kernels.matmul(&w[range], x, cols, out),
            Self::Bf16(w) => kernels.matmul(&w[range], x, cols, out),
        }
    }
}
