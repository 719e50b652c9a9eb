//! The meter: numbers by tag that add up, at every quiescent point, from any thread.
//!
//! ```text
//!   weights ─┐
//!   kv ──────┼─▶ SharedAllocator ─▶ Meter ─▶ slab
//!   scratch ─┘    (one handle for each tag)   └ snapshot: by tag, and total
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::sync::Arc;

use probe::{Dice, FailAt, Spy};
use tenslab::memory::{
    Allocator, CpuAllocator, Meter, MeterStats, SharedAllocator, SlabAllocator, Tag,
};
use tenslab::{DType, Tensor};

const BLOCK: usize = 4096;

fn metered(blocks: u32) -> (Arc<Meter<SlabAllocator>>, SharedAllocator) {
    let meter = Arc::new(Meter::new(SlabAllocator::new(BLOCK, blocks).unwrap()));
    let handle = SharedAllocator::new(Arc::clone(&meter));
    (meter, handle)
}

fn adds_up(stats: &MeterStats) {
    let sum = |number: fn(&MeterStats, Tag) -> usize| -> usize {
        Tag::ALL.iter().map(|&tag| number(stats, tag)).sum()
    };
    assert_eq!(
        stats.total.allocations,
        sum(|stats, tag| stats[tag].allocations)
    );
    assert_eq!(
        stats.total.live_bytes,
        sum(|stats, tag| stats[tag].live_bytes)
    );
    assert_eq!(
        stats.total.requested_bytes,
        sum(|stats, tag| stats[tag].requested_bytes)
    );
    for tag in Tag::ALL {
        assert!(stats[tag].peak_live_bytes >= stats[tag].live_bytes);
        assert!(stats[tag].peak_live_bytes <= stats.total.peak_live_bytes);
    }
    assert!(stats.total.peak_live_bytes <= sum(|stats, tag| stats[tag].peak_live_bytes));
}

#[test]
fn each_tag_has_its_own_numbers_and_together_they_are_the_total() {
    let (meter, handle) = metered(100);
    assert_eq!(meter.snapshot(), MeterStats::default());
    let kv = handle.with_tag(Tag::Kv);
    let weights = handle.with_tag(Tag::Weights);
    let out = [
        kv.allocate(100, 64).unwrap(),
        kv.allocate(200, 64).unwrap(),
        weights.allocate(BLOCK, 64).unwrap(),
        weights.allocate(0, 64).unwrap(),
        handle.allocate(1, 1).unwrap(),
    ];
    let stats = meter.snapshot();
    adds_up(&stats);
    let row = |tag: Tag| {
        let stats = stats[tag];
        (stats.allocations, stats.requested_bytes, stats.live_bytes)
    };
    assert_eq!(row(Tag::Kv), (2, 300, 2 * BLOCK));
    assert_eq!(row(Tag::Weights), (2, BLOCK, BLOCK));
    assert_eq!(row(Tag::Other), (1, 1, BLOCK));
    assert_eq!(row(Tag::Scratch), (0, 0, 0));
    assert_eq!(stats.total.live_bytes, 4 * BLOCK);
    drop(out);
    let stats = meter.snapshot();
    adds_up(&stats);
    assert_eq!((stats.total.allocations, stats.total.live_bytes), (0, 0));
    assert_eq!(stats[Tag::Kv].peak_live_bytes, 2 * BLOCK);
    assert_eq!(stats.total.peak_live_bytes, 4 * BLOCK);
}

#[test]
fn a_peak_is_the_most_that_was_out_at_one_time() {
    let (meter, handle) = metered(100);
    let scratch = handle.with_tag(Tag::Scratch);
    for count in [3, 7, 5] {
        let out: Vec<_> = (0..count)
            .map(|_| scratch.allocate(1, 1).unwrap())
            .collect();
        assert_eq!(out.len(), count);
    }
    let stats = meter.snapshot();
    assert_eq!(stats[Tag::Scratch].peak_live_bytes, 7 * BLOCK);
    assert_eq!(stats.total.peak_live_bytes, 7 * BLOCK);
    // Two tags that peak at different times: the total's peak is less than their sum.
    drop(handle.with_tag(Tag::Kv).allocate(1, 1).unwrap());
    let stats = meter.snapshot();
    adds_up(&stats);
    assert_eq!(stats.total.peak_live_bytes, 7 * BLOCK);
}

