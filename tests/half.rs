//! `f32` to and from the half formats, bit by bit.
//!
//! ```text
//!   widen     all 65,536 patterns of both, against real numbers built from the fields
//!   narrow    goldens, every tie and its neighbours, a sweep with a stride in each run,
//!             and all 2^32 patterns with TENSLAB_LONG=1
//!   NaN       payload cut to what fits; the quiet bit only where nothing would be left
//! ```
//!
//! Two models stand against the code, and neither moves a bit as the code does. The
//! first computes in `f64`, where every step is exact: divide by the distance of two
//! neighbours, round to even, multiply. The second needs no rounding at all: narrowing
//! is monotone, so each half owns the `f32` from the middle below to the middle above.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

use tenslab::types::half::{
    bf16_bits_to_f32_bits, bf16_from_f32, bf16_to_f32, f16_bits_to_f32_bits, f16_from_f32,
    f16_to_f32, f32_bits_to_bf16_bits, f32_bits_to_f16_bits, narrow_bf16, narrow_f16, widen_bf16,
    widen_f16,
};
use tenslab::{bf16, f16};

/// A half format, and the code's conversions of it.
struct Format {
    name: &'static str,
    mantissa_bits: u32,
    /// Exponent of the smallest normal number.
    min_exponent: i32,
    /// Exponent field of infinity and NaN.
    special: u16,
    widen: fn(u16) -> u32,
    narrow: fn(u32) -> u16,
    narrow_all: fn(&[f32], &mut [u16]),
}

const F16: Format = Format {
    name: "f16",
    mantissa_bits: 10,
    min_exponent: -14,
    special: 31,
    widen: f16_bits_to_f32_bits,
    narrow: f32_bits_to_f16_bits,
    narrow_all: |from, to| {
        let mut halves = vec![f16::ZERO; from.len()];
        narrow_f16(from, &mut halves);
        to.iter_mut()
            .zip(halves)
            .for_each(|(to, half)| *to = half.to_bits());
    },
};

const BF16: Format = Format {
    name: "bf16",
    mantissa_bits: 7,
    min_exponent: -126,
    special: 255,
    widen: bf16_bits_to_f32_bits,
    narrow: f32_bits_to_bf16_bits,
    narrow_all: |from, to| {
        let mut halves = vec![bf16::ZERO; from.len()];
        narrow_bf16(from, &mut halves);
        to.iter_mut()
            .zip(halves)
            .for_each(|(to, half)| *to = half.to_bits());
    },
};

impl Format {
    fn mantissa(&self, half: u16) -> u16 {
        half & ((1 << self.mantissa_bits) - 1)
    }

    fn exponent(&self, half: u16) -> u16 {
        (half & 0x7fff) >> self.mantissa_bits
    }

    fn infinity(&self) -> u16 {
        self.special << self.mantissa_bits
    }

    /// Distance of a number of this exponent to its neighbour.
    fn step(&self, exponent: i32) -> f64 {
        2_f64.powi(exponent.max(self.min_exponent) - self.mantissa_bits as i32)
    }

    /// The number that a finite pattern without sign stands for; exact.
    fn magnitude(&self, half: u16) -> f64 {
        let (exponent, mantissa) = (self.exponent(half), f64::from(self.mantissa(half)));
        if exponent == 0 {
            mantissa * self.step(self.min_exponent)
        } else {
            let exponent = i32::from(exponent) - 1 + self.min_exponent;
            (f64::from(1_u16 << self.mantissa_bits) + mantissa) * self.step(exponent)
        }
    }

