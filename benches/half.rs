//! Slices between `f32` and the half formats, beside the `half` crate's functions and
//! beside `memcpy`.
//!
//! One unit is one element. A size is that of the `f32` side; the halves add half of it.
//! `memcpy` moves as many bytes as the conversion does, reads and writes together: three
//! for each element. With two threads each has its own half of the elements, and the
//! slower one counts.
//!
//! Everything in a table is timed in turns, one run of each after the other, and each
//! ratio is of two neighbours: a machine that slows down slows both. A ratio above 1 says
//! that ours is faster; the least and the median of all rounds are shown. `*` marks the
//! path that the plain functions take for the slice that one thread converts.
//!
//! The data has no NaN, so that the `half` crate gives the same bits, which is checked. It
//! quiets signalling NaNs, ours keeps them. Blocks of 32 with a NaN are the slow way here:
//! the last table has one in every block.
//!
//! `cargo bench --bench half -- 256 262144` runs only those sizes, in KiB.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a table is what it is for, and figures are rounded anyway"
)]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use half::slice::HalfFloatSliceExt;
use tenslab::types::half::CodePath;
use tenslab::{bf16, f16};

/// 256 KiB are in the cache and 256 MiB are not; what is between shows from where on
/// stores around the cache pay.
const KIB: [usize; 6] = [256, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 256 << 10];

/// What a thread converts, and what `memcpy` copies meanwhile.
struct Side {
    wide: Vec<f32>,
    half: Vec<f16>,
    brain: Vec<bf16>,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Side {
    fn new(elements: usize, nan_every: usize) -> Side {
        let value = |i: usize| match nan_every {
            0 => (i % 16_000) as f32 * 0.37 - 3000.0,
            every if i.is_multiple_of(every) => f32::NAN,
            _ => 1.5,
        };
        let mut side = Side {
            wide: (0..elements).map(value).collect(),
            half: vec![f16::ZERO; elements],
            brain: vec![bf16::ZERO; elements],
            from: vec![1; elements * 3],
            to: vec![2; elements * 3],
        };
        CodePath::PORTABLE.narrow_f16(&side.wide, &mut side.half);
        CodePath::PORTABLE.narrow_bf16(&side.wide, &mut side.brain);
        side
    }
}

/// One conversion, by us on a path, or by `half` where there is none.
struct Conversion {
    name: &'static str,
    run: fn(Option<CodePath>, &mut Side),
}

const CONVERSIONS: [Conversion; 4] = [
    Conversion {
        name: "f32 -> f16",
        run: |path, side| match path {
            Some(path) => path.narrow_f16(black_box(&side.wide), &mut side.half),
            None => side.half.convert_from_f32_slice(black_box(&side.wide)),
        },
    },
    Conversion {
        name: "f16 -> f32",
        run: |path, side| match path {
            Some(path) => path.widen_f16(black_box(&side.half), &mut side.wide),
            None => black_box(&side.half).convert_to_f32_slice(&mut side.wide),
        },
    },
    Conversion {
        name: "f32 -> bf16",
        run: |path, side| match path {
            Some(path) => path.narrow_bf16(black_box(&side.wide), &mut side.brain),
            None => side.brain.convert_from_f32_slice(black_box(&side.wide)),
        },
    },
    Conversion {
        name: "bf16 -> f32",
        run: |path, side| match path {
            Some(path) => path.widen_bf16(black_box(&side.brain), &mut side.wide),
            None => black_box(&side.brain).convert_to_f32_slice(&mut side.wide),
        },
    },
];

fn memcpy(side: &mut Side) {
    side.to.copy_from_slice(black_box(&side.from));
}

/// Seconds of the slower thread for `repeats` runs of `work`, each on its own side.
fn timed(sides: &mut [Side], repeats: usize, work: &(impl Fn(&mut Side) + Sync)) -> f64 {
    let start = Barrier::new(sides.len());
    let run = |side: &mut Side| {
        work(side);
        start.wait();
        let begun = Instant::now();
        for _ in 0..repeats {
            work(side);
        }
        begun.elapsed()
    };
    let slowest = match sides {
        [side] => run(side),
        sides => std::thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> = sides
                .iter_mut()
                .map(|side| scope.spawn(move || run(side)))
                .collect();
            let times = threads.into_iter().map(|thread| thread.join().unwrap());
            times.max().unwrap_or(Duration::ZERO)
        }),
    };
    slowest.as_secs_f64()
}

fn least_and_median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2])
}

/// All paths of one conversion; `elements` of all threads together.
fn table(conversion: &Conversion, sides: &mut [Side], elements: usize, rounds: usize) {
    let repeats = ((8 << 20) / elements).max(1);
    let per_thread = elements / sides.len();
    for path in CodePath::available() {
        let (mut to_half, mut to_memcpy, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let half = timed(sides, repeats, &|side| (conversion.run)(None, side));
            let ours = timed(sides, repeats, &|side| (conversion.run)(Some(path), side));
            let memcpy = timed(sides, repeats, &memcpy);
            to_half.push(half / ours);
            to_memcpy.push(memcpy / ours);
            rates.push(-((elements * repeats) as f64) / ours / 1e9);
        }
        let (rate, _) = least_and_median(rates);
        let (half, memcpy) = (least_and_median(to_half), least_and_median(to_memcpy));
        let chosen = path == CodePath::for_elements(per_thread);
        println!(
            "{} {:<12} {:<24} {:>6.2} {:>8.2} {:>6.2} {:>8.2} {:>6.2}",
            if chosen { '*' } else { ' ' },
            conversion.name,
            path.name(),
            -rate,
            half.0,
            half.1,
            memcpy.0,
            memcpy.1
        );
    }
}

fn heading(what: &str) {
    println!("\n{what}");
    println!("  {:<37} Gelem/s  over half: min, median   over memcpy", "");
}

/// Each path gives the bits that `half` gives.
fn check(side: &mut Side) {
    for conversion in &CONVERSIONS {
        (conversion.run)(None, side);
        let bits = |side: &Side| -> (Vec<u32>, Vec<u16>, Vec<u16>) {
            (
                side.wide.iter().map(|value| value.to_bits()).collect(),
                side.half.iter().map(|value| value.to_bits()).collect(),
                side.brain.iter().map(|value| value.to_bits()).collect(),
            )
        };
        let theirs = bits(side);
        for path in CodePath::available() {
            (conversion.run)(Some(path), side);
            let (name, path) = (conversion.name, path.name());
            assert!(bits(side) == theirs, "{name} {path}: other bits than half");
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let test = args.iter().any(|arg| arg == "--test");
    let asked: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let sizes = match asked.as_slice() {
        [] if test => &[64][..],
        [] => &KIB,
        asked => asked,
    };
    check(&mut Side::new(5000, 0));
    for &kib in sizes {
        let elements = kib * 1024 / 4;
        let rounds = match kib {
            _ if test => 1,
            ..8192 => 31,
            _ => 9,
        };
        for threads in [1, 2] {
            let mut sides: Vec<Side> = (0..threads)
                .map(|_| Side::new(elements / threads, 0))
                .collect();
            heading(&format!("{kib} KiB of f32, {threads} threads"));
            for conversion in &CONVERSIONS {
                table(conversion, &mut sides, elements, rounds);
            }
        }
    }
    heading("64 KiB of f32, 1 thread, a NaN in every 32");
    let mut side = [Side::new(16 << 10, 32)];
    for conversion in &CONVERSIONS {
        table(conversion, &mut side, 16 << 10, if test { 1 } else { 31 });
    }
}
