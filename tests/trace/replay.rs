//! What is played again, into an allocator or into addresses alone.

use std::ops::ControlFlow;
use std::sync::Arc;

use tenslab::memory::{
    AllocError, Allocator, CpuAllocator, EventKind, Meter, Recording, SharedAllocator, Simulated,
    SlabAllocator, Trace,
};

use super::probe::{Dice, Spy};
use super::{BLOCK, csv, limits, traced, work};

/// The same trace is the same layout: replayed twice, and as it was recorded.
#[test]
fn a_replay_puts_every_block_where_it_was() {
    // 200 blocks of 4 KiB are one segment, so addresses are the base and an offset.
    let (trace, handle) = traced(limits(20_000, 1000));
    work(&trace, &handle, 11, 5000);
    let recording = trace.snapshot();
    assert_eq!(recording.header().dropped_events, 0);
    let recorded: Vec<_> = recording
        .events()
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Allocate(allocation) => {
                Some((allocation.request.bytes() > 0).then_some(allocation.address))
            }
            EventKind::Refuse(_) => Some(None),
            _ => None,
        })
        .collect();
    let lowest = recorded.iter().flatten().min().unwrap();
    let recorded: Vec<_> = recorded
        .iter()
        .map(|address| address.map(|address| address - lowest))
        .collect();
    assert!(recorded.len() > 2000);

    let fresh = || SlabAllocator::new(BLOCK, 200).unwrap();
    let read = Recording::from_csv(csv(&recording).as_bytes()).unwrap();
    let first = recording.replay(&fresh());
    let second = read.replay(&Spy::watching(fresh()).0);
    assert!(first.layout() == recorded, "as it was recorded");
    assert!(second.layout() == recorded, "and again");
    assert_eq!(first.mismatches(), 0);
    assert!(first.refused > 0);
    assert_eq!(first.operations, recorded.len() as u64 + first.releases);
    assert_eq!(first.allocations, first.releases + first.left_over);
}

#[test]
fn a_replay_reports_what_ends_differently() {
    let (trace, handle) = traced(limits(1000, 100));
    let kept: Vec<_> = (0..10)
        .map(|_| handle.allocate(BLOCK, 64).unwrap())
        .collect();
    assert!(handle.allocate(BLOCK + 1, 64).is_err()); // event 10
    drop(kept);
    let recording = trace.snapshot();
    // Too few blocks.
    let meter = Meter::new(SlabAllocator::new(BLOCK, 6).unwrap());
    let report = recording.replay(&meter);
    assert_eq!((report.allocations, report.refused_here), (6, 4));
    assert_eq!((report.refused, report.served_here), (1, 0));
    assert_eq!((report.releases, report.skipped_releases), (6, 4));
    assert_eq!(report.first_mismatch, Some(6));
    assert_eq!(report.peak_live_bytes, 6 * BLOCK);
    assert_eq!(report.peak_requested_bytes, 6 * BLOCK);
    let reserved = meter.stats().reserved_bytes;
    assert_eq!(report.peak_reserved_bytes, reserved);
    assert_eq!(meter.snapshot().total.allocations, 0, "all is given back");
    assert_eq!(meter.snapshot().total.peak_live_bytes, 6 * BLOCK);
    // One that serves more; through a `dyn` too.
    let cpu: &dyn Allocator = &CpuAllocator::new();
    let report = recording.replay(cpu);
    assert_eq!((report.refused, report.served_here), (0, 1));
    assert_eq!((report.first_mismatch, report.mismatches()), (Some(10), 1));
    // The recording ends while blocks are out.
    let (trace, handle) = traced(limits(1000, 100));
    let _kept = [handle.allocate(1, 1), handle.allocate(0, 1)];
    let meter = Meter::new(CpuAllocator::new());
    assert_eq!(trace.snapshot().replay(&meter).left_over, 2);
    assert_eq!(meter.snapshot().total.allocations, 0);
    // Its beginning was dropped.
    let (trace, handle) = traced(limits(1, 100));
    drop(handle.allocate(1, 1).unwrap());
    let report = trace.snapshot().replay(&CpuAllocator::new());
    assert_eq!((report.skipped_releases, report.operations), (1, 0));
}

/// Each event is a step, and an allocator is asked for the same, but never to clear anything.
#[test]
fn a_replay_in_steps_lies_as_the_other_and_clears_nothing() {
    let (trace, handle) = traced(limits(6000, 200));
    work(&trace, &handle, 3, 2000);
    let recording = trace.snapshot();
    let zeroed = |recording: &Recording| {
        let asked = recording.events().iter().filter(|event| match event.kind {
            EventKind::Allocate(allocation) => allocation.request.is_zeroed(),
            _ => false,
        });
        asked.count()
    };
    assert!(zeroed(&recording) > 0, "or there is nothing to see");

    let fresh = || SlabAllocator::new(BLOCK, 200).unwrap();
    let again = Trace::with_limits(fresh(), limits(6000, 200));
    let (mut numbers, mut peaks, mut refused) = (Vec::new(), (0, 0), 0);
    let report = recording.replay_with(&again, |step| {
        numbers.push(step.event.number);
        peaks = (
            step.requested_bytes.max(peaks.0),
            step.live_bytes.max(peaks.1),
        );
        refused += u64::from(step.refused.is_some());
        ControlFlow::Continue(())
    });
    let whole = recording.replay(&fresh());
    let numbers_of = |report| serde_json::to_value(report).unwrap();
    assert_eq!(numbers_of(&report), numbers_of(&whole));
    assert!(report.layout() == whole.layout());
    assert!(
        numbers
            .iter()
            .eq(recording.events().iter().map(|event| &event.number))
    );
    assert_eq!(peaks, (report.peak_requested_bytes, report.peak_live_bytes));
    assert_eq!((refused > 0, refused), (true, report.refused));
    assert_eq!(zeroed(&again.snapshot()), 0);
}

