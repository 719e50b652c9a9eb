//! What a trace needs of a pool, found out without touching a byte.

use std::ops::ControlFlow;

use serde::Serialize;

use super::PoolOptions;
use crate::memory::{AllocError, Recording, ReplayReport};

/// What a [`Recording`] needs of a pool. From [`PoolOptions::dry_run`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DryRun {
    /// The smallest [cap](PoolOptions::cap_bytes) with which the pool serves the recording as it
    /// lies down without one: nothing is refused, and nothing has to go back in between.
    pub cap_bytes: usize,
    /// The most that was taken up at one time by blocks that were out, rounding included: no
    /// pool does with less. Between the two, a pool serves it by giving pages back.
    pub peak_live_bytes: usize,
    /// What became of the requests.
    pub replay: ReplayReport,
}

impl PoolOptions {
    /// Plays a recording into a pool of its own, with these options but no cap and no trimming,
    /// and says what it needs. No block is touched, so of a trace of 100 GB nothing is in memory
    /// but the pool's records.
    ///
    /// The layout is the same each time: a pool with [`DryRun::cap_bytes`] as its cap serves the
    /// recording, on one thread, with no page more.
    ///
    /// ```
    /// use tenslab::memory::{CachingPool, PoolOptions, SharedAllocator, Trace};
    ///
    /// let trace = std::sync::Arc::new(Trace::new(CachingPool::new()?));
    /// let recorded = SharedAllocator::new(std::sync::Arc::clone(&trace));
    /// let (first, second) = (recorded.allocate(3 << 20, 64)?, recorded.allocate(5 << 20, 64)?);
    /// drop(first);
    /// drop((recorded.allocate(2 << 20, 64)?, second));
    ///
    /// let need = PoolOptions::new().dry_run(&trace.snapshot())?;
    /// assert_eq!(need.peak_live_bytes, 8 << 20);
    /// let pool = PoolOptions::new().cap_bytes(need.cap_bytes).build()?;
    /// assert_eq!(trace.snapshot().replay(&pool).refused_here, 0);
    /// # Ok::<(), tenslab::memory::AllocError>(())
    /// ```
    ///
    /// # Errors
    /// As [`build`](Self::build). Requests that are refused are counted in the report.
    pub fn dry_run(&self, recording: &Recording) -> Result<DryRun, AllocError> {
        let mut options = Self::new();
        options.reservation_bytes = self.reservation_bytes;
        options.exact = true;
        let pool = options.build()?;
        let replay = recording.replay_with(&pool, |_| ControlFlow::Continue(()));
        Ok(DryRun {
            cap_bytes: pool.report().peak_committed_bytes,
            peak_live_bytes: replay.peak_live_bytes,
            replay,
        })
    }
}
