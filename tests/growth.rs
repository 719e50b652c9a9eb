//! Growth in place through the wrappers that count: what they say of a block that got longer.
//!
//! ```text
//!   Buffer::try_grow ─▶ Budget ─▶ Trace ─▶ Meter ─▶ CpuAllocator ─▶ RoomyPages
//!                       charges   an event  bytes                   counts what is out
//! ```
//!
//! That every stack of two wrappers keeps the contract is in `tests/conformance/growth.rs`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::sync::Arc;

use probe::{Dice, ROOM, RoomyPages};
use tenslab::memory::{
    AllocError, Allocator, Block, Budget, Buffer, CpuAllocator, EventKind, Limit, Meter, OsPages,
    PageSource, Recording, Request, SharedAllocator, Simulated, Tag, Trace, TraceLimits,
    TraceProblem,
};

const MIB: usize = 1 << 20;

type Cpu = CpuAllocator<Arc<RoomyPages>>;

fn cpu() -> (Arc<RoomyPages>, Cpu) {
    let pages = Arc::new(RoomyPages::default());
    (Arc::clone(&pages), CpuAllocator::with_pages(pages))
}

fn limited(limit: &Limit) -> (Arc<RoomyPages>, SharedAllocator) {
    let (pages, cpu) = cpu();
    (pages, SharedAllocator::new(Budget::new(cpu, limit)))
}

/// Can parts of blocks be given back at all?
const GIVES: bool = cfg!(all(
    target_os = "linux",
    not(any(tenslab_portable, tenslab_asan))
));

#[test]
fn a_budget_counts_what_a_block_grew_to() {
    let limit = Limit::new(4 * MIB);
    let (pages, allocator) = limited(&limit);
    let mut buffer = allocator.allocate(MIB + 1, 64).unwrap();
    let address = buffer.as_ptr();
    for bytes in [MIB + 2, 2 * MIB, 2 * MIB + 1, 3 * MIB + 5, 4 * MIB] {
        buffer.try_grow(bytes).unwrap();
        assert_eq!((buffer.len(), buffer.as_ptr()), (bytes, address));
        assert_eq!(limit.used_bytes(), pages.out_bytes());
    }
    assert_eq!((limit.used_bytes(), limit.peak_bytes()), (4 * MIB, 4 * MIB));
    drop(buffer);
    assert_eq!((limit.used_bytes(), pages.out_bytes()), (0, 0));
}

#[test]
fn growth_that_does_not_fit_is_refused_before_the_upstream_hears_of_it() {
    let limit = Limit::new(3 * MIB);
    let (pages, allocator) = limited(&limit);
    let mut buffer = allocator.allocate(2 * MIB, 64).unwrap();
    buffer.as_mut_slice().fill(7);
    let error = buffer.try_grow(3 * MIB + 1).unwrap_err();
    let AllocError::OverBudget {
        requested_bytes,
        live_bytes,
        limit_bytes,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert!(requested_bytes > MIB && requested_bytes <= MIB + (64 << 10));
    assert_eq!((live_bytes, limit_bytes), (2 * MIB, 3 * MIB));
    assert_eq!((pages.grows(), buffer.len()), (0, 2 * MIB));
    assert_eq!((limit.used_bytes(), limit.peak_bytes()), (2 * MIB, 2 * MIB));
    // What fits exactly does.
    buffer.try_grow(3 * MIB).unwrap();
    assert_eq!((pages.grows(), limit.available_bytes()), (1, 0));
    assert!(buffer.as_slice()[..2 * MIB].iter().all(|&byte| byte == 7));
}

#[test]
fn what_the_upstream_refuses_is_given_back() {
    let limit = Limit::new(8 * MIB);
    let (pages, allocator) = limited(&limit);
    let mut buffer = allocator.allocate(2 * MIB, 64).unwrap();
    let gone = buffer.decommit(MIB..2 * MIB).bytes;
    assert!(!GIVES || gone == MIB);
    pages.refuse_growth(true);
    for _ in 0..3 {
        let (bytes, capacity) = (3 * MIB, 2 * MIB);
        let error = buffer.try_grow(bytes).unwrap_err();
        assert_eq!(error, AllocError::CannotGrow { bytes, capacity });
        // Nothing is changed, so what was decommitted does not count.
        assert_eq!(limit.used_bytes(), 2 * MIB - gone);
    }
    pages.refuse_growth(false);
    buffer.try_grow(3 * MIB).unwrap();
    // New bytes may be in pages that went, so those count again.
    assert_eq!(limit.used_bytes(), 3 * MIB);
    drop(buffer);
    assert_eq!(limit.used_bytes(), 0);
}

#[test]
fn callbacks_are_asked_for_room_to_grow() {
    let limit = Limit::new(3 * MIB);
    let (_, allocator) = limited(&limit);
    let mut buffer = allocator.allocate(MIB, 64).unwrap();
    let cache = std::sync::Mutex::new(Some(limit.charge(2 * MIB).unwrap()));
    let _guard = limit.on_pressure(move |short| {
        assert_eq!((short.requested_bytes, short.missing_bytes), (MIB, MIB));
        let charge = cache.lock().unwrap().take();
        charge.map_or(0, |charge| charge.bytes())
    });
    buffer.try_grow(2 * MIB).unwrap();
    assert_eq!(limit.used_bytes(), 2 * MIB);
}

/// Another allocator, which says of growth what it is told to say.
struct Says<A>(A, fn(&A, &Block, usize) -> Option<usize>);

// SAFETY: blocks come from the upstream and go back to it unchanged.
unsafe impl<A: Allocator> Allocator for Says<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        self.0.allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.release_block(block) }
    }

    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.grow_block(block, bytes) }
    }

    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        (self.1)(&self.0, block, bytes)
    }
}

