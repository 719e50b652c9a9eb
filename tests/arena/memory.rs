//! How many bytes it holds.

use std::sync::{Arc, Weak};

use tenslab::memory::{AllocError, Allocator, Buffer, Limit, Request, SharedAllocator, StepArena};

use super::probe::Dice;
use super::{add_up, both};

const KIB: usize = 1 << 10;

/// Allocates `count` times `bytes`, or as often as it can.
fn fill(room: &SharedAllocator, count: usize, bytes: usize) -> Vec<Buffer> {
    (0..count)
        .map_while(|_| room.allocate(bytes, 64).ok())
        .collect()
}

#[test]
fn nothing_is_taken_before_the_first_allocation() {
    let limit = Limit::unlimited();
    let (arena, room) = both(StepArena::new().with_limit(&limit));
    drop(room.allocate(0, 64).unwrap());
    arena.end_step().unwrap();
    assert_eq!((arena.stats().reserved_bytes, limit.peak_bytes()), (0, 0));
    drop(room.allocate(1, 64).unwrap());
    assert_eq!(
        (arena.stats().reserved_bytes, limit.used_bytes()),
        (64 * KIB, 64 * KIB)
    );
}

#[test]
fn the_limit_counts_every_chunk_and_gets_all_of_it_back() {
    let limit = Limit::new(10 << 20);
    let (arena, room) = both(StepArena::new().with_limit(&limit));
    for step in 0..100 {
        let held = fill(&room, 1 + step % 7, 1000 * (1 + step * step));
        assert_eq!(limit.used_bytes(), arena.stats().reserved_bytes);
        add_up(arena.stats());
        drop(held);
        arena.end_step().unwrap();
        assert_eq!(limit.used_bytes(), arena.stats().reserved_bytes);
        add_up(arena.stats());
    }
    assert!(limit.peak_bytes() <= 10 << 20 && limit.used_bytes() > 0);
    drop((arena, room));
    assert_eq!(limit.used_bytes(), 0);
}

