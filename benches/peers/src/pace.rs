//! Repeats an operation for a slice of time, and writes down how long each batch took.
//!
//! A look at the clock costs about 29 ns, so operations are timed in batches of at least
//! [`BATCH`]: the clock is then below 1 % of it. What is kept is the mean of each batch. A
//! slow single operation in a batch of a hundred shows in that batch's mean a hundredth as
//! much; operations slower than [`BATCH`] are timed one by one.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A batch takes at least this long.
pub const BATCH: Duration = Duration::from_micros(5);

/// Where a batch that is never long enough stops growing.
const MOST_CALLS: u64 = 1 << 16;

/// How long a thread goes on, and what it has measured.
pub struct Pace<'s> {
    calls: u64,
    until: Instant,
    adapts: bool,
    quiet: bool,
    ops: u64,
    samples: &'s mut Vec<u64>,
}

impl<'s> Pace<'s> {
    /// Finds out how many calls make a batch, for `time`, and keeps no sample.
    pub fn warming(time: Duration, samples: &'s mut Vec<u64>) -> Self {
        Self {
            calls: 1,
            until: Instant::now() + time,
            adapts: true,
            quiet: true,
            ops: 0,
            samples,
        }
    }

    /// Measures for `time`, in batches of `calls`. `quiet` keeps no sample.
    pub fn measuring(time: Duration, calls: u64, quiet: bool, samples: &'s mut Vec<u64>) -> Self {
        Self {
            calls,
            until: Instant::now() + time,
            adapts: false,
            quiet,
            ops: 0,
            samples,
        }
    }

    /// Calls in a batch.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Operations in whole batches so far.
    pub fn ops(&self) -> u64 {
        self.ops
    }

    /// When the slice ends: whoever waits for another thread gives up then.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Keeps nothing of this thread: another one counts the operations that it is part of.
    pub fn mute(&mut self) {
        self.quiet = true;
    }

    /// Calls `step` until the slice is over, at least one batch. Each call is `weight`
    /// operations. A step that breaks ends the slice, and its batch is not counted.
    pub fn run(&mut self, weight: u64, mut step: impl FnMut() -> ControlFlow<()>) {
        let mut began = Instant::now();
        loop {
            for _ in 0..self.calls {
                if step().is_break() {
                    return;
                }
            }
            let ended = Instant::now();
            let took = ended - began;
            self.keep(took, self.calls * weight);
            if ended >= self.until {
                return;
            }
            if self.adapts && took < BATCH && self.calls < MOST_CALLS {
                self.calls *= 2;
            }
            began = Instant::now();
        }
    }

    /// As [`run`](Pace::run), for a step that looks at the clock itself: it says how long
    /// its `weight` operations took. Each call is a batch.
    pub fn run_timed(&mut self, weight: u64, mut step: impl FnMut() -> Duration) {
        loop {
            let took = step();
            self.keep(took, weight);
            if Instant::now() >= self.until {
                return;
            }
        }
    }

    fn keep(&mut self, took: Duration, ops: u64) {
        self.ops += ops;
        if !self.quiet {
            let picoseconds = took.as_nanos() * 1000 / u128::from(ops);
            self.samples
                .push(u64::try_from(picoseconds).unwrap_or(u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_grows_until_it_is_long_enough_and_counts_its_operations() {
        let mut samples = Vec::new();
        let mut calls = 0_u64;
        let mut pace = Pace::warming(Duration::from_millis(5), &mut samples);
        pace.run(3, || {
            calls += 1;
            ControlFlow::Continue(())
        });
        assert!(pace.calls() > 1);
        assert_eq!(pace.ops(), calls * 3);
        assert!(samples.is_empty(), "warming up keeps no sample");
    }

    #[test]
    fn a_broken_batch_is_not_counted() {
        let mut samples = Vec::new();
        let mut calls = 0;
        let mut pace = Pace::measuring(Duration::from_secs(3600), 4, false, &mut samples);
        pace.run(1, || {
            calls += 1;
            if calls == 10 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert_eq!(pace.ops(), 8);
        assert_eq!(samples.len(), 2);
    }
}