#[test]
fn what_is_not_known_before_is_not_tried() {
    for says in [
        |_: &Cpu, _: &Block, _: usize| None,
        |_: &Cpu, block: &Block, _: usize| Some(block.capacity()),
    ] {
        let limit = Limit::unlimited();
        let (pages, cpu) = cpu();
        let budget = SharedAllocator::new(Budget::new(Says(cpu, says), &limit));
        let mut buffer = budget.allocate(MIB, 64).unwrap();
        let (bytes, capacity) = (MIB + 1, MIB);
        let error = buffer.try_grow(bytes).unwrap_err();
        assert_eq!(error, AllocError::CannotGrow { bytes, capacity });
        assert_eq!((limit.used_bytes(), limit.peak_bytes()), (MIB, MIB));
        assert_eq!(pages.grows(), 0);
    }
}

#[test]
fn what_the_upstream_did_not_take_is_given_back() {
    let limit = Limit::new(8 * MIB);
    let (pages, cpu) = cpu();
    // Twice what it really takes.
    let doubled = |cpu: &Cpu, block: &Block, bytes| cpu.grown_capacity(block, bytes * 2);
    let budget = SharedAllocator::new(Budget::new(Says(cpu, doubled), &limit));
    let mut buffer = budget.allocate(MIB, 64).unwrap();
    buffer.try_grow(3 * MIB).unwrap();
    assert_eq!((limit.used_bytes(), limit.peak_bytes()), (3 * MIB, 6 * MIB));
    assert_eq!(pages.out_bytes(), 3 * MIB);
    // What it might take does not fit, although what it would take does.
    let error = buffer.try_grow(4 * MIB + 1).unwrap_err();
    assert!(matches!(error, AllocError::OverBudget { .. }), "{error}");
    assert_eq!(limit.used_bytes(), 3 * MIB);
    drop(buffer);
    assert_eq!(limit.used_bytes(), 0);
}

