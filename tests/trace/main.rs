//! The trace: what happened, in a fixed number of bytes, written down, read back and
//! played again.
//!
//! ```text
//!   users ─▶ Trace ─▶ slab        snapshot ─▶ Recording ─▶ CSV, JSON ─▶ Recording
//!                                                 └─ replay, simulate ─▶ the same layout
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

#[path = "../probe/mod.rs"]
mod probe;

mod files;
mod history;
mod replay;

use std::sync::Arc;

use tenslab::memory::{Recording, SharedAllocator, SlabAllocator, Tag, Trace, TraceLimits};

use probe::Dice;

const BLOCK: usize = 4096;

fn traced(limits: TraceLimits) -> (Arc<Trace<SlabAllocator>>, SharedAllocator) {
    let slab = SlabAllocator::new(BLOCK, 200).unwrap();
    let trace = Arc::new(Trace::with_limits(slab, limits));
    let handle = SharedAllocator::new(Arc::clone(&trace));
    (trace, handle)
}

fn limits(events: usize, live_blocks: usize) -> TraceLimits {
    TraceLimits {
        events,
        live_blocks,
    }
}

/// Some seeded work: all tags, empty blocks, zeroed ones, refusals, marks.
fn work(trace: &Trace<SlabAllocator>, handle: &SharedAllocator, seed: u64, rounds: usize) {
    let mut dice = Dice(seed);
    let handles = Tag::ALL.map(|tag| handle.with_tag(tag));
    let mut out = Vec::new();
    for round in 0..rounds {
        if round % 100 == 0 {
            trace.mark(&format!("round {round}"));
        }
        let from = &handles[dice.below(handles.len())];
        let align = 1 << dice.below(8);
        match dice.below(20) {
            0 => out.push(from.allocate(0, align).unwrap()),
            1 => assert!(from.allocate(BLOCK + 1, align).is_err()),
            2 => out.extend(from.allocate_zeroed(1 + dice.below(BLOCK), align)),
            3..=10 => out.extend(from.allocate(1 + dice.below(BLOCK), align)),
            _ if out.is_empty() => {}
            _ => drop(out.swap_remove(dice.below(out.len()))),
        }
    }
    // Some are left out on purpose by whoever calls; here all go back but every third.
    let kept: Vec<_> = out.into_iter().step_by(3).collect();
    drop(kept);
}

fn csv(recording: &Recording) -> String {
    let mut text = Vec::new();
    recording.write_csv(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn json(recording: &Recording) -> String {
    let mut text = Vec::new();
    recording.write_json(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}