    /// First model: what `bits` narrows to, by exact arithmetic.
    fn narrowed(&self, bits: u32) -> u16 {
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
}

#[test]
fn every_half_widens_to_the_number_its_fields_stand_for() {
    for format in [F16, BF16] {
        for half in 0..=u16::MAX {
            let wide = (format.widen)(half);
            let name = format.name;
            assert_eq!(
                wide >> 31,
                u32::from(half >> 15),
                "sign of {name} {half:#06x}"
            );
            let magnitude = f32::from_bits(wide & 0x7fff_ffff);
            if format.exponent(half) != format.special {
                let expected = format.magnitude(half & 0x7fff);
                assert_eq!(f64::from(magnitude), expected, "{name} {half:#06x}");
            } else if format.mantissa(half) == 0 {
                assert_eq!(magnitude, f32::INFINITY, "{name} {half:#06x}");
            } else {
                assert!(magnitude.is_nan(), "{name} {half:#06x}");
                let payload = u32::from(format.mantissa(half)) << (23 - format.mantissa_bits);
                assert_eq!(wide & 0x7f_ffff, payload, "{name} {half:#06x}");
            }
        }
    }
}

/// Signalling NaNs included: this is what the `half` crate does not do.
#[test]
fn every_half_comes_back_from_f32_bit_for_bit() {
    for format in [F16, BF16] {
        let mut signalling = 0;
        for half in 0..=u16::MAX {
            let wide = (format.widen)(half);
            assert_eq!((format.narrow)(wide), half, "{} {half:#06x}", format.name);
            let nan = f32::from_bits(wide).is_nan();
            signalling += usize::from(nan && wide & 0x40_0000 == 0);
        }
        let expected = if format.name == "f16" { 1022 } else { 126 };
        assert_eq!(signalling, expected, "{}", format.name);
    }
}

#[test]
fn typed_and_bulk_conversions_move_the_same_bits() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = all.iter().copied().map(f16::from_bits).collect();
    let brains: Vec<bf16> = all.iter().copied().map(bf16::from_bits).collect();
    let mut wide = vec![0.0; all.len()];
    let mut back = vec![f16::ZERO; all.len()];
    widen_f16(&halves, &mut wide);
    narrow_f16(&wide, &mut back);
    for ((&half, wide), back) in halves.iter().zip(&wide).zip(&back) {
        assert_eq!(wide.to_bits(), f16_bits_to_f32_bits(half.to_bits()));
        assert_eq!(f16_to_f32(half).to_bits(), wide.to_bits());
        assert_eq!(f16_from_f32(*wide).to_bits(), half.to_bits());
        assert_eq!(back.to_bits(), half.to_bits());
    }
    let mut back = vec![bf16::ZERO; all.len()];
    widen_bf16(&brains, &mut wide);
    narrow_bf16(&wide, &mut back);
    for ((&half, wide), back) in brains.iter().zip(&wide).zip(&back) {
        assert_eq!(wide.to_bits(), bf16_bits_to_f32_bits(half.to_bits()));
        assert_eq!(bf16_to_f32(half).to_bits(), wide.to_bits());
        assert_eq!(bf16_from_f32(*wide).to_bits(), half.to_bits());
        assert_eq!(back.to_bits(), half.to_bits());
    }
}

#[test]
fn bulk_conversions_of_any_length_touch_all_and_only_their_elements() {
    for length in 0..=40 {
        let from: Vec<f32> = (0..length).map(|i| i as f32 * 0.37 - 5.0).collect();
        let mut to = vec![f16::from_bits(0xdead); length + 2];
        narrow_f16(&from, &mut to[1..=length]);
        assert_eq!(to[0].to_bits(), 0xdead);
        assert_eq!(to[length + 1].to_bits(), 0xdead);
        for (from, to) in from.iter().zip(&to[1..]) {
            assert_eq!(to.to_bits(), F16.narrowed(from.to_bits()));
        }
    }
}

#[test]
#[should_panic(expected = "3 elements cannot fill 2")]
fn bulk_conversions_want_equal_lengths() {
    narrow_bf16(&[0.0; 3], &mut [bf16::ZERO; 2]);
}

