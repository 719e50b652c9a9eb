//! A dimension cut into parts: `narrow`, `split`, `chunks`. Sugar over
//! [`slice`](Tensor::slice); nothing is allocated or copied.
//!
//! ```text
//!   dimension   | 0  1  2  3 | 4  5 | 6  7 |
//!   split       [4, 2, 2]                        sizes of their own: q, k, v
//!   chunks(3)   | 0  1  2 | 3  4  5 | 6  7 |     equal ones, the last may be smaller
//! ```

use std::iter::FusedIterator;

use super::{Tensor, TensorError};

impl Tensor {
    /// The `len` indices of dimension `dim` from `start` on.
    ///
    /// # Errors
    /// As [`slice`](Tensor::slice) of `start..start + len`.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Tensor, TensorError> {
        // Where the sum overflows, no dimension is that long, and so the error says.
        self.slice(dim, start, start.saturating_add(len))
    }

    /// Dimension `dim` cut into parts of these sizes, which make it up exactly.
    ///
    /// ```
    /// # use tenslab::{DType, Tensor, memory};
    /// // One token's queries, keys and values of 9 query heads and 3 key heads of 64.
    /// let qkv = Tensor::zeros([15 * 64], DType::F32, memory::cpu())?;
    /// let [q, k, v] = qkv.split(0, [9 * 64, 3 * 64, 3 * 64])?;
    /// let mut all = Tensor::write_disjoint::<f32, 3>([&q, &k, &v])?;
    /// assert_eq!(all.slices().map(|part| part.len()), [576, 192, 192]);
    /// # Ok::<(), tenslab::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchDim`](TensorError::NoSuchDim), then [`BadParts`](TensorError::BadParts).
    pub fn split<const N: usize>(
        &self,
        dim: usize,
        sizes: [usize; N],
    ) -> Result<[Tensor; N], TensorError> {
        let size = self.size_of_dim(dim)?;
        let sum = sizes
            .iter()
            .fold(0_usize, |sum, &part| sum.saturating_add(part));
        if sum != size {
            return Err(TensorError::BadParts { dim, sum, size });
        }
        let mut end = 0;
        Ok(sizes.map(|part| {
            let start = end;
            end += part;
            self.part(dim, start, end)
        }))
    }

    /// Dimension `dim` cut into parts of `size` indices, one after the other; the last
    /// may be smaller. A dimension of 0 has none.
    ///
    /// ```
    /// # use tenslab::{DType, Tensor, memory};
    /// let prompt = Tensor::zeros([100, 64], DType::F32, memory::cpu())?;
    /// let batches = prompt.chunks(0, 48)?;
    /// assert_eq!(batches.len(), 3);
    /// assert!(batches.map(|batch| batch.shape().dim(0)).eq([48, 48, 4]));
    /// # Ok::<(), tenslab::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchDim`](TensorError::NoSuchDim), then [`EmptyParts`](TensorError::EmptyParts)
    /// where `size` is 0.
    pub fn chunks(&self, dim: usize, size: usize) -> Result<Chunks<'_>, TensorError> {
        let end = self.size_of_dim(dim)?;
        if size == 0 {
            return Err(TensorError::EmptyParts { dim });
        }
        Ok(Chunks {
            tensor: self,
            dim,
            size,
            next: 0,
            end,
        })
    }
}

/// The views that [`Tensor::chunks`] gives, in order. Making one allocates nothing.
#[derive(Debug, Clone)]
pub struct Chunks<'a> {
    tensor: &'a Tensor,
    dim: usize,
    size: usize,
    next: usize,
    end: usize,
}

impl Iterator for Chunks<'_> {
    type Item = Tensor;

    fn next(&mut self) -> Option<Tensor> {
        if self.next == self.end {
            return None;
        }
        let start = self.next;
        self.next = start.saturating_add(self.size).min(self.end);
        Some(self.tensor.part(self.dim, start, self.next))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.next).div_ceil(self.size);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Chunks<'_> {}
impl FusedIterator for Chunks<'_> {}