/// A chunk of the usual size is twice as large as what is there. Where the limit has no room
/// for it, there is one that just holds the request: what fits is never refused.
#[test]
fn a_limit_is_used_up_to_its_last_page() {
    for pages in [17, 33, 34, 100, 1000] {
        let limit = Limit::new(pages * 4 * KIB);
        let (arena, room) = both(StepArena::new().with_limit(&limit));
        // A page of a chunk has room for so much: 128 bytes less, and 64 of them a header.
        let held = fill(&room, usize::MAX, 4096 - 128 - 64);
        let error = room.allocate(4096 - 128 - 64, 64).unwrap_err();
        let AllocError::OverBudget {
            requested_bytes,
            live_bytes,
            limit_bytes,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!((requested_bytes, limit_bytes), (4096, pages * 4 * KIB));
        assert_eq!((live_bytes, limit.used_bytes()), (limit_bytes, limit_bytes));
        assert!(
            held.len() >= pages - 1,
            "{} blocks in {pages} pages",
            held.len()
        );
        assert_eq!(arena.stats().live_bytes, held.len() * (4096 - 128 - 64));
        add_up(arena.stats());
        // And what was refused changed nothing.
        drop(held);
        let again = fill(&room, usize::MAX, 4096 - 128 - 64);
        assert!(again.len() >= pages - 1);
    }
}

/// Others of the limit are asked only for what is really missing, and after the arena gave
/// back what it does not need itself.
#[test]
fn idle_chunks_go_before_others_are_asked() {
    let limit = Limit::new(400 * KIB);
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let _guard = limit.on_pressure({
        let asked = Arc::clone(&asked);
        move |short| {
            asked.lock().unwrap().push(short.missing_bytes);
            0
        }
    });
    let (arena, room) = both(StepArena::new().with_limit(&limit));
    drop(fill(&room, 30, 10 * KIB)); // 64, 64, 128 KiB, and a page or three for each of the rest
    assert!(arena.stats().reserved_bytes > 256 * KIB);
    let large = room.allocate(390 * KIB, 64).unwrap();
    assert_eq!(*asked.lock().unwrap(), [0; 0]);
    assert_eq!(limit.used_bytes(), 392 * KIB);
    assert!(room.allocate(20 * KIB, 64).is_err());
    assert_eq!(*asked.lock().unwrap(), [24 * KIB - 8 * KIB]);
    drop(large);
}

#[test]
fn a_callback_may_trim_the_arena_that_is_short() {
    let limit = Limit::new(200 * KIB);
    let (arena, room) = both(StepArena::new().with_limit(&limit));
    let (other, other_room) = both(StepArena::new().with_limit(&limit));
    drop(other_room.allocate(100 * KIB, 64).unwrap());
    let weak: [Weak<StepArena>; 2] = [&arena, &other].map(Arc::downgrade);
    let _guard = limit.on_pressure(move |_| {
        let both = weak.iter().filter_map(Weak::upgrade);
        both.map(|arena| arena.trim()).sum()
    });
    let held = room.allocate(150 * KIB, 64).unwrap();
    assert_eq!(other.stats().reserved_bytes, 0);
    drop(held);
}

#[test]
fn trim_gives_back_what_nothing_is_out_of() {
    let limit = Limit::unlimited();
    let (arena, room) = both(StepArena::new().with_limit(&limit));
    let held = room.allocate(10 * KIB, 64).unwrap();
    let idle = room.allocate(100 * KIB, 64).unwrap();
    assert_eq!(arena.trim(), 0);
    drop(idle);
    assert_eq!(arena.trim(), 104 * KIB);
    assert_eq!(limit.used_bytes(), 64 * KIB);
    drop(held);
    assert_eq!(room.trim(), 64 * KIB);
    assert_eq!((limit.used_bytes(), arena.trim()), (0, 0));
    drop(room.allocate(10 * KIB, 64).unwrap());
    add_up(arena.stats());
}

/// The first step takes what comes, piece by piece; from then on there is one chunk.
#[test]
fn many_chunks_become_one_of_just_the_size() {
    let (arena, room) = both(StepArena::new());
    let held = fill(&room, 100, 10_000);
    assert_eq!(arena.stats().reserved_bytes, 1 << 20); // 64, 64, 128, 256 and 512 KiB
    drop(held);
    let stats = arena.end_step().unwrap();
    let room_taken = 100 * (10_048 + 64);
    assert_eq!(stats.peak_bytes, room_taken);
    assert_eq!(
        stats.retained_bytes,
        (room_taken + 128).next_multiple_of(4096)
    );
    for _ in 0..3 {
        drop(fill(&room, 100, 10_000));
        assert_eq!(
            arena.end_step().unwrap().retained_bytes,
            stats.retained_bytes
        );
    }
}

#[test]
fn a_spike_is_forgotten_after_sixteen_steps() {
    for spike in [1 << 20, 100 << 20] {
        let limit = Limit::unlimited();
        let (arena, room) = both(StepArena::new().with_limit(&limit));
        let step = |bytes: usize| {
            drop(fill(&room, 10, bytes / 10));
            arena.end_step().unwrap().retained_bytes
        };
        for _ in 0..20 {
            step(100_000);
        }
        assert!(step(spike) >= spike);
        let kept = (0..16).take_while(|_| step(100_000) >= spike).count();
        assert!((7..=16).contains(&kept), "kept for {kept} steps");
        assert!(step(100_000) <= 2 * 110_000);
        assert_eq!(limit.used_bytes(), arena.stats().reserved_bytes);
        add_up(arena.stats());
    }
}

/// Steps that come now and then keep their chunk: it is not made anew for each.
#[test]
fn a_large_step_in_each_eight_keeps_its_chunk() {
    let limit = Limit::unlimited();
    let (arena, room) = both(StepArena::new().with_limit(&limit));
    for step in 0..100 {
        let bytes = if step % 8 == 0 { 1 << 20 } else { 1000 };
        drop(room.allocate(bytes, 64).unwrap());
        let retained = arena.end_step().unwrap().retained_bytes;
        assert_eq!(retained, (1 << 20) + 4096, "step {step}");
    }
}

/// And if they come more rarely, it is made anew a few times, and then kept for longer.
#[test]
fn a_large_step_in_each_forty_keeps_its_chunk_before_long() {
    let (arena, room) = both(StepArena::new());
    let mut made = 0;
    for step in 0..4000 {
        let before = room.stats().reserved_bytes;
        let bytes = if step % 40 == 0 { 1 << 20 } else { 1000 };
        drop(room.allocate(bytes, 64).unwrap());
        made += usize::from(room.stats().reserved_bytes > before);
        arena.end_step().unwrap();
    }
    assert!((2..=5).contains(&made), "{made} times");
    // One that never comes again is let go of all the same.
    let kept = (0..200).take_while(|_| {
        drop(room.allocate(1000, 64).unwrap());
        arena.end_step().unwrap().retained_bytes > 1 << 20
    });
    assert!(kept.count() < 200);
}

/// Lessons row 44: steps that fail in the middle leave no more behind than those that do not.
/// (bumpalo by itself keeps twice as much after one such step.)
#[test]
fn a_thousand_failing_steps_keep_no_more_than_twice_the_largest() {
    let limit = Limit::new(3 << 20);
    let (arena, room) = both(StepArena::new().with_limit(&limit));
    let mut largest = 64 * KIB;
    let mut failed = 0;
    for step in 0..1000 {
        // From 8 to 58 KiB at a time, until it is refused or has enough.
        let bytes = (8 + step * 7 % 51) * KIB;
        let held = fill(&room, 60, bytes);
        let half = held.len() / 2;
        let mut held = held;
        if held.len() < 60 {
            failed += 1;
        }
        held.truncate(half);
        assert!(arena.end_step().is_err());
        drop(held);
        let stats = arena.end_step().unwrap();
        largest = largest.max(stats.peak_bytes);
        assert!(
            stats.retained_bytes <= 2 * largest,
            "step {step}: {stats:?}"
        );
        assert!(limit.used_bytes() <= 3 << 20);
        assert_eq!(limit.used_bytes(), stats.retained_bytes);
    }
    assert!(failed > 100, "{failed} steps were refused something");
    for _ in 0..17 {
        drop(room.allocate(1000, 64).unwrap());
        arena.end_step().unwrap();
    }
    assert_eq!(limit.used_bytes(), 64 * KIB);
}

#[test]
fn room_that_was_asked_for_is_one_chunk_and_stays() {
    let (arena, room) = both(StepArena::new().with_room(1 << 20));
    for _ in 0..40 {
        drop(room.allocate(10, 64).unwrap());
        let retained = arena.end_step().unwrap().retained_bytes;
        assert_eq!(retained, (1 << 20) + 4096);
    }
    drop(fill(&room, 16, (64 << 10) - 64));
    assert_eq!(arena.end_step().unwrap().retained_bytes, (1 << 20) + 4096);
}

#[test]
fn what_was_reserved_needs_nothing_more() {
    let limit = Limit::new(1 << 20);
    let (arena, room) = both(StepArena::new().with_limit(&limit));
    let plan = [(100_000, 4096), (1, 1), (0, 64), (300_000, 64)];
    let plan = plan.map(|(bytes, align)| Request::new(bytes, align).unwrap());
    let sum: usize = plan.iter().map(StepArena::footprint).sum();
    arena.reserve(&plan).unwrap();
    assert_eq!(limit.used_bytes(), (sum + 128).next_multiple_of(4096));
    limit.set_limit_bytes(0);
    for _ in 0..2 {
        let held = plan.map(|request| room.allocate(request.bytes(), request.align()).unwrap());
        arena.reserve([]).unwrap();
        assert!(arena.reserve(&plan).is_err(), "nothing is left of it");
        drop(held);
        arena.reserve(&plan).unwrap();
    }
    let stats = arena.end_step().unwrap();
    assert_eq!(stats.peak_bytes, sum);
    let huge = Request::new(isize::MAX as usize / 2, 64).unwrap();
    assert!(arena.reserve(&[huge; 5]).is_err());
    assert!(room.allocate(isize::MAX as usize - 63, 64).is_err());
    assert_eq!(limit.used_bytes(), stats.retained_bytes);
}

#[test]
#[should_panic(expected = "one limit, before it is used")]
fn two_limits_are_a_typo() {
    let limit = Limit::new(1);
    let _ = StepArena::new().with_limit(&limit).with_limit(&limit);
}

/// Steps whose sizes have a heavy tail: most take a few hundred KiB, one in a thousand as much
/// as a hundred of them. On average the arena holds what such steps need now and then; bumpalo
/// by itself what the largest of them needed, and for ever.
#[test]
fn ten_thousand_heavy_tailed_steps_hold_far_less_than_the_largest() {
    const STEPS: usize = 10_000;
    let (arena, room) = both(StepArena::new());
    let mut bump = bumpalo::Bump::new();
    let mut dice = Dice(13);
    let (mut held, mut taken, mut bump_held, mut largest, mut changes) = (0, 0, 0, 0, 0);
    for _ in 0..STEPS {
        // Pareto with exponent 1.2, from 64 KiB up to 64 MiB, in pieces of 8 KiB.
        let share = (1 + dice.below(1 << 20)) as f64 / f64::from(1 << 20);
        let bytes = ((64 * KIB) as f64 * share.powf(-1.0 / 1.2)).min(f64::from(64 << 20));
        let pieces = bytes as usize / (8 * KIB);
        let before = arena.stats().reserved_bytes;
        drop(fill(&room, pieces, 8 * KIB));
        let stats = arena.end_step().unwrap();
        changes += usize::from(stats.retained_bytes != before);
        largest = largest.max(stats.peak_bytes);
        taken += stats.peak_bytes / STEPS;
        held += stats.retained_bytes / STEPS;
        for _ in 0..pieces {
            bump.try_alloc_layout(std::alloc::Layout::from_size_align(8 * KIB, 64).unwrap())
                .unwrap();
        }
        bump.reset();
        bump_held += bump.allocated_bytes() / STEPS;
    }
    println!(
        "a step takes {} KiB, the largest {}; the arena holds {}, bumpalo {}; {changes} changes",
        taken / KIB,
        largest / KIB,
        held / KIB,
        bump_held / KIB
    );
    assert!(
        held < 20 * taken && held < largest / 8,
        "{held} held, {taken} taken"
    );
    assert!(changes < 500, "{changes} changes");
    assert!(held < bump_held / 4, "{held} held, {bump_held} by bumpalo");
}

#[test]
fn steps_that_are_retired_make_the_next_one_no_larger() {
    let arena = Arc::new(StepArena::new());
    let room = SharedAllocator::new(Arc::clone(&arena));
    let mut kept = Vec::new();
    for step in 1..=24 {
        kept.push(room.allocate(100, 64).unwrap());
        arena.retire_step();
        // A chunk of the first size for each; doubled each time it would be a terabyte.
        let reserved = room.stats().reserved_bytes;
        assert!(
            reserved <= step * (64 << 10),
            "{reserved} bytes after {step} steps"
        );
    }
    drop(kept);
    arena.end_step().unwrap();
    assert!(room.stats().reserved_bytes <= 2 * (64 << 10));
}
