//! How a pool is made.

use super::{CachingPool, Core};
use crate::memory::{AllocError, Limit, OsPages, PageSource};

/// When free memory goes back to the system by itself. By default it does not, but when the pool
/// needs room under its cap, and by [`trim`](crate::memory::Allocator::trim).
///
/// There is no thread and no clock: what is due is done by the calls that find it so, outside
/// the pool's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimPolicy {
    /// Free bytes of the heap that may stay in memory, what the caches hold apart (8 MiB for each
    /// thread, and what a local cache was allowed). Whoever gives a block back to the heap that
    /// makes it more gives the oldest back to the system, until an eighth less is left.
    pub keep_bytes: usize,
    /// Memory that was free for so many calls (allocations and give-backs together, counted in
    /// steps of 64 for each thread) goes back. `None`: never for that reason.
    pub idle_calls: Option<u32>,
}

impl Default for TrimPolicy {
    fn default() -> Self {
        Self {
            keep_bytes: usize::MAX,
            idle_calls: None,
        }
    }
}

impl TrimPolicy {
    /// Nothing goes back by itself.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// At most so many free bytes stay in memory.
    #[must_use]
    pub fn keep_bytes(mut self, bytes: usize) -> Self {
        self.keep_bytes = bytes;
        self
    }

    /// What was free for so many calls goes back.
    #[must_use]
    pub fn idle_calls(mut self, calls: u32) -> Self {
        self.idle_calls = Some(calls.max(1));
        self
    }
}

/// How a [`CachingPool`] is made: what it may have, and what it keeps.
///
/// ```
/// use tenslab::memory::{AllocError, PoolOptions, SharedAllocator};
///
/// let pool = PoolOptions::new().cap_bytes(64 << 20).build()?;
/// let pool = SharedAllocator::new(pool);
/// let half = pool.allocate(32 << 20, 64)?;
/// match pool.allocate(48 << 20, 64).unwrap_err() {
///     AllocError::PoolExhausted { largest_free_bytes, .. } => {
///         assert!(pool.allocate(largest_free_bytes, 64).is_ok());
///     }
///     error => return Err(error),
/// }
/// # drop(half);
/// # Ok::<(), AllocError>(())
/// ```
#[derive(Debug, Clone)]
pub struct PoolOptions {
    pub(super) limit: Limit,
    pub(super) reservation_bytes: Option<usize>,
    pub(super) trim: TrimPolicy,
    /// Never commits more than is wanted.
    pub(super) exact: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            limit: Limit::unlimited(),
            reservation_bytes: None,
            trim: TrimPolicy::default(),
            exact: false,
        }
    }
}

impl PoolOptions {
    /// No cap, no trimming.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// At most so many bytes are committed at one time: what is out, what is free and in memory,
    /// and the pages of small sizes. The records of the pool itself (128 bytes for each block
    /// of more than 32 KiB) do not count.
    #[must_use]
    pub fn cap_bytes(self, bytes: usize) -> Self {
        self.limit(&Limit::new(bytes))
    }

    /// As [`cap_bytes`](Self::cap_bytes), of a number that others share. Its callbacks are
    /// asked for room where the pool itself has none left to give back, with no lock held: they
    /// may use the pool.
    #[must_use]
    pub fn limit(mut self, limit: &Limit) -> Self {
        self.limit = limit.clone();
        self
    }

    /// Addresses that the heap takes when it is made, and can never exceed. By default 16 times
    /// the cap and at least 1 GiB, or 992 GiB without one; where the source's addresses cost
    /// something ([`PageSource::reserves_freely`]) as much as the cap, or 256 MiB without one.
    /// Where the process may not have as many, a half is tried, and so on.
    #[must_use]
    pub fn reservation_bytes(mut self, bytes: usize) -> Self {
        self.reservation_bytes = Some(bytes);
        self
    }

    /// When free memory goes back by itself.
    #[must_use]
    pub fn trim(mut self, policy: TrimPolicy) -> Self {
        self.trim = policy;
        self
    }

    /// A pool over the system's pages.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] where not even 64 MiB of addresses can be had.
    pub fn build(&self) -> Result<CachingPool, AllocError> {
        self.build_over(OsPages::new())
    }

    /// A pool over pages from somewhere else.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_over<P: PageSource>(&self, pages: P) -> Result<CachingPool<P>, AllocError> {
        Core::new(pages, self).map(CachingPool::new_handle)
    }
}
