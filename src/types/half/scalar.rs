//! One value at a time: integers only, in constant expressions too.
//!
//! What these say is what every path over slices must say, bit by bit.

use crate::types::{bf16, f16};

const SIGN_32: u32 = 0x8000_0000;
const INF_32: u32 = 0x7f80_0000;
const MANTISSA_32: u32 = 0x007f_ffff;

/// Widens, exactly, as bits.
#[must_use]
pub const fn f16_bits_to_f32_bits(half: u16) -> u32 {
    let sign = ((half & 0x8000) as u32) << 16;
    let exponent = (half >> 10) & 0x1f;
    let mantissa = (half & 0x3ff) as u32;
    let magnitude = match exponent {
        // Zero, or a subnormal: mantissa * 2^-24, normal as an f32.
        0 => {
            if mantissa == 0 {
                0
            } else {
                // The top set bit is the implicit one; bit 9 stands for 2^-15.
                let shift = mantissa.leading_zeros() - 21;
                ((113 - shift) << 23) | (((mantissa << shift) & 0x3ff) << 13)
            }
        }
        // Infinity or NaN: the payload moves up unchanged.
        0x1f => INF_32 | (mantissa << 13),
        _ => ((exponent as u32 + 112) << 23) | (mantissa << 13),
    };
    sign | magnitude
}

/// Narrows, round to nearest and ties to even, as bits.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    reason = "each value is masked or bounded to 16 bits first"
)]
pub const fn f32_bits_to_f16_bits(bits: u32) -> u16 {
    let sign = ((bits & SIGN_32) >> 16) as u16;
    let magnitude = bits & !SIGN_32;
    if magnitude > INF_32 {
        let payload = ((magnitude & MANTISSA_32) >> 13) as u16;
        return sign | 0x7c00 | if payload == 0 { 0x200 } else { payload };
    }
    // 65520 is half way between the largest f16 and the next step: up, to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    // 2^-14 and above: normal. Rebias, then round on the 13 bits that fall off;
    // a carry out of the mantissa moves the exponent up, as it should.
    if magnitude >= 0x3880_0000 {
        let rebiased = magnitude - (112 << 23);
        let rounded = rebiased + 0xfff + ((rebiased >> 13) & 1);
        return sign | (rounded >> 13) as u16;
    }
    // 2^-25 and below: zero (2^-25 itself is a tie, and 0 is even).
    if magnitude <= 0x3300_0000 {
        return sign;
    }
    // Subnormal: the 24-bit significand, shifted to units of 2^-24.
    let significand = (magnitude & MANTISSA_32) | 0x0080_0000;
    let shift = 126 - (magnitude >> 23);
    let kept = significand >> shift;
    let lost = significand & ((1 << shift) - 1);
    let half_way = 1 << (shift - 1);
    let up = (lost > half_way || (lost == half_way && kept & 1 == 1)) as u32;
    sign | (kept + up) as u16
}

/// Widens, exactly, as bits.
#[must_use]
pub const fn bf16_bits_to_f32_bits(half: u16) -> u32 {
    (half as u32) << 16
}

/// Narrows, round to nearest and ties to even, as bits.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    reason = "shifted right by 16 first, and `bits + 0x8000` cannot wrap below infinity"
)]
pub const fn f32_bits_to_bf16_bits(bits: u32) -> u16 {
    let truncated = (bits >> 16) as u16;
    if bits & !SIGN_32 > INF_32 {
        return truncated | if truncated & 0x7f == 0 { 0x40 } else { 0 };
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Widens one value, exactly.
#[must_use]
pub const fn f16_to_f32(half: f16) -> f32 {
    f32::from_bits(f16_bits_to_f32_bits(half.to_bits()))
}

/// Narrows one value: nearest, ties to even, overflow to infinity.
#[must_use]
pub const fn f16_from_f32(value: f32) -> f16 {
    f16::from_bits(f32_bits_to_f16_bits(value.to_bits()))
}

/// Widens one value, exactly.
#[must_use]
pub const fn bf16_to_f32(half: bf16) -> f32 {
    f32::from_bits(bf16_bits_to_f32_bits(half.to_bits()))
}

/// Narrows one value: nearest, ties to even, overflow to infinity.
#[must_use]
pub const fn bf16_from_f32(value: f32) -> bf16 {
    bf16::from_bits(f32_bits_to_bf16_bits(value.to_bits()))
}

/// Narrows a `f64`: to the nearest `f32` first, ties to even, as the tensor contract says.
///
/// `as` would leave a NaN's bits to the compiler and the CPU. Here a NaN follows the same
/// rule as everywhere: it keeps its sign and the upper 23 bits of its payload, and is
/// quieted only where none of them is set.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    reason = "rounding is the purpose, and a payload is shifted to 23 bits first"
)]
pub const fn f64_to_f32_bits(value: f64) -> u32 {
    if !value.is_nan() {
        return (value as f32).to_bits();
    }
    let bits = value.to_bits();
    let sign = (bits >> 32) as u32 & SIGN_32;
    let payload = (bits >> 29) as u32 & MANTISSA_32;
    sign | INF_32 | if payload == 0 { 0x0040_0000 } else { payload }
}

/// Widens to the bits of a `f64`, exactly, signalling NaNs included.
#[must_use]
pub const fn f32_bits_to_f64_bits(bits: u32) -> u64 {
    let value = f32::from_bits(bits);
    if !value.is_nan() {
        return (value as f64).to_bits();
    }
    let sign = ((bits & SIGN_32) as u64) << 32;
    sign | 0x7ff0_0000_0000_0000 | ((bits & MANTISSA_32) as u64) << 29
}

/// Narrows a `f64` through `f32`, which rounds twice: that is the contract's path, and
/// the same on every CPU.
///
/// Integers take it too: `f16_from_f64(n as f64)`.
///
/// ```
/// use tenslab::types::half::{bf16_from_f64, f16_from_f64};
///
/// // 65520 is the tie between the largest f16 and infinity. The f64 just below
/// // it is the tie once it is an f32.
/// assert_eq!(f16_from_f64(65519.999999999).to_bits(), 0x7c00);
/// // 2^32 + 2^24 + 1 loses its last bit on the way and is a tie then.
/// assert_eq!(bf16_from_f64(4_311_744_513_i64 as f64).to_bits(), 0x4f80);
/// ```
#[must_use]
pub const fn f16_from_f64(value: f64) -> f16 {
    f16::from_bits(f32_bits_to_f16_bits(f64_to_f32_bits(value)))
}

/// Narrows a `f64` through `f32`, as [`f16_from_f64`] does.
#[must_use]
pub const fn bf16_from_f64(value: f64) -> bf16 {
    bf16::from_bits(f32_bits_to_bf16_bits(f64_to_f32_bits(value)))
}
