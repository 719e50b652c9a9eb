//! What the half formats are, said twice over without moving a bit as the code does.
//!
//! The first model computes in `f64`, where every step is exact: divide by the distance
//! of two neighbours, round to even, multiply. The second needs no rounding at all:
//! narrowing is monotone, so each half owns the `f32` from the middle below to the
//! middle above.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use half::slice::HalfBitsSliceExt;
use tenslab::types::half::{
    CodePath, bf16_bits_to_f32_bits, f16_bits_to_f32_bits, f32_bits_to_bf16_bits,
    f32_bits_to_f16_bits,
};

/// A half format, and the code's conversions of it.
pub(crate) struct Format {
    pub(crate) name: &'static str,
    pub(crate) mantissa_bits: u32,
    /// Exponent of the smallest normal number.
    pub(crate) min_exponent: i32,
    /// Exponent field of infinity and NaN.
    pub(crate) special: u16,
    pub(crate) widen: fn(u16) -> u32,
    pub(crate) narrow: fn(u32) -> u16,
    /// The same for slices, on a path.
    pub(crate) widen_all: fn(CodePath, &[u16], &mut [f32]),
    pub(crate) narrow_all: fn(CodePath, &[f32], &mut [u16]),
}

pub(crate) const F16: Format = Format {
    name: "f16",
    mantissa_bits: 10,
    min_exponent: -14,
    special: 31,
    widen: f16_bits_to_f32_bits,
    narrow: f32_bits_to_f16_bits,
    widen_all: |path, from, to| path.widen_f16(from.reinterpret_cast(), to),
    narrow_all: |path, from, to| path.narrow_f16(from, to.reinterpret_cast_mut()),
};

pub(crate) const BF16: Format = Format {
    name: "bf16",
    mantissa_bits: 7,
    min_exponent: -126,
    special: 255,
    widen: bf16_bits_to_f32_bits,
    narrow: f32_bits_to_bf16_bits,
    widen_all: |path, from, to| path.widen_bf16(from.reinterpret_cast(), to),
    narrow_all: |path, from, to| path.narrow_bf16(from, to.reinterpret_cast_mut()),
};

impl Format {
    pub(crate) fn mantissa(&self, half: u16) -> u16 {
        half & ((1 << self.mantissa_bits) - 1)
    }

    pub(crate) fn exponent(&self, half: u16) -> u16 {
        (half & 0x7fff) >> self.mantissa_bits
    }

    pub(crate) fn infinity(&self) -> u16 {
        self.special << self.mantissa_bits
    }

    /// Distance of a number of this exponent to its neighbour.
    pub(crate) fn step(&self, exponent: i32) -> f64 {
        2_f64.powi(exponent.max(self.min_exponent) - self.mantissa_bits as i32)
    }

    /// The number that a finite pattern without sign stands for; exact.
    pub(crate) fn magnitude(&self, half: u16) -> f64 {
        let (exponent, mantissa) = (self.exponent(half), f64::from(self.mantissa(half)));
        if exponent == 0 {
            mantissa * self.step(self.min_exponent)
        } else {
            let exponent = i32::from(exponent) - 1 + self.min_exponent;
            (f64::from(1_u16 << self.mantissa_bits) + mantissa) * self.step(exponent)
        }
    }

    /// First model: what `bits` narrows to, by exact arithmetic.
    pub(crate) fn narrowed(&self, bits: u32) -> u16 {
        let sign = if bits >> 31 == 1 { 0x8000 } else { 0 };
        let value = f32::from_bits(bits);
        if value.is_nan() {
            let payload = ((bits & 0x7f_ffff) >> (23 - self.mantissa_bits)) as u16;
            let quiet = 1 << (self.mantissa_bits - 1);
            return sign | self.infinity() | if payload == 0 { quiet } else { payload };
        }
        if value.is_infinite() {
            return sign | self.infinity();
        }
        let magnitude = f64::from(value).abs();
        if magnitude == 0.0 {
            return sign;
        }
        // Every f32, subnormal or not, is normal as an f64, so this is its exponent.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(self.min_exponent);
        let steps = (magnitude / self.step(exponent)).round_ties_even();
        // `steps` counts from zero for subnormals and has the implicit one otherwise, so
        // adding it to the exponent below carries where rounding went up a power of two.
        let below = ((exponent - self.min_exponent) as u32) << self.mantissa_bits;
        let half = below + steps as u32;
        sign | half.min(u32::from(self.infinity())) as u16
    }

    /// All patterns that narrow to one half without sign, by the second model.
    pub(crate) fn owned_by(&self, half: u16) -> std::ops::RangeInclusive<u32> {
        let middle_above = |half: u16| {
            let step = self.step(i32::from(self.exponent(half).max(1)) - 1 + self.min_exponent);
            ((self.magnitude(half) + step / 2.0) as f32).to_bits()
        };
        let even = half & 1 == 0;
        let start = if half == 0 {
            0
        } else {
            middle_above(half - 1) + u32::from(!even)
        };
        let end = if half == self.infinity() {
            0x7f80_0000
        } else {
            middle_above(half) - u32::from(!even)
        };
        start..=end
    }
}