#[test]
fn a_step_says_why_something_was_refused_and_can_be_the_last() {
    let (trace, handle) = traced(limits(100, 100));
    let kept: Vec<_> = (0..5)
        .map(|_| handle.allocate(BLOCK, 64).unwrap())
        .collect();
    trace.mark("full");
    drop(kept);
    let meter = Meter::new(SlabAllocator::new(BLOCK, 3).unwrap());
    let mut seen = Vec::new();
    let report = trace.snapshot().replay_with(&meter, |step| {
        seen.push((step.live_bytes, step.refused));
        match step.event.kind {
            EventKind::Mark(_) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    let full = AllocError::Exhausted { blocks: 3 };
    let expected = [
        (BLOCK, None),
        (2 * BLOCK, None),
        (3 * BLOCK, None),
        (3 * BLOCK, Some(full)),
        (3 * BLOCK, Some(full)),
        (3 * BLOCK, None),
    ];
    assert_eq!(seen, expected);
    assert_eq!((report.releases, report.left_over), (0, 3));
    assert_eq!(report.peak_reserved_bytes, meter.stats().reserved_bytes);
    assert_eq!(meter.snapshot().total.allocations, 0, "all is given back");
}

/// An allocator without memory serves what no machine has, in a bounded space.
#[test]
fn a_simulation_takes_no_memory() {
    let rows = "0,0,allocate,kv,1099511627776,64,false,1099511627776,1099511627776,\n\
        1,0,allocate,kv,1099511627777,1073741824,false,1099511627840,5497558138880,\n\
        2,0,release,kv,1099511627776,,,1099511627776,1099511627776,\n\
        3,0,allocate,kv,100,64,false,128,64,\n";
    let text = format!(
        "# tenslab-trace,1\n# history,on\n# seen_events,4\n# dropped_events,0\n\
         # events,4\n# live_blocks,0\n# live_untracked,0\n# live_empty,0\n\
         number,thread,event,tag,bytes,align,zeroed,capacity,address,name\n{rows}"
    );
    let recording = Recording::from_csv(text.as_bytes()).unwrap();
    let tib = 1 << 40;
    let space = Simulated::new(4 * tib);
    let report = recording.simulate(&space);
    assert_eq!(report.mismatches(), 0);
    assert_eq!(report.peak_live_bytes, 2 * tib + 64);
    // The small one fits best in what the first gave back: the lowest of all.
    assert_eq!(report.layout(), [Some(0), Some(tib), Some(0)]);
    assert_eq!(
        space.largest_free_bytes(),
        4 * tib,
        "all is given back and joined"
    );
    assert_eq!(space.stats().live_bytes, 0);
    let report = recording.simulate(&Simulated::new(tib));
    assert_eq!((report.refused_here, report.first_mismatch), (1, Some(1)));
}

/// Against the simplest allocator there is: a list of what is out.
#[test]
fn simulated_blocks_never_overlap_and_best_fit_is_the_best() {
    let (trace, handle) = {
        let trace = Arc::new(Trace::with_limits(
            CpuAllocator::new(),
            limits(1 << 16, 4096),
        ));
        (Arc::clone(&trace), SharedAllocator::new(trace))
    };
    let mut dice = Dice(3);
    let mut out = Vec::new();
    for _ in 0..20_000 {
        if out.len() < 300 && dice.below(2) == 0 {
            let bytes = 1 << dice.below(16);
            let align = 1 << dice.below(13);
            out.push(handle.allocate(bytes + dice.below(bytes), align).unwrap());
        } else if !out.is_empty() {
            out.swap_remove(dice.below(out.len()));
        }
    }
    drop(out);
    let recording = trace.snapshot();
    let space = Simulated::new(1 << 40);
    let report = recording.simulate(&space);
    assert_eq!(
        report.mismatches(),
        0,
        "nothing overlaps, nothing is misaligned"
    );
    let again = recording.simulate(&Simulated::new(1 << 40));
    assert!(report.layout() == again.layout(), "the same every time");
    assert_eq!(space.largest_free_bytes(), 1 << 40);
    assert!(report.peak_reserved_bytes >= report.peak_live_bytes);
    // Less than was out at a time is not enough.
    let short = recording.simulate(&Simulated::new(report.peak_live_bytes - 64));
    assert!(short.refused_here > 0);
}
