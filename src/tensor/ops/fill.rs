//! Values into a tensor that is there: [`fill`], [`fill_uniform`], [`fill_normal`].
//!
//! The seeded fills are part of golden files, so their values are fixed: the 64-bit
//! Mersenne Twister (Matsumoto and Nishimura; crate `rand_mt`), transforms written out
//! here, and elements in row-major order of the logical index, whatever the strides.
//!
//! ```text
//!   u             = (next() >> 11) * 2^-53                      in [0, 1)
//!   fill_uniform    low + u * (high - low)
//!   fill_normal     r = sqrt(-2 ln(1 - u1))                     Box and Muller
//!                   mean + stddev * r cos(2 pi u2),  then  mean + stddev * r sin(2 pi u2)
//! ```
//!
//! All of it in `f64`, then rounded as [`full`](super::full) does.

use rand_mt::Mt64;

use super::loops::Loops;
use super::number::{Number, Numeric, for_dtype};
use super::span::{Packed, Writing};
use crate::tensor::{Tensor, TensorError};
use crate::types::{DType, bf16, f16};

/// Writes one value to every element of a view, and to nothing beside it.
///
/// A float rounds to nearest, ties to even, and overflows to infinity; an integer has to
/// be met exactly; a boolean is 0 or 1.
///
/// ```
/// use tenslab::{DType, Tensor, memory, ops};
///
/// let grid = Tensor::zeros([2, 3], DType::I32, memory::cpu())?;
/// ops::fill(&grid.slice(1, 2, 3)?, 7)?;
/// assert_eq!(*grid.read::<i32>()?, [0, 0, 7, 0, 0, 7]);
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// # Errors
/// [`ValueOutOfRange`](TensorError::ValueOutOfRange), and
/// [`Borrow`](TensorError::Borrow) where somebody is at the bytes or they are frozen.
pub fn fill(dst: &Tensor, value: impl Into<Number>) -> Result<(), TensorError> {
    fn with<T: Numeric>(dst: &Tensor, value: Number) -> Result<(), TensorError> {
        let dtype = T::DTYPE;
        let value = value
            .exactly::<T>()
            .ok_or(TensorError::ValueOutOfRange { value, dtype })?;
        let mut writing = Writing::of(dst)?;
        let Some(loops) = Loops::in_memory_order(
            dst.shape().dims(),
            dst.strides().values(),
            dst.strides().values(),
        ) else {
            return Ok(());
        };
        let elements = writing.packed::<T>();
        let row = loops.innermost();
        loops.for_each(1, |at, _| {
            if row.to == 1 {
                elements[at..at + row.size].fill(Packed(value));
            } else {
                let row = elements[at..].iter_mut().step_by(row.to).take(row.size);
                row.for_each(|element| *element = Packed(value));
            }
        });
        Ok(())
    }
    let value = value.into();
    for_dtype!(dst.dtype(), T => with::<T>(dst, value))
}

/// Writes evenly distributed values from `low` up to `high`, the same ones for the same
/// seed on every machine.
///
/// `low` may be met; `high` may only by rounding (a bfloat16 has few values).
///
/// ```
/// use tenslab::{DType, Tensor, memory, ops};
///
/// let weights = Tensor::empty([2], DType::F64, memory::cpu())?;
/// ops::fill_uniform(&weights, -1.0, 1.0, 42)?;
/// assert_eq!(*weights.read::<f64>()?, [0.5103110659090779, 0.27806278770939485]);
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// # Errors
/// [`NotFloatingPoint`](TensorError::NotFloatingPoint);
/// [`BadUniform`](TensorError::BadUniform) for bounds that are not finite or inverted, or
/// whose distance is not finite; [`Borrow`](TensorError::Borrow).
pub fn fill_uniform(dst: &Tensor, low: f64, high: f64, seed: u64) -> Result<(), TensorError> {
    must_be_floating_point(dst)?;
    // A NaN fails the comparison; an infinite bound makes the distance infinite or NaN.
    if !(low <= high && (high - low).is_finite()) {
        return Err(TensorError::BadUniform {
            low: low.into(),
            high: high.into(),
        });
    }
    let mut engine = Mt64::new(seed);
    write_in_order(dst, || low + unit(&mut engine) * (high - low))
}

/// Writes normally distributed values, the same ones for the same seed on one platform.
///
/// Logarithm, sine and cosine are the platform's: values may differ in the last bit of an
/// `f64` from one to another, which rounding to 32 bits or less hides but for rare ties.
///
/// ```
/// use tenslab::{DType, Tensor, memory, ops};
///
/// let noise = Tensor::empty([64, 64], DType::F32, memory::cpu())?;
/// ops::fill_normal(&noise, 0.0, 0.02, 7)?;
/// assert!(noise.read::<f32>()?.iter().all(|value| value.abs() < 0.12));
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// # Errors
/// [`NotFloatingPoint`](TensorError::NotFloatingPoint);
/// [`BadNormal`](TensorError::BadNormal) for a mean or a deviation that is not finite, or
/// a negative deviation; [`Borrow`](TensorError::Borrow).
pub fn fill_normal(dst: &Tensor, mean: f64, stddev: f64, seed: u64) -> Result<(), TensorError> {
    must_be_floating_point(dst)?;
    if !(mean.is_finite() && stddev.is_finite() && stddev >= 0.0) {
        return Err(TensorError::BadNormal {
            mean: mean.into(),
            stddev: stddev.into(),
        });
    }
    let mut engine = Mt64::new(seed);
    let mut second = None;
    write_in_order(dst, || {
        let z = second.take().unwrap_or_else(|| {
            // 1 - u is in (0, 1], so the logarithm is finite.
            let radius = (-2.0 * (1.0 - unit(&mut engine)).ln()).sqrt();
            let angle = std::f64::consts::TAU * unit(&mut engine);
            second = Some(radius * angle.sin());
            radius * angle.cos()
        });
        mean + stddev * z
    })
}

/// The upper 53 bits of the next number, as a fraction of 1.
fn unit(engine: &mut Mt64) -> f64 {
    const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
    (engine.next_u64() >> 11) as f64 * STEP
}

fn must_be_floating_point(dst: &Tensor) -> Result<(), TensorError> {
    let dtype = dst.dtype();
    if dtype.is_floating_point() {
        Ok(())
    } else {
        Err(TensorError::NotFloatingPoint { dtype })
    }
}

fn write_in_order(dst: &Tensor, next: impl FnMut() -> f64) -> Result<(), TensorError> {
    fn with<T: Numeric>(dst: &Tensor, mut next: impl FnMut() -> f64) -> Result<(), TensorError> {
        let mut writing = Writing::of(dst)?;
        let Some(loops) = Loops::in_order(
            dst.shape().dims(),
            dst.strides().values(),
            dst.strides().values(),
        ) else {
            return Ok(());
        };
        let elements = writing.packed::<T>();
        loops.for_each(0, |at, _| {
            // Every float has an answer to every `f64`.
            if let Some(value) = T::from_f64(next()) {
                elements[at] = Packed(value);
            }
        });
        Ok(())
    }
    match dst.dtype() {
        DType::F16 => with::<f16>(dst, next),
        DType::BF16 => with::<bf16>(dst, next),
        DType::F64 => with::<f64>(dst, next),
        _ => with::<f32>(dst, next),
    }
}
