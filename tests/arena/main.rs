//! The step arena: what a step is, what it takes, and what it never does.
//!
//! ```text
//!   steps      when one ends, when not, and what is left of it
//!   memory     how many bytes it holds, against a limit and after a spike
//!   model      random steps against a naive model; plans that never fail
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(clippy::print_stdout, reason = "it says what it measured")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "patterns are cut to a byte"
)]

#[path = "../probe/mod.rs"]
mod probe;

mod memory;
mod model;
mod steps;

use std::sync::Arc;

use tenslab::memory::{SharedAllocator, Stats, StepArena};

/// An arena and a handle for who allocates from it.
fn both(arena: StepArena) -> (Arc<StepArena>, SharedAllocator) {
    let arena = Arc::new(arena);
    let handle = SharedAllocator::new(Arc::clone(&arena));
    (arena, handle)
}

/// All that an arena holds is in one of these.
fn add_up(stats: Stats) {
    let sum = stats.live_bytes + stats.cached_bytes + stats.unused_bytes + stats.metadata_bytes;
    assert_eq!(sum, stats.reserved_bytes, "{stats:?}");
    assert!(stats.requested_bytes <= stats.live_bytes, "{stats:?}");
}