/// Two threads grow for the same room. What is out is never more than the limit, as the pages
/// saw it, and what is charged is exact whenever both stand still.
#[test]
fn two_threads_that_grow_never_have_more_than_the_limit() {
    const ROUNDS: usize = 300;
    let limit = Limit::new(7 * MIB);
    let (pages, allocator) = limited(&limit);
    let grown: usize = std::thread::scope(|scope| {
        let threads = [1, 2].map(|seed| {
            let (allocator, limit) = (allocator.clone(), &limit);
            scope.spawn(move || {
                let mut dice = Dice(seed);
                let mut grown = 0;
                for _ in 0..ROUNDS {
                    let Ok(mut buffer) = allocator.allocate(MIB + dice.below(MIB), 64) else {
                        continue;
                    };
                    for _ in 0..3 {
                        let more = 1 + dice.below(3 * MIB / 2);
                        match buffer.try_grow(buffer.len() + more) {
                            Ok(()) => grown += 1,
                            Err(AllocError::OverBudget { .. }) => {}
                            // More than the room behind a block.
                            Err(AllocError::CannotGrow { bytes, .. }) => {
                                assert!(bytes > MIB + ROOM)
                            }
                            Err(error) => panic!("{error}"),
                        }
                        assert!(limit.used_bytes() <= limit.limit_bytes());
                    }
                }
                grown
            })
        });
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert!(grown > ROUNDS, "{grown}");
    assert!(pages.peak_bytes() <= 7 * MIB, "{}", pages.peak_bytes());
    assert!(limit.peak_bytes() <= 7 * MIB);
    assert_eq!((limit.used_bytes(), pages.out_bytes()), (0, 0));
}

#[test]
fn meters_above_and_below_see_the_same_growth() {
    let limit = Limit::unlimited();
    let (_, cpu) = cpu();
    let below = Arc::new(Meter::new(cpu));
    let trace = Trace::new(Budget::new(Arc::clone(&below), &limit));
    let above = Arc::new(Meter::new(trace));
    let handle = SharedAllocator::new(Arc::clone(&above)).with_tag(Tag::Kv);
    let mut buffer = handle.allocate(MIB, 64).unwrap();
    buffer.try_grow(2 * MIB - 3).unwrap();
    for meter in [above.snapshot(), below.snapshot()] {
        assert_eq!(meter[Tag::Kv].requested_bytes, 2 * MIB - 3);
        assert_eq!(meter[Tag::Kv].live_bytes, 2 * MIB);
        assert_eq!(meter[Tag::Kv].peak_live_bytes, 2 * MIB);
        assert_eq!(meter[Tag::Kv].allocations, 1);
    }
    assert_eq!(limit.used_bytes(), 2 * MIB);
    drop(buffer);
    for meter in [above.snapshot(), below.snapshot()] {
        assert_eq!(
            (meter.total.live_bytes, meter.total.requested_bytes),
            (0, 0)
        );
    }
}

fn csv(recording: &Recording) -> String {
    let mut text = Vec::new();
    recording.write_csv(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn json(recording: &Recording) -> Vec<u8> {
    let mut text = Vec::new();
    recording.write_json(&mut text).unwrap();
    text
}

fn traced(limits: TraceLimits) -> (Arc<Trace<Cpu>>, SharedAllocator) {
    let trace = Arc::new(Trace::with_limits(cpu().1, limits));
    let handle = SharedAllocator::new(Arc::clone(&trace));
    (trace, handle)
}

const LIMITS: TraceLimits = TraceLimits {
    events: 1000,
    live_blocks: 100,
};

#[test]
fn a_trace_records_growth_and_knows_how_long_the_block_is() {
    let (trace, handle) = traced(LIMITS);
    let kv = handle.with_tag(Tag::Kv);
    let mut buffer = kv.allocate_zeroed(MIB, 64).unwrap();
    let address = buffer.as_ptr().addr();
    buffer.try_grow(MIB + 1).unwrap();
    buffer.try_grow(2 * MIB).unwrap();
    assert!(buffer.try_grow(3 * ROOM).is_err(), "and no event");
    let recording = trace.snapshot();
    let kinds: Vec<_> = recording.events().iter().map(|event| event.kind).collect();
    let [
        EventKind::Allocate(first),
        EventKind::Grow { bytes, .. },
        last,
    ] = kinds[..]
    else {
        panic!("{kinds:?}");
    };
    assert_eq!((first.request.bytes(), bytes), (MIB, MIB + 1));
    let grew = EventKind::Grow {
        tag: Tag::Kv,
        bytes: 2 * MIB,
        capacity: 2 * MIB,
        address,
    };
    assert_eq!(last, grew);
    // The table has what is there now, in both files, too.
    let live = recording.live()[0];
    let now = live.allocation;
    assert_eq!((now.request.bytes(), now.capacity), (2 * MIB, 2 * MIB));
    assert_eq!((now.request.align(), now.request.tag()), (64, Tag::Kv));
    assert!(now.request.is_zeroed());
    assert_eq!((live.number, now.address), (0, address));
    assert_eq!(trace.live_snapshot().live(), recording.live());
    let read = Recording::from_csv(csv(&recording).as_bytes());
    assert_eq!(read.as_ref(), Ok(&recording));
    assert_eq!(Recording::from_json(&json(&recording)), read);
    drop(buffer);
    let recording = trace.snapshot();
    assert!(recording.live().is_empty());
    assert!(matches!(
        recording.events().last().unwrap().kind,
        EventKind::Release { bytes, capacity, .. } if bytes == 2 * MIB && capacity == 2 * MIB
    ));
}

#[test]
fn a_block_without_a_place_in_the_table_grows_all_the_same() {
    let (trace, handle) = traced(TraceLimits {
        events: 4,
        live_blocks: 1,
    });
    let mut both = [(); 2].map(|()| handle.allocate(MIB, 64).unwrap());
    for buffer in &mut both {
        buffer.try_grow(2 * MIB).unwrap();
    }
    let header = trace.header();
    assert_eq!((header.live_blocks, header.live_untracked), (1, 1));
    assert_eq!(header.seen_events, 4);
    drop(both);
    let header = trace.header();
    assert_eq!((header.live_blocks, header.live_untracked), (0, 0));
    // Its allocation was dropped from the ring, its growth not.
    let mut buffer = handle.allocate(MIB, 64).unwrap();
    for bytes in MIB + 1..MIB + 5 {
        buffer.try_grow(bytes).unwrap();
    }
    let recording = trace.snapshot();
    let read = Recording::from_csv(csv(&recording).as_bytes());
    assert_eq!(read.as_ref(), Ok(&recording));
    let report = recording.replay(&CpuAllocator::new());
    assert_eq!((report.growths, report.skipped_growths), (0, 4));
    assert_eq!((report.operations, report.mismatches()), (0, 0));
}

/// Buffers that come, grow and go. Returns the most that they took up.
fn work(handle: &SharedAllocator, seed: u64) -> usize {
    let mut dice = Dice(seed);
    let (mut out, mut most): (Vec<Buffer>, usize) = (Vec::new(), 0);
    for _ in 0..300 {
        match dice.below(4) {
            0 => out.push(handle.allocate(MIB + dice.below(MIB), 64).unwrap()),
            1 if out.len() > 4 => drop(out.swap_remove(dice.below(out.len()))),
            _ if out.is_empty() => {}
            _ => {
                let at = dice.below(out.len());
                let bytes = out[at].len() + dice.below(MIB / 4);
                let _ = out[at].try_grow(bytes);
            }
        }
        let page = OsPages::new().page_bytes();
        let now = out.iter().map(|one| one.len().next_multiple_of(page)).sum();
        most = most.max(now);
    }
    most
}

#[test]
fn a_replay_grows_blocks_as_they_grew() {
    let (trace, handle) = traced(LIMITS);
    let most = work(&handle, 4);
    let recording = trace.snapshot();
    let is_growth = |kind| matches!(kind, EventKind::Grow { .. });
    let grown = recording
        .events()
        .iter()
        .filter(|event| is_growth(event.kind));
    let grown = grown.count() as u64;
    assert!(grown > 50, "{grown}");
    let (pages, cpu) = cpu();
    let meter = Meter::new(cpu);
    let report = recording.replay(&meter);
    assert_eq!((report.growths, report.mismatches()), (grown, 0));
    assert_eq!(report.peak_live_bytes, most);
    assert_eq!(meter.snapshot().total.peak_live_bytes, most);
    assert_eq!((pages.peak_bytes(), pages.out_bytes()), (most, 0));
    // Twice the same, and through a trace the same recording comes out.
    let again = Trace::with_limits(self::cpu().1, LIMITS);
    assert_eq!(recording.replay(&again).growths, grown);
    let kinds = |recording: &Recording| -> Vec<_> {
        let grown = recording
            .events()
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Grow {
                    bytes, capacity, ..
                } => Some((bytes, capacity)),
                _ => None,
            });
        grown.collect()
    };
    assert!(kinds(&again.snapshot()) == kinds(&recording));
}

#[test]
fn growth_that_is_refused_in_a_replay_is_a_mismatch() {
    let (trace, handle) = traced(LIMITS);
    let mut buffer = handle.allocate(MIB, 64).unwrap();
    trace.mark("grow");
    buffer.try_grow(2 * MIB).unwrap(); // event 2
    drop(buffer);
    let (pages, cpu) = cpu();
    pages.refuse_growth(true);
    let report = trace.snapshot().replay(&cpu);
    assert_eq!((report.growths, report.growths_refused_here), (0, 1));
    assert_eq!((report.mismatches(), report.first_mismatch), (1, Some(2)));
    assert_eq!((report.releases, report.peak_live_bytes), (1, MIB));
    assert_eq!(pages.out_bytes(), 0);
}

/// Into free addresses behind the block, and never over another one.
#[test]
fn a_simulation_grows_into_free_addresses_only() {
    let file = |rows: &str, events: usize| {
        format!(
            "# tenslab-trace,2\n# history,on\n# seen_events,{events}\n# dropped_events,0\n\
             # events,{events}\n# live_blocks,0\n# live_untracked,0\n# live_empty,0\n\
             number,thread,event,tag,bytes,align,zeroed,capacity,address,name\n{rows}"
        )
    };
    let rows = "0,0,allocate,kv,100,64,false,128,4096,\n\
        1,0,allocate,kv,64,64,false,64,8192,\n\
        2,0,grow,kv,128,,,128,4096,\n\
        3,0,grow,kv,129,,,192,4096,\n\
        4,0,grow,kv,1000,,,1024,8192,\n\
        5,0,release,kv,1000,,,1024,8192,\n\
        6,0,grow,kv,250,,,256,4096,\n";
    let recording = Recording::from_csv(file(rows, 7).as_bytes()).unwrap();
    let space = Simulated::new(4096);
    let report = recording.simulate(&space);
    // 128 bytes at 0, 64 behind them: event 3 would go over those.
    assert_eq!((report.growths, report.growths_refused_here), (3, 1));
    assert_eq!((report.first_mismatch, report.misplaced), (Some(3), 0));
    assert_eq!(report.peak_live_bytes, 128 + 1024);
    assert_eq!(report.peak_reserved_bytes, 128 + 1024);
    assert_eq!(report.peak_requested_bytes, 128 + 1000);
    assert_eq!(
        space.largest_free_bytes(),
        4096,
        "all is given back and joined"
    );
    assert_eq!(space.stats().requested_bytes, 0);
    // There is no more room than there is.
    let report = recording.simulate(&Simulated::new(1024));
    assert_eq!((report.growths, report.growths_refused_here), (2, 2));
}

/// What was written before blocks grew is read, and has no growth in it.
#[test]
fn recordings_of_the_first_version_are_read() {
    let (trace, handle) = traced(LIMITS);
    let mut buffer = handle.allocate(MIB, 64).unwrap();
    let before = trace.snapshot();
    buffer.try_grow(2 * MIB).unwrap();
    let after = trace.snapshot();
    let older = |text: &str| {
        let (csv, json) = ("# tenslab-trace,2", "\"version\":2");
        assert!(text.contains(csv) != text.contains(json), "{text}");
        let text = text.replacen(csv, "# tenslab-trace,1", 1);
        text.replacen(json, "\"version\":1", 1)
    };
    let as_json = |recording| older(&String::from_utf8(json(recording)).unwrap());
    let (csv_text, json_text) = (older(&csv(&before)), as_json(&before));
    assert_eq!(Recording::from_csv(csv_text.as_bytes()).unwrap(), before);
    assert_eq!(Recording::from_json(json_text.as_bytes()).unwrap(), before);
    let column = "event";
    let error = Recording::from_csv(older(&csv(&after)).as_bytes()).unwrap_err();
    assert_eq!(
        (error.line, error.problem),
        (11, TraceProblem::Value { column })
    );
    let error = Recording::from_json(as_json(&after).as_bytes()).unwrap_err();
    assert_eq!(error.problem, TraceProblem::Value { column });
    // A block never gets shorter.
    let (from, to) = (format!(",{},", 2 * MIB), format!(",{},", MIB - 1));
    let shorter = csv(&after).replacen(&from, &to, 1);
    let error = Recording::from_csv(shorter.as_bytes()).unwrap_err();
    let (before, bytes) = (MIB, MIB - 1);
    assert_eq!(error.problem, TraceProblem::Shrank { before, bytes });
}
