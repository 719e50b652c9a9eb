//! Slices of `f32` and halves on every code path that this CPU has.
//!
//! ```text
//!   patterns   all 65,536 of both widen, and come back; a sweep with a stride narrows
//!   NaNs       one at each place of a block, signalling or quiet, and in all places
//!   places     any length, any offset of either side: all and only the elements asked for
//! ```
//!
//! What is expected is what one value alone becomes, which `half.rs` holds against
//! exact arithmetic.
#![cfg(not(loom))]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

use std::collections::HashSet;

use tenslab::types::half::{CodePath, narrow_bf16, narrow_f16, widen_bf16, widen_f16};
use tenslab::{bf16, f16};

mod half_model;

use half_model::{BF16, F16};

/// Elements that a block of the SIMD paths holds.
const BLOCK: usize = 32;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn the_path_is_chosen_by_the_cpu_and_the_length() {
    let paths: Vec<CodePath> = CodePath::available().collect();
    assert_eq!(paths[0], CodePath::PORTABLE);
    let names: HashSet<_> = paths.iter().map(|path| path.name()).collect();
    assert_eq!(names.len(), paths.len());
    let (short, long) = (CodePath::for_elements(0), CodePath::for_elements(1 << 30));
    assert!(paths.contains(&short) && paths.contains(&long));
    assert_eq!(short, CodePath::for_elements(64 << 10));
    #[cfg(all(target_arch = "x86_64", not(tenslab_portable)))]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        assert!(short.name().starts_with("avx"), "{}", short.name());
        assert_eq!(long.name(), format!("{} around the cache", short.name()));
        assert!(paths.len() >= 3);
    }
    #[cfg(tenslab_portable)]
    assert_eq!(paths, [CodePath::PORTABLE]);
}

#[test]
fn every_pattern_widens_and_comes_back_on_every_path() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for format in [F16, BF16] {
        let expected: Vec<u32> = all.iter().map(|&half| (format.widen)(half)).collect();
        for path in CodePath::available() {
            let (mut wide, mut back) = (vec![0.0; all.len()], vec![0; all.len()]);
            (format.widen_all)(path, &all, &mut wide);
            assert!(bits(&wide) == expected, "{} {}", format.name, path.name());
            (format.narrow_all)(path, &wide, &mut back);
            assert!(back == all, "{} {} back", format.name, path.name());
        }
    }
}

#[test]
fn the_plain_functions_do_what_the_paths_do() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = all.iter().copied().map(f16::from_bits).collect();
    let brains: Vec<bf16> = all.iter().copied().map(bf16::from_bits).collect();
    let mut wide = vec![0.0; all.len()];

    let mut back = vec![f16::ZERO; all.len()];
    widen_f16(&halves, &mut wide);
    narrow_f16(&wide, &mut back);
    assert!(
        wide.iter()
            .zip(&all)
            .all(|(wide, &half)| wide.to_bits() == (F16.widen)(half))
    );
    assert!(
        back.iter()
            .zip(&all)
            .all(|(back, &half)| back.to_bits() == half)
    );

    let mut back = vec![bf16::ZERO; all.len()];
    widen_bf16(&brains, &mut wide);
    narrow_bf16(&wide, &mut back);
    assert!(
        wide.iter()
            .zip(&all)
            .all(|(wide, &half)| wide.to_bits() == (BF16.widen)(half))
    );
    assert!(
        back.iter()
            .zip(&all)
            .all(|(back, &half)| back.to_bits() == half)
    );
}

/// A million patterns that reach every exponent; neighbours differ, so that blocks are
/// mixed: 4,099 is prime.
#[test]
fn a_sweep_with_an_odd_stride_narrows_alike_on_every_path() {
    let patterns: Vec<u32> = (0..=u32::MAX).step_by(4099).collect();
    let wide: Vec<f32> = patterns.iter().copied().map(f32::from_bits).collect();
    for format in [F16, BF16] {
        let expected: Vec<u16> = patterns.iter().map(|&bits| (format.narrow)(bits)).collect();
        for path in CodePath::available() {
            let mut found = vec![0; wide.len()];
            (format.narrow_all)(path, &wide, &mut found);
            assert!(found == expected, "{} {}", format.name, path.name());
        }
    }
}

