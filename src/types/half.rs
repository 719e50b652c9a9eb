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
//! Integers only: no hardware conversion and no `f32` operation ever sees a
//! NaN here, because those set the quiet bit. (The `half` crate's conversions,
//! hardware and software, do set it: measured, 1,022 `f16` and 126 `bf16`
//! patterns differ when widened.)
//!
//! `tests/half.rs` checks every 16-bit pattern against an independent model;
//! the sweep over all 2^32 `f32` patterns is in `.ci/long`.

use super::{bf16, f16};

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

#[track_caller]
fn assert_same_length(from: usize, to: usize) {
    assert_eq!(from, to, "{from} elements cannot fill {to}");
}

macro_rules! bulk {
    ($(#[$doc:meta])* $name:ident: $from:ty => $to:ty, $one:ident) => {
        $(#[$doc])*
        ///
        /// # Panics
        /// If the lengths differ.
        #[track_caller]
        pub fn $name(from: &[$from], to: &mut [$to]) {
            assert_same_length(from.len(), to.len());
            for (to, from) in to.iter_mut().zip(from) {
                *to = <$to>::from_bits($one(from.to_bits()));
            }
        }
    };
}

bulk! {
    /// Widens `from` into `to`, exactly.
    widen_f16: f16 => f32, f16_bits_to_f32_bits
}
bulk! {
    /// Narrows `from` into `to`: nearest, ties to even.
    narrow_f16: f32 => f16, f32_bits_to_f16_bits
}
bulk! {
    /// Widens `from` into `to`, exactly.
    widen_bf16: bf16 => f32, bf16_bits_to_f32_bits
}
bulk! {
    /// Narrows `from` into `to`: nearest, ties to even.
    narrow_bf16: f32 => bf16, f32_bits_to_bf16_bits
}
