//! The threads that share the products of a step.
//!
//! ```text
//!   rows   | part 0 | part 1 | part 2 | part 3 |     one part, one thread
//!            worker 0  takes what is left    worker 1
//! ```
//!
//! Work is cut at whole rows, and a row is computed by whoever takes its part, in
//! the one order that [`kernels`](crate::kernels) promise. So the number of threads,
//! and who took what, cannot be seen in the results.
//!
//! The whole run happens inside [`Team::run`]: a `join` made by a worker of the
//! pool keeps its job on the stack, so a step makes no heap block here.

use rayon::{ThreadPool, ThreadPoolBuilder, join};

use crate::trouble::Trouble;

/// Parts for each thread: enough that one who is late can be helped out.
const PARTS_PER_THREAD: usize = 4;

/// What a part should cost at least, in multiplications: some 4 us of work, as
/// handing a part to another thread costs about 1.
const PART_COST: usize = 32 << 10;

/// A fixed number of threads.
#[derive(Debug)]
pub(crate) struct Team {
    threads: usize,
    /// None: the caller's thread alone.
    pool: Option<ThreadPool>,
}

impl Team {
    /// A team of `threads` (at least one).
    ///
    /// # Errors
    ///
    /// When the system refuses to start a thread.
    pub(crate) fn new(threads: usize) -> Result<Self, Trouble> {
        let pool = (threads > 1)
            .then(|| ThreadPoolBuilder::new().num_threads(threads).build())
            .transpose()
            .map_err(|error| {
                Trouble::new(format!(
                    "cannot start {threads} threads: {error}; ask for fewer"
                ))
            })?;
        if let Some(pool) = &pool {
            // A thread makes two heap blocks when it first looks for work with the others. On a
            // busy machine that may be late, in the middle of a decode step; so they look now.
            pool.broadcast(|_| rayon::yield_now());
        }
        Ok(Self { threads, pool })
    }

    /// How many threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on a thread of the team.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Runs both, at the same time if there is a second thread.
    ///
    /// # Errors
    ///
    /// The first error of the two.
    pub(crate) fn both(
        &self,
        one: impl FnOnce() -> Result<(), Trouble> + Send,
        other: impl FnOnce() -> Result<(), Trouble> + Send,
    ) -> Result<(), Trouble> {
        if self.pool.is_some() {
            let (one, other) = join(one, other);
            one.and(other)
        } else {
            one().and_then(|()| other())
        }
    }

    /// Calls `part(first, pieces)` for pieces of the outputs of some units each, `first`
    /// being the number of the first unit. The outputs are equally long. `unit_cost` is
    /// what a unit costs, in multiplications.
    ///
    /// # Errors
    ///
    /// The first error of a part.
    pub(crate) fn split<const N: usize>(
        &self,
        outs: [&mut [f32]; N],
        unit: usize,
        unit_cost: usize,
        part: &(impl Fn(usize, [&mut [f32]; N]) -> Result<(), Trouble> + Sync),
    ) -> Result<(), Trouble> {
        let parts = self.parts(outs[0].len() / unit, unit_cost);
        cut(outs, unit, 0, parts, part)
    }

    fn parts(&self, units: usize, unit_cost: usize) -> usize {
        if self.pool.is_none() {
            return 1;
        }
        let worthwhile = units.saturating_mul(unit_cost) / PART_COST;
        worthwhile
            .clamp(1, self.threads * PARTS_PER_THREAD)
            .min(units.max(1))
    }
}

/// Halves until there is one part.
fn cut<const N: usize>(
    outs: [&mut [f32]; N],
    unit: usize,
    first: usize,
    parts: usize,
    part: &(impl Fn(usize, [&mut [f32]; N]) -> Result<(), Trouble> + Sync),
) -> Result<(), Trouble> {
    if parts <= 1 {
        return part(first, outs);
    }
    let left_units = outs[0].len() / unit * (parts / 2) / parts;
    let mut right = [const { None }; N];
    let mut rights = right.iter_mut();
    let left = outs.map(|out| {
        let (left, rest) = out.split_at_mut(left_units * unit);
        if let Some(right) = rights.next() {
            *right = Some(rest);
        }
        left
    });
    let right = right.map(Option::unwrap_or_default);
    let (left, right) = join(
        || cut(left, unit, first, parts / 2, part),
        || cut(right, unit, first + left_units, parts - parts / 2, part),
    );
    left.and(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_given_out_once_with_its_number() {
        for threads in [1, 2, 5] {
            let team = Team::new(threads).unwrap();
            for units in [0, 1, 2, 7, 100] {
                let (mut out, mut twin) = (vec![0.0; units * 3], vec![0.0; units * 3]);
                let result = team.run(|| {
                    team.split(
                        [&mut out, &mut twin],
                        3,
                        PART_COST,
                        &|first, [piece, twin]| {
                            for (i, unit) in piece.chunks_exact_mut(3).enumerate() {
                                unit.fill(unit[0] + 1.0 + (first + i) as f32);
                            }
                            twin.copy_from_slice(piece);
                            Ok(())
                        },
                    )
                });
                result.unwrap();
                let expected: Vec<f32> = (0..units * 3).map(|i| (i / 3) as f32 + 1.0).collect();
                assert_eq!(out, expected, "{threads} threads, {units} units");
                assert_eq!(twin, expected, "{threads} threads, {units} units");
            }
        }
    }

    #[test]
    fn an_error_of_any_part_comes_back() {
        for threads in [1, 3] {
            let team = Team::new(threads).unwrap();
            let mut out = vec![0.0; 40];
            let result = team.run(|| {
                team.split(
                    [&mut out],
                    1,
                    PART_COST,
                    &|first, [piece]| match first + piece.len() {
                        40 => Err(Trouble::new("the last part")),
                        _ => Ok(()),
                    },
                )
            });
            assert_eq!(
                result.unwrap_err().to_string(),
                "the last part",
                "{threads} threads"
            );
        }
    }
}