/// Written as numbers, from IEEE 754 and the tensor contract; no model in between.
#[test]
fn narrowing_goldens() {
    let f16_goldens: [(f32, u16); 19] = [
        (0.0, 0x0000),
        (-0.0, 0x8000),
        (1.0, 0x3c00),
        (-2.0, 0xc000),
        (65504.0, 0x7bff), // the largest
        (65519.0, 0x7bff),
        (65519.996, 0x7bff), // the f32 below the tie
        (65520.0, 0x7c00),   // the tie goes up, to infinity
        (-65520.0, 0xfc00),
        (f32::INFINITY, 0x7c00),
        (f32::NEG_INFINITY, 0xfc00),
        (2049.0, 0x6800),          // ties to even: down
        (2051.0, 0x6802),          // and up
        (6.103_515_6e-5, 0x0400),  // 2^-14, the smallest normal
        (5.960_464_5e-8, 0x0001),  // 2^-24, the smallest
        (2.980_232_2e-8, 0x0000),  // 2^-25, a tie with zero
        (2.980_232_6e-8, 0x0001),  // and the f32 above it
        (-2.980_232_2e-8, 0x8000), // a zero keeps its sign
        (f32::MIN_POSITIVE, 0x0000),
    ];
    for (value, half) in f16_goldens {
        assert_eq!(f16_from_f32(value).to_bits(), half, "{value:e}");
    }
    let bf16_goldens: [(f32, u16); 9] = [
        (1.0, 0x3f80),
        (-0.0, 0x8000),
        (4_311_744_513.0, 0x4f80), // 2^32 + 2^24 + 1, which f32 rounds to the tie
        (3.389_531_4e38, 0x7f7f),  // the largest
        (f32::MAX, 0x7f80),        // rounds to infinity
        (f32::INFINITY, 0x7f80),
        (f32::from_bits(0x0000_8000), 0x0000), // a subnormal tie with zero
        (f32::from_bits(0x0000_8001), 0x0001),
        (f32::from_bits(0x8001_8000), 0x8002),
    ];
    for (value, half) in bf16_goldens {
        assert_eq!(bf16_from_f32(value).to_bits(), half, "{value:e}");
    }
}

#[test]
fn a_nan_keeps_its_upper_payload_and_is_quieted_only_to_stay_a_nan() {
    let goldens: [(u32, u16, u16); 7] = [
        (0x7fc0_0000, 0x7e00, 0x7fc0), // the usual quiet NaN
        (0x7fa0_0000, 0x7d00, 0x7fa0), // signalling, and stays so
        (0xffa0_0000, 0xfd00, 0xffa0),
        (0x7f80_0001, 0x7e00, 0x7fc0), // nothing would be left
        (0xff80_1fff, 0xfe00, 0xffc0),
        (0x7f80_2000, 0x7c01, 0x7fc0), // the last bit that an f16 keeps
        (0x7f81_0000, 0x7c08, 0x7f81), // and the last one of a bf16
    ];
    for (bits, half, brain) in goldens {
        assert_eq!(f32_bits_to_f16_bits(bits), half, "{bits:#010x}");
        assert_eq!(f32_bits_to_bf16_bits(bits), brain, "{bits:#010x}");
    }
}

#[test]
fn conversions_are_constant_expressions() {
    const HALF: f16 = f16_from_f32(0.1);
    const BACK: f32 = bf16_to_f32(bf16_from_f32(0.1));
    assert_eq!(
        HALF.to_bits(),
        f16_from_f32(std::hint::black_box(0.1)).to_bits()
    );
    assert_eq!(BACK.to_bits(), 0x3dcd_0000);
}