/// Every `f32` that is a middle between two halves or beside one: ties, side by side.
#[test]
fn every_tie_and_its_neighbours_narrow_alike_on_every_path() {
    for format in [F16, BF16] {
        let mut wide = Vec::new();
        let mut expected = Vec::new();
        for half in 0..format.infinity() {
            let last = *format.owned_by(half).end();
            for sign in [0, 0x8000] {
                for (bits, half) in [(last, half), (last + 1, half + 1)] {
                    wide.push(f32::from_bits(bits | u32::from(sign) << 16));
                    expected.push(half | sign);
                }
            }
        }
        for path in CodePath::available() {
            let mut found = vec![0; wide.len()];
            (format.narrow_all)(path, &wide, &mut found);
            assert!(found == expected, "{} {}", format.name, path.name());
        }
    }
}

#[test]
fn a_nan_at_any_place_of_a_block_keeps_its_bits_and_its_neighbours() {
    for format in [F16, BF16] {
        let signalling = format.infinity() | 1;
        let quiet_negative = format.infinity() | 0x8000 | 1 << (format.mantissa_bits - 1);
        for nan in [signalling, quiet_negative] {
            for place in 0..2 * BLOCK {
                let mut halves: Vec<u16> = (0..2 * BLOCK as u16).map(|i| 0x3c00 + i).collect();
                halves[place] = nan;
                let expected: Vec<u32> = halves.iter().map(|&h| (format.widen)(h)).collect();
                for path in CodePath::available() {
                    let name = format!("{} {} {nan:#x} at {place}", format.name, path.name());
                    let (mut wide, mut back) = ([0.0; 2 * BLOCK], [0; 2 * BLOCK]);
                    (format.widen_all)(path, &halves, &mut wide);
                    assert!(bits(&wide) == expected, "{name}");
                    (format.narrow_all)(path, &wide, &mut back);
                    assert!(back.as_slice() == halves, "{name}, back");
                }
            }
        }
    }
}

/// Rounding such a pattern as a number would carry into its sign.
#[test]
fn a_slice_of_nothing_but_nans_narrows_alike_on_every_path() {
    let patterns: Vec<u32> = (0x7f80_0001..=0x7fff_ffff_u32)
        .step_by(977)
        .chain([0x7fff_ffff])
        .flat_map(|bits| [bits, bits | 0x8000_0000])
        .collect();
    let wide: Vec<f32> = patterns.iter().copied().map(f32::from_bits).collect();
    for format in [F16, BF16] {
        let expected: Vec<u16> = patterns.iter().map(|&bits| format.narrowed(bits)).collect();
        for path in CodePath::available() {
            let mut found = vec![0; wide.len()];
            (format.narrow_all)(path, &wide, &mut found);
            assert!(found == expected, "{} {}", format.name, path.name());
        }
    }
}

#[test]
fn any_length_at_any_offset_touches_all_and_only_its_elements() {
    const CANARY: u16 = 0xdead;
    let from: Vec<f32> = (0..200_u32)
        .map(|i| f32::from_bits(i.wrapping_mul(0x0123_4567)))
        .collect();
    for format in [F16, BF16] {
        let expected: Vec<u16> = from.iter().map(|v| (format.narrow)(v.to_bits())).collect();
        for path in CodePath::available() {
            for length in (0..=2 * BLOCK + 3).chain([100, 127, 128, 129]) {
                for (skip, at) in [(0, 0), (0, 1), (1, 0), (3, 7), (5, 16), (2, 31), (7, 33)] {
                    let name = format!("{} {} {length} {skip} {at}", format.name, path.name());
                    let mut to = vec![CANARY; at + length + 2];
                    (format.narrow_all)(path, &from[skip..][..length], &mut to[at..][..length]);
                    assert!(to[..at].iter().all(|&half| half == CANARY), "{name}");
                    assert_eq!(to[at..][..length], expected[skip..][..length], "{name}");
                    assert_eq!(to[at + length..], [CANARY; 2], "{name}");

                    let mut wide = vec![-7.0; skip + length + 2];
                    let halves = &to[at..][..length];
                    (format.widen_all)(path, halves, &mut wide[skip..][..length]);
                    let widened: Vec<u32> = halves.iter().map(|&h| (format.widen)(h)).collect();
                    assert!(wide[..skip].iter().all(|&value| value == -7.0), "{name}");
                    assert_eq!(bits(&wide[skip..][..length]), widened, "{name}");
                    assert_eq!(wide[skip + length..], [-7.0; 2], "{name}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "3 elements cannot fill 2")]
fn slices_want_equal_lengths() {
    narrow_bf16(&[0.0; 3], &mut [bf16::ZERO; 2]);
}

#[test]
#[should_panic(expected = "2 elements cannot fill 3")]
fn a_longer_target_is_refused_too() {
    CodePath::PORTABLE.widen_f16(&[f16::ZERO; 2], &mut [0.0; 3]);
}
