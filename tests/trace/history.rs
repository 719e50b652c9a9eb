//! What a trace notes, how much of it, and what it says of what is out.

use std::sync::Arc;

use tenslab::memory::{
    EventKind, Meter, Name, Recording, SharedAllocator, SlabAllocator, Tag, Trace,
};

use super::probe::Dice;
use super::{BLOCK, csv, json, limits, traced};

#[test]
fn history_tells_all_that_happened_in_its_order() {
    let (trace, handle) = traced(limits(100, 10));
    let kv = handle.with_tag(Tag::Kv);
    let block = kv.allocate_zeroed(1000, 64).unwrap();
    trace.mark("prefill");
    assert!(handle.allocate(BLOCK + 1, 8).is_err());
    let address = block.as_ptr().addr();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(block));
    });
    let recording = trace.snapshot();
    let [first, mark, refused, last] = recording.events() else {
        panic!("{recording:?}");
    };
    let EventKind::Allocate(allocation) = first.kind else {
        panic!("{first:?}");
    };
    assert_eq!((allocation.capacity, allocation.address), (BLOCK, address));
    let request = allocation.request;
    assert_eq!((request.bytes(), request.align()), (1000, 64));
    assert!(request.is_zeroed());
    assert_eq!(request.tag(), Tag::Kv);
    assert_eq!(mark.kind, EventKind::Mark(Name::new("prefill")));
    assert!(matches!(refused.kind, EventKind::Refuse(request) if request.bytes() == BLOCK + 1));
    let released = EventKind::Release {
        tag: Tag::Kv,
        bytes: 1000,
        capacity: BLOCK,
        address,
    };
    assert_eq!(last.kind, released);
    assert_eq!([first.thread, refused.thread, last.thread], [0, 0, 1]);
    let numbers: Vec<_> = recording
        .events()
        .iter()
        .map(|event| event.number)
        .collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert!(recording.live().is_empty());
}

/// Row 10: a ring of N events in a fixed number of bytes, and a count of what it lost.
#[test]
fn the_ring_keeps_the_last_events_and_counts_the_others() {
    for kept in [1, 2, 7, 64] {
        let (trace, handle) = traced(limits(kept, 10));
        for round in 0..50 {
            drop(handle.allocate(round, 1).unwrap());
            let recording = trace.snapshot();
            let seen = 2 * (round as u64 + 1);
            let header = recording.header();
            assert_eq!(header.seen_events, seen);
            assert_eq!(header.dropped_events, seen.saturating_sub(kept as u64));
            let numbers = recording.events().iter().map(|event| event.number);
            assert!(numbers.eq(header.dropped_events..seen));
            let (EventKind::Release { bytes, .. }, true) =
                (recording.events().last().unwrap().kind, header.history)
            else {
                panic!("{recording:?}");
            };
            assert_eq!(bytes, round);
            assert_eq!(
                Recording::from_csv(csv(&recording).as_bytes()),
                Ok(recording)
            );
        }
    }
}

/// Row 11: what is out is in every snapshot, also without history, and the header says
/// whether there is one.
#[test]
fn a_snapshot_has_the_live_blocks_also_without_history() {
    let (trace, handle) = traced(limits(0, 100));
    let (kv, other) = (handle.with_tag(Tag::Kv), handle.with_tag(Tag::Weights));
    let mut out: Vec<_> = (1..=20)
        .map(|bytes| kv.allocate(bytes, 1).unwrap())
        .collect();
    drop(out.split_off(10));
    out.push(other.allocate(500, 64).unwrap());
    out.push(other.allocate(0, 64).unwrap());
    let recording = trace.snapshot();
    assert!(!recording.header().history);
    assert_eq!(recording.header().seen_events, 20 + 10 + 2);
    assert!(recording.events().is_empty());
    assert_eq!(recording.header().live_empty, 1);
    let live: Vec<_> = recording
        .live()
        .iter()
        .map(|block| (block.allocation.request.bytes(), block.allocation.address))
        .collect();
    let expected: Vec<_> = out
        .iter()
        .filter(|buffer| !buffer.is_empty())
        .map(|buffer| (buffer.len(), buffer.as_ptr().addr()))
        .collect();
    assert_eq!(live, expected);
    assert!(csv(&recording).contains("\n# history,off\n"));
    for text in [csv(&recording), json(&recording)] {
        assert_eq!(text.matches("live").count() - 3, 11, "{text}");
    }

    // With history, too, and without the events where nobody asks for them.
    let (trace, handle) = traced(limits(4, 100));
    let _out: Vec<_> = (0..9).map(|_| handle.allocate(1, 1).unwrap()).collect();
    let recording = trace.live_snapshot();
    assert_eq!((recording.events().len(), recording.live().len()), (0, 9));
    assert!(recording.header().history);
    assert_eq!(trace.snapshot().events().len(), 4);
}

