//! The trace: what happened, in a fixed number of bytes, written down, read back and
//! played again.
//!
//! ```text
//!   users ─▶ Trace ─▶ slab        snapshot ─▶ Recording ─▶ CSV, JSON ─▶ Recording
//!                                                 └─ replay, simulate ─▶ the same layout
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::ops::ControlFlow;
use std::sync::Arc;

use probe::{Dice, Spy};
use tenslab::memory::{
    AllocError, Allocator, CpuAllocator, EventKind, Meter, Name, Recording, SharedAllocator,
    Simulated, SlabAllocator, Tag, Trace, TraceLimits, TraceProblem,
};

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
fn a_recording_survives_both_files_and_each_is_the_same_every_time() {
    for (seed, limits) in [
        (1, limits(10_000, 1000)),
        (2, limits(300, 1000)),
        (3, limits(0, 5)),
    ] {
        let (trace, handle) = traced(limits);
        let _kept: Vec<_> = (1..9)
            .map(|bytes| handle.allocate(bytes, 8).unwrap())
            .collect();
        work(&trace, &handle, seed, 2000);
        for recording in [trace.snapshot(), trace.live_snapshot()] {
            let (csv_text, json_text) = (csv(&recording), json(&recording));
            assert_eq!(
                Recording::from_csv(csv_text.as_bytes()).as_ref(),
                Ok(&recording)
            );
            assert_eq!(
                Recording::from_json(json_text.as_bytes()).as_ref(),
                Ok(&recording)
            );
            assert_eq!(csv(&recording.clone()), csv_text);
            assert_eq!(json(&recording.clone()), json_text);
            // JSON for everybody else, too.
            let value: serde_json::Value = serde_json::from_str(&json_text).unwrap();
            assert_eq!(value["seen_events"], recording.header().seen_events);
            let rows = recording.events().len() + recording.live().len();
            assert_eq!(value["lines"].as_array().unwrap().len(), rows);
        }
    }
}

#[test]
fn the_file_looks_as_the_docs_say() {
    let text = "# tenslab-trace,2\n# history,on\n# seen_events,4\n# dropped_events,0\n\
        # events,4\n# live_blocks,0\n# live_untracked,0\n# live_empty,0\n\
        number,thread,event,tag,bytes,align,zeroed,capacity,address,name\n\
        0,0,allocate,kv,1000,64,false,4096,139637976727552,\n\
        1,0,grow,kv,5000,,,8192,139637976727552,\n\
        2,0,release,kv,5000,,,8192,139637976727552,\n\
        3,0,mark,,,,,,,decode\n";
    let recording = Recording::from_csv(text.as_bytes()).unwrap();
    assert_eq!(csv(&recording), text);
    assert_eq!(recording.events().len(), 4);
}