/// Every middle between two halves, the f32 on either side, and the halves themselves.
#[test]
fn every_tie_goes_to_even_and_its_neighbours_to_the_nearer_half() {
    for format in [F16, BF16] {
        for half in 0..format.infinity() {
            // Above the largest there is the number that would be next, as far as rounding goes.
            let step =
                format.step(i32::from(format.exponent(half).max(1)) - 1 + format.min_exponent);
            let middle = format.magnitude(half) + step / 2.0;
            let tie = (middle as f32).to_bits();
            assert_eq!(f64::from(f32::from_bits(tie)), middle, "a middle is an f32");
            let even = half + (half & 1);
            for sign in [0, 0x8000] {
                let wide = tie | u32::from(sign) << 16;
                let name = format.name;
                assert_eq!((format.narrow)(wide), sign | even, "{name} {wide:#010x}");
                assert_eq!(
                    (format.narrow)(wide - 1),
                    sign | half,
                    "{name} {wide:#010x} - 1"
                );
                assert_eq!(
                    (format.narrow)(wide + 1),
                    sign | (half + 1),
                    "{name} {wide:#010x} + 1"
                );
            }
        }
    }
}

#[test]
fn a_sweep_with_an_odd_stride_agrees_with_exact_arithmetic() {
    // 4,099 is prime, so a million patterns reach every exponent and every low bit.
    for format in [F16, BF16] {
        for bits in (0..=u32::MAX).step_by(4099) {
            let (found, expected) = ((format.narrow)(bits), format.narrowed(bits));
            assert_eq!(found, expected, "{} {bits:#010x}", format.name);
        }
    }
}

/// All patterns that narrow to one half without sign, by the second model.
fn owned_by(format: &Format, half: u16) -> std::ops::RangeInclusive<u32> {
    let middle_above = |half: u16| {
        let step = format.step(i32::from(format.exponent(half).max(1)) - 1 + format.min_exponent);
        ((format.magnitude(half) + step / 2.0) as f32).to_bits()
    };
    let even = half & 1 == 0;
    let start = if half == 0 {
        0
    } else {
        middle_above(half - 1) + u32::from(!even)
    };
    let end = if half == format.infinity() {
        0x7f80_0000
    } else {
        middle_above(half) - u32::from(!even)
    };
    start..=end
}

fn sweep_everything(format: &Format, sign: u16) -> u64 {
    const CHUNK: usize = 1 << 14;
    let mut swept = 0_u64;
    let mut wide = Vec::with_capacity(CHUNK);
    let mut found = vec![0; CHUNK];
    let mut check = |range: std::ops::RangeInclusive<u32>, expected: &dyn Fn(u32) -> u16| {
        let (mut next, end) = (u64::from(*range.start()), u64::from(*range.end()) + 1);
        while next < end {
            let length = (end - next).min(CHUNK as u64);
            let signed = u32::from(sign) << 16;
            wide.clear();
            wide.extend((next..next + length).map(|bits| f32::from_bits(bits as u32 | signed)));
            (format.narrow_all)(&wide, &mut found[..wide.len()]);
            for (value, &found) in wide.iter().zip(&found) {
                let bits = value.to_bits();
                let expected = sign | expected(bits & 0x7fff_ffff);
                assert_eq!(found, expected, "{} {bits:#010x}", format.name);
                assert_eq!(
                    (format.narrow)(bits),
                    expected,
                    "{} {bits:#010x}",
                    format.name
                );
            }
            next += length;
            swept += length;
        }
    };
    for half in 0..=format.infinity() {
        check(owned_by(format, half), &|_| half);
    }
    check(0x7f80_0001..=0x7fff_ffff, &|bits| format.narrowed(bits));
    swept
}

/// Each sweep covers every pattern of its sign exactly once, which the count shows.
#[test]
fn all_f32_patterns_narrow_exactly() {
    if std::env::var_os("TENSLAB_LONG").is_none_or(|long| long != "1") {
        eprintln!("skipped: 2^32 patterns, twice; set TENSLAB_LONG=1 (and use --release)");
        return;
    }
    std::thread::scope(|scope| {
        for sign in [0, 0x8000] {
            scope.spawn(move || {
                for format in [F16, BF16] {
                    let begun = std::time::Instant::now();
                    assert_eq!(sweep_everything(&format, sign), 1 << 31);
                    let (name, took) = (format.name, begun.elapsed());
                    eprintln!("{name}, sign {sign:#06x}: 2^31 patterns in {took:.1?}");
                }
            });
        }
    });
}
