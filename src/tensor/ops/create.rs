//! Tensors made of a rule: [`zeros`], [`ones`], [`full`], [`arange`].
//!
//! All go through [`Tensor::empty`] (or its zeroed sister) and so fail as it does: a
//! reserved dtype and an allocator that has no more come before any complaint about a
//! value.

use super::number::{Number, Numeric, for_dtype};
use crate::memory::SharedAllocator;
use crate::tensor::{Tensor, TensorError};
use crate::types::{DType, Shape};

/// A contiguous tensor of zeros (`false` for booleans): [`Tensor::zeros`].
///
/// # Errors
/// As [`Tensor::empty`].
///
/// # Panics
/// As [`Tensor::empty`], for an array that is no shape.
#[track_caller]
pub fn zeros(
    shape: impl Into<Shape>,
    dtype: DType,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    Tensor::zeros(shape, dtype, allocator)
}

/// A contiguous tensor of ones (`true` for booleans).
///
/// # Errors
/// As [`Tensor::empty`].
///
/// # Panics
/// As [`Tensor::empty`], for an array that is no shape.
#[track_caller]
pub fn ones(
    shape: impl Into<Shape>,
    dtype: DType,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    full(shape, 1, dtype, allocator)
}

/// A contiguous tensor of one value.
///
/// A float rounds to nearest, ties to even, and overflows to infinity; an integer has to
/// be met exactly; a boolean is 0 or 1.
///
/// ```
/// use tenslab::{DType, memory, ops};
///
/// let mask = ops::full([2, 2], f32::NEG_INFINITY, DType::BF16, memory::cpu())?;
/// let ids = ops::full([3], u64::MAX, DType::U64, memory::cpu())?;
/// assert_eq!(ids.item::<u64>(&[2]), u64::MAX);
/// assert!(ops::full([3], 0.5, DType::I32, memory::cpu()).is_err());
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// # Errors
/// As [`Tensor::empty`], and only then
/// [`ValueOutOfRange`](TensorError::ValueOutOfRange).
///
/// # Panics
/// As [`Tensor::empty`], for an array that is no shape.
#[track_caller]
pub fn full(
    shape: impl Into<Shape>,
    value: impl Into<Number>,
    dtype: DType,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    let tensor = Tensor::empty(shape, dtype, allocator)?;
    super::fill(&tensor, value)?;
    Ok(tensor)
}

/// The row `start, start + step, …`, up to `end` and without it. Without a dtype it is
/// int64, as in NumPy and PyTorch.
///
/// The values are computed as `i64`. An integer dtype has to hold all of them (a boolean
/// 0 and 1); a float rounds each to nearest, and what is too large for it becomes infinity.
///
/// ```
/// use tenslab::{DType, memory, ops};
///
/// let positions = ops::arange(0, 10, 3, None, memory::cpu())?;
/// assert_eq!(*positions.read::<i64>()?, [0, 3, 6, 9]);
/// let down = ops::arange(2, -2, -2, DType::I8, memory::cpu())?;
/// assert_eq!(*down.read::<i8>()?, [2, 0]);
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// # Errors
/// [`BadSteps`](TensorError::BadSteps) for a step of 0, where `end - start` is no `i64`,
/// or for more than `i64::MAX` elements; then as [`Tensor::empty`]; and then
/// [`ValueOutOfRange`](TensorError::ValueOutOfRange) with the extreme that does not fit.
pub fn arange(
    start: i64,
    end: i64,
    step: i64,
    dtype: impl Into<Option<DType>>,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    let count = count(start, end, step).ok_or(TensorError::BadSteps { start, end, step })?;
    let dtype = dtype.into().unwrap_or(DType::I64);
    let tensor = Tensor::empty(Shape::from_dims(&[count])?, dtype, allocator)?;
    for_dtype!(dtype, T => write_steps::<T>(&tensor, start, step))?;
    Ok(tensor)
}

/// How many steps there are, if that is an `i64`. The only count above is 2^63.
fn count(start: i64, end: i64, step: i64) -> Option<usize> {
    let span = end.checked_sub(start)?;
    if step == 0 {
        return None;
    }
    if (span > 0) != (step > 0) || span == 0 {
        return Some(0);
    }
    let count = span.unsigned_abs().div_ceil(step.unsigned_abs());
    usize::try_from(i64::try_from(count).ok()?).ok()
}

fn write_steps<T: Numeric>(tensor: &Tensor, start: i64, step: i64) -> Result<(), TensorError> {
    let mut elements = tensor.write::<T>()?;
    let Some(last) = elements.len().checked_sub(1) else {
        return Ok(());
    };
    // All values lie between start and end, so none of these wraps for good.
    let value =
        |at: usize| start.wrapping_add(i64::try_from(at).unwrap_or(i64::MAX).wrapping_mul(step));
    let exactly = |value: i64| {
        let dtype = T::DTYPE;
        let value = Number::Signed(value);
        value
            .exactly::<T>()
            .ok_or(TensorError::ValueOutOfRange { value, dtype })
    };
    // What lies between two values that fit, fits.
    exactly(value(0))?;
    exactly(value(last))?;
    for (at, element) in elements.iter_mut().enumerate() {
        *element = exactly(value(at))?;
    }
    Ok(())
}
