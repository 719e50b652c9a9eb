//! All 2^32 `f32` patterns, narrowed to both half formats on every code path.
//!
//! ```text
//!   0 ..= 2^25 … | 0x0000 |   each half owns a range of patterns, from the middle below
//!   …            | 0x0001 |   to the middle above; all of them must narrow to it
//!   …            |   …    |
//!   infinity     | 0x7c00 |
//!   NaN            payload    by the other model
//! ```
//!
//! Needs a release build and about half a minute of two cores, so it runs where
//! `TENSLAB_LONG=1`: in the lane `sweep` of `.ci/run`.
#![cfg(not(loom))]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

use std::ops::RangeInclusive;

use tenslab::types::half::CodePath;

mod half_model;

use half_model::{BF16, F16, Format};

const CHUNK: usize = 1 << 14;

/// The patterns of one sign, chunk by chunk.
struct Sweep<'a> {
    format: &'a Format,
    sign: u16,
    wide: Vec<f32>,
    found: Vec<u16>,
    swept: u64,
}

impl Sweep<'_> {
    /// Narrows the patterns of `range` on every path. `expected` fills in what each chunk
    /// of patterns, whose first is given, should become.
    fn check(&mut self, range: RangeInclusive<u32>, expected: &mut dyn FnMut(u32, &mut [u16])) {
        let mut wanted = vec![0; CHUNK];
        let (mut next, end) = (u64::from(*range.start()), u64::from(*range.end()) + 1);
        while next < end {
            let length = (end - next).min(CHUNK as u64) as usize;
            let first = next as u32 | u32::from(self.sign) << 16;
            let (wide, wanted) = (&mut self.wide[..length], &mut wanted[..length]);
            for (bits, wide) in (first..).zip(wide.iter_mut()) {
                *wide = f32::from_bits(bits);
            }
            expected(next as u32, wanted);
            for half in wanted.iter_mut() {
                *half |= self.sign;
            }
            for path in CodePath::available() {
                let found = &mut self.found[..length];
                (self.format.narrow_all)(path, wide, found);
                same(self.format, path.name(), wide, found, wanted);
            }
            let found = &mut self.found[..length];
            for (found, value) in found.iter_mut().zip(wide.iter()) {
                *found = (self.format.narrow)(value.to_bits());
            }
            same(self.format, "one by one", wide, found, wanted);
            next += length as u64;
            self.swept += length as u64;
        }
    }
}

fn same(format: &Format, path: &str, wide: &[f32], found: &[u16], wanted: &[u16]) {
    if found == wanted {
        return;
    }
    for ((value, found), wanted) in wide.iter().zip(found).zip(wanted) {
        let (name, bits) = (format.name, value.to_bits());
        assert_eq!(found, wanted, "{name} {bits:#010x} {path}");
    }
}

fn sweep_everything(format: &Format, sign: u16) -> u64 {
    let mut sweep = Sweep {
        format,
        sign,
        wide: vec![0.0; CHUNK],
        found: vec![0; CHUNK],
        swept: 0,
    };
    for half in 0..=format.infinity() {
        sweep.check(format.owned_by(half), &mut |_, wanted| wanted.fill(half));
    }
    sweep.check(0x7f80_0001..=0x7fff_ffff, &mut |first, wanted| {
        for (bits, wanted) in (first..).zip(wanted) {
            *wanted = format.narrowed(bits);
        }
    });
    sweep.swept
}

/// Each sweep covers every pattern of its sign exactly once, which the count shows.
#[test]
fn all_f32_patterns_narrow_exactly_on_every_path() {
    if std::env::var_os("TENSLAB_LONG").is_none_or(|long| long != "1") {
        eprintln!("skipped: 2^32 patterns, twice; set TENSLAB_LONG=1 (and use --release)");
        return;
    }
    let paths: Vec<_> = CodePath::available().map(CodePath::name).collect();
    std::thread::scope(|scope| {
        for sign in [0, 0x8000] {
            let paths = &paths;
            scope.spawn(move || {
                for format in [F16, BF16] {
                    let begun = std::time::Instant::now();
                    assert_eq!(sweep_everything(&format, sign), 1 << 31);
                    let (name, took) = (format.name, begun.elapsed());
                    eprintln!("{name}, sign {sign:#06x}: 2^31 patterns in {took:.1?}, {paths:?}");
                }
            });
        }
    });
}