/// Every kind of wrong line is refused with its number and its reason.
#[test]
fn a_file_that_is_no_trace_is_refused_with_the_line() {
    let (trace, handle) = traced(limits(100, 10));
    let _kept = handle.with_tag(Tag::Kv).allocate(100, 64).unwrap();
    let _other = handle.allocate(100, 64).unwrap();
    drop(handle.allocate(7, 1).unwrap());
    trace.mark("m");
    assert!(handle.allocate(BLOCK + 1, 1).is_err());
    let good = csv(&trace.snapshot());
    let lines: Vec<_> = good.lines().collect();
    assert_eq!(lines.len(), 9 + 6 + 2);

    let with = |line: usize, text: &str| {
        let mut changed = lines.clone();
        changed[line - 1] = text;
        Recording::from_csv(changed.join("\n").as_bytes()).unwrap_err()
    };
    // Line by line: each header, then events 0 to 5 on lines 10 to 15, live on 16 and 17.
    for (line, text) in [
        (1, "# tenslab-trace,3"),
        (1, ""),
        (2, "# history,maybe"),
        (3, "# seen_events,-1"),
        (3, "# seen_events,006"),
        (3, "# seen_events,99999999999999999999"),
        (4, "# dropped,0"),
        (7, "# live_untracked,"),
        (8, "# live_empty,0x0"),
        (8, "# dropped_events,0"),
        (
            7,
            "number,thread,event,tag,bytes,align,zeroed,capacity,address",
        ),
        (10, ""),
        (10, "0,0,allocate"),
        (10, "0,0,allocate,kv,100,64,false,4096,4096,,"),
        (10, "0,0,conjure,kv,100,64,false,4096,4096,"),
        (10, "0,0,allocate,pudding,100,64,false,4096,4096,"),
        (10, "0,0,allocate,,100,64,false,4096,4096,"),
        (10, "0,0,allocate,kv,100,63,false,4096,4096,"),
        (10, "0,0,allocate,kv,100,0,false,4096,4096,"),
        (10, "0,0,allocate,kv,100,2147483648,false,4096,4294967296,"),
        (10, "0,0,allocate,kv,100,64,perhaps,4096,4096,"),
        (10, "0,0,allocate,kv,100,64,false,99,4096,"),
        (10, "0,0,allocate,kv,100,64,false,4096,4097,"),
        (10, "0,0,allocate,kv,100,64,false,4096,0,"),
        (
            10,
            "0,0,allocate,kv,100,64,false,4096,18446744073709551552,",
        ),
        (
            8,
            "0,0,allocate,kv,18446744073709551615,64,false,18446744073709551615,4096,",
        ),
        (10, "0,0,allocate,kv,100,64,false,4096,4096,named"),
        (10, "0,0,allocate,kv, 100,64,false,4096,4096,"),
        (10, "0,0,allocate,kv,+100,64,false,4096,4096,"),
        (10, "1,0,allocate,kv,100,64,false,4096,4096,"),
        (10, "0,70000,allocate,kv,100,64,false,4096,4096,"),
        (10, "0,0,mark,,,,,,,a\"quote"),
        (10, "0,0,mark,,,,,,,more than 23 bytes of a name"),
        (10, "0,0,mark,kv,,,,,,m"),
        (10, "0,0,release,kv,100,64,,4096,4096,"),
        (10, "0,0,release,kv,100,,,,4096,"),
        (10, "0,0,grow,kv,100,64,,4096,4096,"),
        (10, "0,0,grow,kv,100,,false,4096,4096,"),
        (10, "0,0,grow,kv,100,,,99,4096,"),
        (10, "0,0,grow,kv,100,,,4096,0,"),
        (10, "0,0,grow,kv,100,,,4096,,"),
        (10, "0,0,grow,,100,,,4096,4096,"),
        (10, "0,0,grow,kv,0,,,4096,4096,"),
        (
            10,
            "0,0,grow,kv,9223372036854775808,,,9223372036854775808,4096,",
        ),
        (10, "0,0,grow,kv,100,,,4096,4096,named"),
        (10, "0,0,refuse,kv,100,64,false,4096,4096,"),
        (10, "0,0,refuse,kv,100,64,,,,"),
        (11, lines[9]),
        (16, "0,0,live,kv,0,64,false,4096,4096,"),
        (16, "6,0,live,kv,100,64,false,4096,4096,"),
        (17, lines[15]),
        (17, "5,0,refuse,kv,100,64,false,,,"),
    ] {
        assert_eq!(with(line, text).line, line, "{text}: {}", with(line, text));
    }
    // Numbers that contradict each other, or what follows: seen at the end of either.
    for (line, text, seen_at) in [
        (4, "# dropped_events,7", 8),
        (4, "# dropped_events,1", 8),
        (5, "# events,5", 8),
        (6, "# live_blocks,3", 17),
        (5, "# events,0", 17),
    ] {
        assert_eq!(with(line, text).line, seen_at, "{text}");
    }
    // The same addresses twice.
    let address = lines[9].rsplit(',').nth(1).unwrap();
    let twice = with(11, &format!("1,0,allocate,kv,100,64,false,4096,{address},"));
    assert_eq!(twice.line, 11);
    assert!(matches!(twice.problem, TraceProblem::AlreadyOut { .. }));
    // Not text at all.
    let mut bytes = good.clone().into_bytes();
    let place = good.find("refuse").unwrap();
    bytes[place] = 0xff;
    let error = Recording::from_csv(&bytes).unwrap_err();
    assert_eq!((error.line, error.problem), (15, TraceProblem::NotText));
    // Cut off: after every line, and in the middle of each.
    for end in 0..good.len() - 1 {
        let cut = Recording::from_csv(&good.as_bytes()[..end]);
        assert!(cut.is_err(), "{end} bytes: {cut:?}");
    }
}

/// Whatever one byte of a good file becomes, the reader answers and never panics, and
/// what it accepts, it writes back so that it is read as the same.
#[test]
fn a_damaged_file_never_panics_and_never_lies() {
    let (trace, handle) = traced(limits(20, 10));
    let _kept = handle.allocate(100, 64).unwrap();
    work(&trace, &handle, 5, 40);
    let recording = trace.snapshot();
    let mut dice = Dice(9);
    let mut refused = 0;
    for good in [csv(&recording), json(&recording)] {
        for _ in 0..4000 {
            let mut bytes = good.clone().into_bytes();
            for _ in 0..=dice.below(3) {
                let place = dice.below(bytes.len());
                match dice.below(3) {
                    0 => bytes[place] = u8::try_from(dice.below(256)).unwrap(),
                    1 => drop(bytes.remove(place)),
                    _ => bytes.insert(place, b"0123456789,\n\"{"[dice.below(14)]),
                }
            }
            let read = [Recording::from_csv(&bytes), Recording::from_json(&bytes)];
            let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
            for result in read {
                match result {
                    Ok(read) => {
                        assert_eq!(Recording::from_csv(csv(&read).as_bytes()).unwrap(), read);
                        assert_eq!(Recording::from_json(json(&read).as_bytes()).unwrap(), read);
                        let report = read.simulate(&Simulated::new(1 << 46));
                        assert_eq!(report.misplaced, 0);
                    }
                    Err(error) => {
                        refused += 1;
                        assert!((1..=lines + 2).contains(&error.line), "{error}");
                    }
                }
            }
        }
    }
    assert!(
        refused > 8000 + 4000,
        "{refused}: each file is wrong in the other format"
    );
}

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