#[test]
fn what_was_refused_is_not_counted() {
    let (meter, handle) = metered(1);
    let _out = handle.allocate(1, 1).unwrap();
    assert!(handle.allocate(1, 1).is_err());
    assert!(handle.allocate(BLOCK + 1, 1).is_err());
    assert!(handle.allocate(usize::MAX, 1).is_err());
    assert_eq!(meter.snapshot().total.allocations, 1);

    let meter = Arc::new(Meter::new(Spy::new(CpuAllocator::new(), FailAt::call(0))));
    let handle = SharedAllocator::new(Arc::clone(&meter));
    assert!(handle.allocate(1, 1).is_err());
    assert_eq!(meter.snapshot(), MeterStats::default());
}

#[test]
fn a_tensor_is_counted_where_it_was_allocated_for_as_long_as_a_view_lives() {
    let (meter, handle) = metered(4);
    let activations = handle.with_tag(Tag::Activations);
    let tensor = Tensor::zeros([10, 10], DType::F32, &activations).unwrap();
    assert_eq!(tensor.storage().tag(), Tag::Activations);
    let view = tensor.slice(0, 2, 3).unwrap();
    drop((tensor, activations));
    assert_eq!(meter.snapshot()[Tag::Activations].requested_bytes, 400);
    drop(view);
    assert_eq!(meter.snapshot()[Tag::Activations].requested_bytes, 0);
}

#[test]
fn meters_of_meters_agree_and_pass_the_slabs_own_numbers_on() {
    let inner = Meter::new(SlabAllocator::new(BLOCK, 10).unwrap());
    let outer = Arc::new(Meter::new(inner));
    let handle = SharedAllocator::new(Arc::clone(&outer)).with_tag(Tag::Kv);
    let _out = [
        handle.allocate(5, 1).unwrap(),
        handle.allocate(6, 1).unwrap(),
    ];
    assert_eq!(outer.snapshot(), outer.upstream().snapshot());
    assert_eq!(outer.snapshot()[Tag::Kv].requested_bytes, 11);
    assert_eq!(outer.stats(), outer.upstream().upstream().stats());
    assert_eq!(handle.stats().live_bytes, 2 * BLOCK);
}

#[test]
fn the_numbers_are_exact_again_when_many_threads_are_done() {
    let (meter, handle) = metered(10_000);
    let kept: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = Tag::ALL
            .iter()
            .map(|&tag| {
                let handle = handle.with_tag(tag);
                scope.spawn(move || {
                    let mut dice = Dice(tag as u64);
                    let mut out = Vec::new();
                    for _ in 0..5000 {
                        if dice.below(2) == 0 {
                            out.push(handle.allocate(1 + dice.below(BLOCK), 64).unwrap());
                        } else if !out.is_empty() {
                            out.swap_remove(dice.below(out.len()));
                        }
                    }
                    out
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let stats = meter.snapshot();
    adds_up(&stats);
    for (tag, out) in Tag::ALL.into_iter().zip(&kept) {
        assert_eq!(stats[tag].allocations, out.len());
        assert_eq!(stats[tag].live_bytes, out.len() * BLOCK);
        let requested: usize = out.iter().map(|buffer| buffer.len()).sum();
        assert_eq!(stats[tag].requested_bytes, requested);
    }
    // Back on one thread, whoever took them.
    drop(kept);
    let stats = meter.snapshot();
    assert_eq!(
        (stats.total.allocations, stats.total.requested_bytes),
        (0, 0)
    );
    assert_eq!(stats.total.live_bytes, 0);
}
