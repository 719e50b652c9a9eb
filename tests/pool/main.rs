//! The caching pool through its public face: what fits where, what a refusal says, what goes
//! back to the system, and what is counted.
//!
//! Where the heap stands in for pages nothing goes back, and addresses are memory: most of what is
//! asserted here is not so there. Its documentation's examples run there too.
#![cfg(not(any(loom, tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

#[path = "../probe/mod.rs"]
mod probe;

mod caches;
mod cap;
mod dry_run;
mod failures;
mod fits;
mod map;
mod model;
mod trim;

use tenslab::memory::{Allocator, CachingPool, PageSource, SharedAllocator, Stats};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A handle to look at, and one to allocate from.
fn shared<P: PageSource + 'static>(pool: &CachingPool<P>) -> SharedAllocator {
    SharedAllocator::new(pool.clone())
}

/// What a quiet pool's numbers must always be.
#[track_caller]
fn check<P: PageSource>(pool: &CachingPool<P>) -> Stats {
    let report = pool.report();
    let stats = report.stats;
    assert_eq!(
        stats.live_bytes + stats.cached_bytes + stats.unused_bytes + stats.metadata_bytes,
        stats.reserved_bytes,
        "{report:?}"
    );
    assert!(stats.requested_bytes <= stats.live_bytes, "{report:?}");
    // What is committed and no part of the heap is the slabs'.
    assert!(
        stats.live_bytes + stats.cached_bytes <= report.committed_bytes,
        "{report:?}"
    );
    assert!(
        report.committed_bytes <= report.peak_committed_bytes,
        "{report:?}"
    );
    assert_eq!(stats, pool.stats());
    stats
}
