//! Slices without intrinsics: loops that a compiler turns into SIMD of any width.
//!
//! No branches: each result is picked from those of all cases. They are other
//! sums than those of [`scalar`](super::scalar), and `tests/half_sweep.rs` shows that
//! the bits are the same. A NaN is only ever picked apart as an integer.

use super::scalar::{bf16_bits_to_f32_bits, f32_bits_to_bf16_bits};

/// 2^-24, the unit of f16's subnormals.
const UNIT: f32 = f32::from_bits(103 << 23);

/// 2^-14, the smallest normal f16, as the bits of an `f32`.
const NORMAL: u32 = 113 << 23;

/// Adding it to a smaller number leaves that number's multiples of [`UNIT`] in the last bits.
const HALF: f32 = 0.5;

#[allow(
    clippy::cast_possible_truncation,
    reason = "each case is 15 bits, and the sign is bit 15"
)]
fn narrow_f16_bits(bits: u32) -> u16 {
    let magnitude = bits & 0x7fff_ffff;
    // A carry out of the mantissa moves the exponent up, at the upper end to infinity.
    let shifted = magnitude.wrapping_sub(112 << 23);
    let normal = shifted.wrapping_add(0xfff + ((shifted >> 13) & 1)) >> 13;
    // The addition rounds to a multiple of 2^-24, ties to even. The minimum keeps
    // NaNs out of it.
    let small = f32::from_bits(magnitude.min(NORMAL)) + HALF;
    let subnormal = small.to_bits() - HALF.to_bits();
    let payload = (magnitude >> 13) & 0x3ff;
    let nan = 0x7c00 | payload | (u32::from(payload == 0) << 9);
    let half = if magnitude < NORMAL {
        subnormal
    } else {
        normal.min(0x7c00)
    };
    let half = if magnitude > 0x7f80_0000 { nan } else { half };
    (half | (bits >> 16 & 0x8000)) as u16
}

#[allow(
    clippy::cast_precision_loss,
    reason = "15 bits, which an f32 holds exactly"
)]
fn widen_f16_bits(half: u16) -> u32 {
    let magnitude = u32::from(half & 0x7fff);
    let special = (magnitude << 13) | 0x7f80_0000;
    let normal = (magnitude << 13) + (112 << 23);
    // From an integer, so that no subnormal f32 is needed on the way.
    let subnormal = (magnitude as f32 * UNIT).to_bits();
    let wide = if magnitude >= 0x7c00 { special } else { normal };
    let wide = if magnitude < 0x400 { subnormal } else { wide };
    wide | (u32::from(half & 0x8000) << 16)
}

/// Heads and tails of the SIMD paths come here too: not inlined, or each of them would
/// hold a vector loop for a few elements.
#[inline(never)]
pub(super) fn narrow_f16(from: &[f32], to: &mut [u16]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = narrow_f16_bits(from.to_bits());
    }
}

#[inline(never)]
pub(super) fn widen_f16(from: &[u16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(widen_f16_bits(*from));
    }
}

#[inline(never)]
pub(super) fn narrow_bf16(from: &[f32], to: &mut [u16]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32_bits_to_bf16_bits(from.to_bits());
    }
}

#[inline(never)]
pub(super) fn widen_bf16(from: &[u16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(bf16_bits_to_f32_bits(*from));
    }
}