#[test]
fn blocks_beyond_the_table_are_counted() {
    let (trace, handle) = traced(limits(0, 3));
    let mut out: Vec<_> = (0..5).map(|_| handle.allocate(1, 1).unwrap()).collect();
    let counts = |trace: &Trace<_>| {
        let recording = trace.snapshot();
        (recording.live().len(), recording.header().live_untracked)
    };
    assert_eq!(counts(&trace), (3, 2));
    drop(out.pop()); // one that found no place
    assert_eq!(counts(&trace), (3, 1));
    drop(out.remove(0)); // one that did
    assert_eq!(counts(&trace), (2, 1));
    drop(out);
    assert_eq!(counts(&trace), (0, 0));
}

/// Rows 15 and 16: empty blocks share addresses, and nothing is confused by it.
#[test]
fn empty_blocks_are_not_confused_with_each_other() {
    let (trace, handle) = traced(limits(100, 10));
    let (first, second) = (
        handle.allocate(0, 64).unwrap(),
        handle.allocate(0, 64).unwrap(),
    );
    assert_eq!(first.as_ptr(), second.as_ptr());
    drop(first);
    assert_eq!(trace.header().live_empty, 1);
    drop(second);
    assert_eq!(
        (trace.header().live_empty, trace.header().live_untracked),
        (0, 0)
    );
    let recording = trace.snapshot();
    assert!(recording.live().is_empty());
    let report = recording.replay(&SlabAllocator::new(BLOCK, 1).unwrap());
    assert_eq!((report.allocations, report.releases), (2, 2));
    assert_eq!((report.mismatches(), report.left_over), (0, 0));
}

/// Row 15: two threads hand the same few blocks to and fro. In the history of each
/// address, allocations and releases take turns.
#[test]
fn in_the_history_of_an_address_out_and_back_take_turns() {
    let slab = SlabAllocator::new(BLOCK, 3).unwrap();
    let trace = Arc::new(Trace::with_limits(slab, limits(100_000, 10)));
    let handle = SharedAllocator::new(Arc::clone(&trace));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let handle = handle.clone();
            scope.spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..10_000 {
                    let held = handle.allocate(1 + dice.below(BLOCK), 1);
                    let more = handle.allocate(1, 1);
                    drop((held, more));
                }
            });
        }
    });
    let recording = trace.snapshot();
    assert_eq!(recording.header().dropped_events, 0);
    let mut out = std::collections::HashSet::new();
    for event in recording.events() {
        match event.kind {
            EventKind::Allocate(allocation) => assert!(out.insert(allocation.address)),
            EventKind::Release { address, .. } => assert!(out.remove(&address)),
            _ => {}
        }
    }
    assert!(out.is_empty());
    // The reader checks the same.
    assert_eq!(
        Recording::from_csv(csv(&recording).as_bytes()),
        Ok(recording)
    );
}

#[test]
fn names_are_short_and_plain() {
    assert_eq!(Name::new("").as_str(), "");
    assert_eq!(Name::new("a,b\"c\\d\ne").as_str(), "a_b_c_d_e");
    // No letter is cut in two: é has two bytes.
    let long = "é".repeat(20);
    assert_eq!(Name::new(&long).as_str(), "é".repeat(11));
}

#[test]
fn what_is_above_and_below_a_trace_sees_through_it() {
    let trace = Trace::new(Meter::new(SlabAllocator::new(BLOCK, 4).unwrap()));
    let stack = Arc::new(Meter::new(trace));
    let handle = SharedAllocator::new(Arc::clone(&stack)).with_tag(Tag::Scratch);
    let _out = handle.allocate(5, 1).unwrap();
    let (outer, inner) = (stack.snapshot(), stack.upstream().upstream().snapshot());
    assert_eq!(outer, inner);
    assert_eq!(handle.stats().live_bytes, BLOCK);
    assert_eq!(stack.upstream().snapshot().live().len(), 1);
}
