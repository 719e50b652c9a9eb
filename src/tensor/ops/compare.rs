//! [`allclose`]: are two tensors the same, up to rounding, and if not, where.
//!
//! ```text
//!   close     |a - b| <= atol + rtol * |b|        in f64, floats only (NumPy's rule)
//!   never     a NaN to anything; an infinity to anything but itself
//!   exactly   integers and booleans, whatever the tolerance
//! ```

use std::fmt;

use super::loops::Loops;
use super::number::{Number, Numeric, for_dtype};
use super::span::{Packed, Reading};
use crate::tensor::{Tensor, TensorError};
use crate::types::{DType, MAX_RANK};

/// How far two values may be apart and still be close.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// As a part of the second value's magnitude.
    pub relative: f64,
    /// Whatever the magnitude.
    pub absolute: f64,
}

/// The tolerance that a test of this dtype means when it names none.
///
/// | dtype | relative | absolute |
/// |---|---|---|
/// | float32 | 1e-5 | 1e-8 |
/// | float16 | 1e-3 | 1e-5 |
/// | bfloat16 | 1.6e-2 | 1e-5 |
/// | float64 | 1e-5 | 1e-8 |
/// | integers, bool | 0 | 0 |
///
/// NumPy's and PyTorch's values; NumPy gives float64 the same as float32.
///
/// # Panics
/// For a reserved dtype: there is nothing to compare yet.
#[must_use]
#[track_caller]
pub fn default_allclose_tolerance(dtype: DType) -> Tolerance {
    let (relative, absolute) = match dtype {
        DType::F32 | DType::F64 => (1e-5, 1e-8),
        DType::F16 => (1e-3, 1e-5),
        DType::BF16 => (1.6e-2, 1e-5),
        dtype if dtype.is_reserved() => panic!("{dtype} has no tolerance: it is reserved"),
        _ => (0.0, 0.0),
    };
    Tolerance { relative, absolute }
}

/// What [`allclose`] found. `Display` is a report for people.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AllClose {
    /// Elements that were compared.
    pub compared: usize,
    /// How many are not close.
    pub mismatches: usize,
    /// The largest `|a - b|`, close ones included; infinite where one of the two is a NaN or
    /// an infinity that the other is not. 0 without elements.
    pub max_abs_diff: f64,
    /// The mismatch with the largest difference, the first in row-major order of those.
    pub worst: Option<Mismatch>,
}

/// Two values that are not close.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mismatch {
    index: [usize; MAX_RANK],
    rank: usize,
    /// The first tensor's.
    pub a: Number,
    /// The second one's.
    pub b: Number,
}

impl Mismatch {
    /// Where they are.
    #[must_use]
    pub fn index(&self) -> &[usize] {
        &self.index[..self.rank]
    }
}

impl AllClose {
    /// Were all of them close?
    #[must_use]
    pub fn is_close(&self) -> bool {
        self.mismatches == 0
    }
}

impl fmt::Display for AllClose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(worst) = &self.worst else {
            return write!(
                f,
                "all {} elements are close, the largest difference is {}",
                self.compared, self.max_abs_diff
            );
        };
        write!(
            f,
            "{} of {} elements are not close; the worst is at {:?}: {} and {}; the largest \
             difference is {}",
            self.mismatches,
            self.compared,
            worst.index(),
            worst.a,
            worst.b,
            self.max_abs_diff
        )
    }
}

