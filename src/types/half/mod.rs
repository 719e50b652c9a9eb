//! Exact conversions between `f32` and the two half formats.
//!
//! ```text
//!   f32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm     1 /  8 / 23
//!   f16   s eeeee    mmmmmmmmmm                  1 /  5 / 10
//!   bf16  s eeeeeeee mmmmmmm                     1 /  8 /  7
//! ```
//!
//! Widening is exact. Narrowing rounds to nearest, ties to even; what is too
//! large becomes infinity, what is too small becomes a zero that keeps its sign.
//! A NaN stays a NaN and keeps the upper bits of its payload; where none would
//! be left (and it would read as infinity) the quiet bit is set. So half -> f32
//! -> half is bit-identical for all 65,536 patterns, signalling NaNs included.
//!
//! Hardware conversions set a NaN's quiet bit. (So do the `half` crate's: measured,
//! 1,022 `f16` and 126 `bf16` patterns differ when widened.) One value at a time is
//! therefore integer arithmetic. Slices go through a [`CodePath`]:
//!
//! ```text
//!   32 elements ──▶ is any a NaN? ──no──▶ SIMD, F16C for f16 ──▶ store
//!                        └──yes, cold──▶ portable loop, integers
//! ```
//!
//! All paths give the same bits. `tests/half.rs` checks every 16-bit pattern against an
//! independent model on every path, `tests/half_sweep.rs` all 2^32 `f32` patterns.
//!
//! Not here: 8-bit floats and 4-bit integers. Their dtypes are reserved, and there is
//! more than one rule for what overflows, so they come with the first user of one.

#[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
mod avx512;
#[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
mod blocks;
mod path;
mod portable;
mod scalar;

use super::{bf16, f16};

pub use self::path::CodePath;
pub use self::scalar::{
    bf16_bits_to_f32_bits, bf16_from_f32, bf16_from_f64, bf16_to_f32, f16_bits_to_f32_bits,
    f16_from_f32, f16_from_f64, f16_to_f32, f32_bits_to_bf16_bits, f32_bits_to_f16_bits,
    f32_bits_to_f64_bits, f64_to_f32_bits,
};

/// Widens `from` into `to`, exactly.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn widen_f16(from: &[f16], to: &mut [f32]) {
    CodePath::for_elements(from.len()).widen_f16(from, to);
}

/// Narrows `from` into `to`: nearest, ties to even.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn narrow_f16(from: &[f32], to: &mut [f16]) {
    CodePath::for_elements(from.len()).narrow_f16(from, to);
}

/// Widens `from` into `to`, exactly.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn widen_bf16(from: &[bf16], to: &mut [f32]) {
    CodePath::for_elements(from.len()).widen_bf16(from, to);
}

/// Narrows `from` into `to`: nearest, ties to even.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn narrow_bf16(from: &[f32], to: &mut [bf16]) {
    CodePath::for_elements(from.len()).narrow_bf16(from, to);
}
