//! `f32` to and from the half formats, one value at a time, bit by bit.
//!
//! ```text
//!   widen     all 65,536 patterns of both, against real numbers built from the fields
//!   narrow    goldens, every tie and its neighbours, a sweep with a stride
//!   NaN       payload cut to what fits; the quiet bit only where nothing would be left
//!   f64       through f32, rounded twice, and the same NaN rule
//! ```
//!
//! The models are in `half_model`; slices and their code paths in `half_paths.rs`, all
//! 2^32 patterns in `half_sweep.rs`.
#![cfg(not(loom))]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a test cuts numbers that it made to fit, and rounding is the point"
)]

use tenslab::types::half::{
    bf16_from_f32, bf16_from_f64, bf16_to_f32, f16_from_f32, f16_from_f64, f16_to_f32,
    f32_bits_to_bf16_bits, f32_bits_to_f16_bits, f32_bits_to_f64_bits, f64_to_f32_bits,
};
use tenslab::{bf16, f16};

mod half_model;

use half_model::{BF16, F16};

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
fn typed_conversions_move_the_same_bits() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        assert_eq!(f16_to_f32(half).to_bits(), (F16.widen)(bits));
        assert_eq!(bf16_to_f32(brain).to_bits(), (BF16.widen)(bits));
        assert_eq!(f16_from_f32(f16_to_f32(half)).to_bits(), bits);
        assert_eq!(bf16_from_f32(bf16_to_f32(brain)).to_bits(), bits);
    }
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

/// The contract narrows a double through float, and so rounds twice.
#[test]
fn a_double_narrows_through_float() {
    let f16_goldens: [(f64, u16); 6] = [
        (65_519.999_999_999, 0x7c00), // the tie with infinity, once it is an f32
        (65_519.99, 0x7bff),
        (1.0 + 1.0 / 2048.0 + 1.0 / (1_u64 << 40) as f64, 0x3c00), // 0x3c01 rounded once
        (1e300, 0x7c00),
        (-1e-300, 0x8000),
        (f64::NEG_INFINITY, 0xfc00),
    ];
    for (value, half) in f16_goldens {
        assert_eq!(f16_from_f64(value).to_bits(), half, "{value:e}");
    }
    assert_eq!(bf16_from_f64(1e39).to_bits(), 0x7f80);
}

#[test]
fn an_integer_narrows_through_double_and_float() {
    for (value, half) in [(2049_i64, 0x6800), (65_519, 0x7bff), (65_520, 0x7c00)] {
        assert_eq!(f16_from_f64(value as f64).to_bits(), half, "{value}");
    }
    let bf16_goldens: [(i64, u16); 4] = [
        (4_311_744_513, 0x4f80), // 2^32 + 2^24 + 1; 0x4f81 rounded once
        (4_328_521_728, 0x4f81),
        (i64::MAX, 0x5f00),
        (i64::MIN, 0xdf00),
    ];
    for (value, brain) in bf16_goldens {
        assert_eq!(bf16_from_f64(value as f64).to_bits(), brain, "{value}");
    }
    assert_eq!(bf16_from_f64(u64::MAX as f64).to_bits(), 0x5f80);
}

#[test]
fn a_nan_double_keeps_its_upper_payload_too() {
    let goldens: [(u64, u32); 6] = [
        (0x7ff8_0000_0000_0000, 0x7fc0_0000),
        (0xfff4_0000_0000_0000, 0xffa0_0000), // signalling, and stays so
        (0x7ff0_0000_2000_0000, 0x7f80_0001), // the last bit that an f32 keeps
        (0x7ff0_0000_1fff_ffff, 0x7fc0_0000), // nothing would be left
        (0xfff0_0000_0000_0001, 0xffc0_0000),
        (0x7fff_ffff_ffff_ffff, 0x7fff_ffff),
    ];
    for (bits, narrow) in goldens {
        assert_eq!(f64_to_f32_bits(f64::from_bits(bits)), narrow, "{bits:#x}");
    }
    assert_eq!(
        f16_from_f64(f64::from_bits(0x7ff4_0000_0000_0000)).to_bits(),
        0x7d00
    );
}

/// And widening to double is exact, so the way through double changes no pattern: the
/// hardware's way would quiet 1,022 and 126 of the halves' NaNs.
#[test]
fn the_hop_over_double_loses_nothing() {
    let back = |wide: u32| f64_to_f32_bits(f64::from_bits(f32_bits_to_f64_bits(wide)));
    for format in [F16, BF16] {
        for half in 0..=u16::MAX {
            let wide = (format.widen)(half);
            assert_eq!(
                (format.narrow)(back(wide)),
                half,
                "{} {half:#x}",
                format.name
            );
        }
    }
    for bits in (0..=u32::MAX).step_by(4099) {
        assert_eq!(back(bits), bits, "{bits:#010x}");
        let value = f32::from_bits(bits);
        if !value.is_nan() {
            let wide = f64::from_bits(f32_bits_to_f64_bits(bits));
            assert_eq!(wide.to_bits(), f64::from(value).to_bits(), "{bits:#010x}");
        }
    }
}