/// Compares two tensors of one shape and dtype, element by element; either may be a strided
/// view. Without a tolerance it is the dtype's
/// [default](default_allclose_tolerance).
///
/// Not symmetric: the relative tolerance is of `b`, the expected one.
///
/// ```
/// use tenslab::{DType, memory, ops};
///
/// let a = ops::full([2, 2], 1.0, DType::F32, memory::cpu())?;
/// let b = ops::full([2, 2], 1.000001, DType::F32, memory::cpu())?;
/// assert!(ops::allclose(&a, &b, None)?.is_close());
///
/// a.write::<f32>()?[3] = 2.0;
/// let report = ops::allclose(&a, &b, None)?;
/// assert_eq!((report.mismatches, report.worst.unwrap().index()), (1, &[1, 1][..]));
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// # Errors
/// [`DTypeMismatch`](TensorError::DTypeMismatch),
/// [`ShapeMismatch`](TensorError::ShapeMismatch),
/// [`BadTolerance`](TensorError::BadTolerance) for a negative tolerance or a NaN, and
/// [`Borrow`](TensorError::Borrow) while somebody writes to either.
pub fn allclose(
    a: &Tensor,
    b: &Tensor,
    tolerance: impl Into<Option<Tolerance>>,
) -> Result<AllClose, TensorError> {
    if a.dtype() != b.dtype() {
        return Err(TensorError::DTypeMismatch {
            asked: a.dtype(),
            found: b.dtype(),
        });
    }
    if a.shape() != b.shape() {
        return Err(TensorError::ShapeMismatch {
            shapes: Box::new((*a.shape(), *b.shape())),
        });
    }
    let tolerance = tolerance
        .into()
        .unwrap_or_else(|| default_allclose_tolerance(a.dtype()));
    let Tolerance { relative, absolute } = tolerance;
    if !(relative >= 0.0 && absolute >= 0.0) {
        return Err(TensorError::BadTolerance {
            relative: relative.into(),
            absolute: absolute.into(),
        });
    }
    for_dtype!(a.dtype(), T => compare::<T>(a, b, tolerance))
}

fn compare<T: Numeric>(
    a: &Tensor,
    b: &Tensor,
    tolerance: Tolerance,
) -> Result<AllClose, TensorError> {
    let (reading_a, reading_b) = (Reading::of(a)?, Reading::of(b)?);
    let mut found = AllClose {
        compared: a.numel(),
        mismatches: 0,
        max_abs_diff: 0.0,
        worst: None,
    };
    let Some(loops) = Loops::in_order(a.shape().dims(), a.strides().values(), b.strides().values())
    else {
        return Ok(found);
    };
    let (elements_a, elements_b) = (reading_a.packed::<T>(), reading_b.packed::<T>());
    let (mut position, mut worst) = (0, None);
    let mut worst_diff = f64::NEG_INFINITY;
    loops.for_each(0, |at_a, at_b| {
        let (Packed(a), Packed(b)) = (elements_a[at_a], elements_b[at_b]);
        let (a, b) = (a.number(), b.number());
        let diff = difference(a, b);
        found.max_abs_diff = found.max_abs_diff.max(diff);
        if !close(a, b, diff, tolerance) {
            found.mismatches += 1;
            if diff > worst_diff {
                worst_diff = diff;
                worst = Some((position, a, b));
            }
        }
        position += 1;
    });
    found.worst = worst.map(|(position, a_value, b_value)| {
        let (mut index, mut rest) = ([0; MAX_RANK], position);
        for (to, &size) in index.iter_mut().zip(a.shape().dims()).rev() {
            *to = rest % size;
            rest /= size;
        }
        Mismatch {
            index,
            rank: a.rank(),
            a: a_value,
            b: b_value,
        }
    });
    Ok(found)
}

/// `|a - b|`, infinite where it is not a number. Integers are subtracted as integers.
fn difference(a: Number, b: Number) -> f64 {
    match (a, b) {
        (Number::Signed(a), Number::Signed(b)) => a.abs_diff(b) as f64,
        (Number::Unsigned(a), Number::Unsigned(b)) => a.abs_diff(b) as f64,
        (a, b) => {
            let (a, b) = (a.to_f64(), b.to_f64());
            // Infinities of one sign, whose difference would be NaN.
            let diff = if a == b { 0.0 } else { (a - b).abs() };
            if diff.is_nan() { f64::INFINITY } else { diff }
        }
    }
}

fn close(a: Number, b: Number, diff: f64, tolerance: Tolerance) -> bool {
    match (a, b) {
        (Number::Float(a), Number::Float(b)) => {
            a == b
                || (a.is_finite()
                    && b.is_finite()
                    && diff <= tolerance.absolute + tolerance.relative * b.abs())
        }
        (a, b) => a == b,
    }
}
