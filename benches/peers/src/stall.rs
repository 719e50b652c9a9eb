//! `trim/…`: does somebody who gives a gibibyte back hold up those who allocate?
//!
//! ```text
//!   thread 0   take, give, take, give, …            each pair looks at the clock
//!   thread 1   take 1 GiB, touch it │ give it back, trim │ again
//!                       quiet       │      trimming      │
//! ```
//!
//! A pair counts as quiet or as trimming if it was that from beginning to end. What two
//! looks at the clock cost, measured before, is taken off each sample: else it would be
//! the larger part of the median, and flatter the tail.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::contender::{Contender, Hand, Shape, touch};
use crate::report::{MIB, size};
use crate::solo::{Figures, Task};
use crate::system;

/// Bytes of a block that comes and goes.
const DIRTY_BLOCK_BYTES: usize = 16 * MIB;

/// Neither counts: the state has just changed, or it was never said.
const NEITHER: u8 = 0;
const QUIET: u8 = 1;
const TRIMMING: u8 = 2;

/// Pairs of one size while another thread trims.
pub struct Stall {
    /// Bytes of a pair's block.
    pub bytes: usize,
    /// Bytes that come and go in a round.
    pub dirty_bytes: usize,
    /// How often they do.
    pub rounds: usize,
    /// The threads' cores.
    pub cores: Vec<usize>,
}

impl Task for Stall {
    fn name(&self) -> String {
        format!("trim/{}", size(self.bytes).replace(' ', ""))
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes.max(DIRTY_BLOCK_BYTES),
            blocks: 2 + self.dirty_bytes / DIRTY_BLOCK_BYTES,
        }
    }

    fn measure<C: Contender>(&self, make: impl FnOnce() -> C) -> Figures {
        let contender = make();
        let state = AtomicU8::new(NEITHER);
        let over = AtomicBool::new(false);
        let cost = cost_of_the_clock();
        let (quiet, trimming, trims) = thread::scope(|scope| {
            let pairs = scope.spawn(|| {
                system::pin(&self.cores, 0);
                self.pairs(&contender, &state, &over, cost)
            });
            system::pin(&self.cores, 1);
            let trims: Vec<_> = (0..self.rounds)
                .map(|_| dirty_and_trim(&contender, &state, self.dirty_bytes))
                .collect();
            // Relaxed: nothing but itself is read after it.
            over.store(true, Ordering::Relaxed);
            let (quiet, trimming) = pairs.join().expect("no thread panics here");
            (quiet, trimming, trims)
        });
        let ns =
            |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64;
        let (p50, p99) = (ns(&trimming, 0.50).max(1.0), ns(&trimming, 0.99));
        let (took, gone): (Vec<_>, Vec<_>) = trims.into_iter().unzip();
        let rounds = self.rounds as f64;
        Figures::from([
            ("quiet_p50_ns".to_owned(), ns(&quiet, 0.50)),
            ("quiet_p99_ns".to_owned(), ns(&quiet, 0.99)),
            ("p50_ns".to_owned(), p50),
            ("p99_ns".to_owned(), p99),
            ("p99_ratio".to_owned(), p99 / p50),
            ("max_ns".to_owned(), trimming.max() as f64),
            ("pairs".to_owned(), trimming.len() as f64),
            (
                "trim_ns".to_owned(),
                took.iter().sum::<Duration>().as_nanos() as f64 / rounds,
            ),
            (
                "gone_bytes".to_owned(),
                gone.iter().sum::<i64>() as f64 / rounds,
            ),
        ])
    }
}

impl Stall {
    /// The samples of pairs: quiet, and trimming.
    fn pairs<C: Contender>(
        &self,
        contender: &C,
        state: &AtomicU8,
        over: &AtomicBool,
        cost: u64,
    ) -> (Histogram<u64>, Histogram<u64>) {
        let histogram = || Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("bounds");
        let (mut quiet, mut trimming) = (histogram(), histogram());
        let mut hand = contender.hand();
        // Relaxed here and below: a sample near a change is dropped, whenever it is seen.
        while !over.load(Ordering::Relaxed) {
            let before = state.load(Ordering::Relaxed);
            let began = Instant::now();
            let held = hand.take(black_box(self.bytes));
            black_box(C::Hand::start(&held));
            hand.give(held);
            let took = began.elapsed();
            let after = state.load(Ordering::Relaxed);
            let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let ns = ns.saturating_sub(cost).max(1);
            match (before, after) {
                (QUIET, QUIET) => quiet.saturating_record(ns),
                (TRIMMING, TRIMMING) => trimming.saturating_record(ns),
                _ => {}
            }
        }
        (quiet, trimming)
    }
}

/// How long giving back and trimming took, and by how much memory shrank.
fn dirty_and_trim<C: Contender>(contender: &C, state: &AtomicU8, bytes: usize) -> (Duration, i64) {
    let mut hand = contender.hand();
    state.store(QUIET, Ordering::Relaxed);
    let all: Vec<_> = (0..bytes / DIRTY_BLOCK_BYTES)
        .map(|_| {
            let held = hand.take(DIRTY_BLOCK_BYTES);
            touch::<C::Hand<'_>>(&held, DIRTY_BLOCK_BYTES);
            held
        })
        .collect();
    state.store(NEITHER, Ordering::Relaxed);
    let before = system::resident_bytes();
    state.store(TRIMMING, Ordering::Relaxed);
    let began = Instant::now();
    all.into_iter().for_each(|held| hand.give(held));
    contender.trim();
    let took = began.elapsed();
    state.store(NEITHER, Ordering::Relaxed);
    (took, before - system::resident_bytes())
}

/// Nanoseconds between two looks at the clock with nothing between them: the median.
fn cost_of_the_clock() -> u64 {
    let mut samples: Vec<_> = (0..10_001)
        .map(|_| {
            let began = Instant::now();
            began.elapsed()
        })
        .collect();
    samples.sort_unstable();
    u64::try_from(samples[samples.len() / 2].as_nanos()).unwrap_or(0)
}
