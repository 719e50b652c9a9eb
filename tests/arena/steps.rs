//! When a step ends, when not, and what is left of it.

use tenslab::memory::{Allocator, Request, StepArena, StepError, Storage, Tag};
use tenslab::{DType, Error, Tensor};

use super::{add_up, both};

#[test]
fn the_next_step_has_the_same_bytes() {
    let (arena, room) = both(StepArena::new());
    let step = || {
        let sizes = [100, 1, 4096, 64, 3000];
        let buffers = sizes.map(|bytes| room.allocate(bytes, 64).unwrap());
        buffers.map(|buffer| buffer.as_ptr().addr())
    };
    let first = step();
    let stats = arena.end_step().unwrap();
    assert_eq!((stats.step, stats.allocations), (0, 5));
    for number in 1..20 {
        assert_eq!(step(), first);
        assert_eq!(arena.end_step().unwrap().step, number);
    }
}

/// Neighbours share no cache line, not even with what is kept in front of them.
#[test]
fn what_is_out_is_apart() {
    let (_arena, room) = both(StepArena::new());
    let buffers: Vec<_> = (0..100).map(|_| room.allocate(1, 1).unwrap()).collect();
    let mut starts: Vec<_> = buffers.iter().map(|one| one.as_ptr().addr()).collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|two| two[1] - two[0] == 128));
    assert!(starts.iter().all(|start| start.is_multiple_of(64)));
}

#[test]
fn a_step_with_something_out_does_not_end_and_says_what() {
    let (arena, room) = both(StepArena::new());
    let (scratch, hidden) = (room.with_tag(Tag::Scratch), room.with_tag(Tag::Activations));
    arena.end_step().unwrap();
    let scores = scratch.allocate(100, 64).unwrap();
    let x = Tensor::zeros([4, 8], DType::F32, &hidden).unwrap();
    let y = Tensor::zeros([4, 8], DType::F32, &hidden).unwrap();
    let views = [x.slice(0, 1, 2).unwrap(), x.clone(), y.clone()];
    let none = room.allocate(0, 64).unwrap();

    let StepError::Live {
        step,
        allocations,
        by_tag,
    } = arena.end_step().unwrap_err()
    else {
        panic!("another error")
    };
    assert_eq!((step, allocations, arena.live()), (1, 3, 3));
    assert_eq!(
        (
            by_tag[Tag::Scratch],
            by_tag[Tag::Activations],
            by_tag[Tag::Kv]
        ),
        (1, 2, 0)
    );
    let error = Error::from(arena.end_step().unwrap_err());
    assert_eq!(
        error.to_string(),
        "step 1 cannot end: 3 of its allocations are still out (1 scratch, 2 activations); drop \
         them, or retire the step"
    );
    // It goes on as it was: what was out is as it was, and what comes is beside it.
    y.write::<f32>().unwrap().fill(7.0);
    let more = hidden.allocate(64, 64).unwrap();
    assert_eq!(arena.live(), 4);
    drop((scores, x, y, more));
    assert_eq!(arena.live(), 2, "views keep what they are of");
    assert_eq!(views[2].item::<f32>(&[3, 7]), 7.0);
    drop(views);
    // Nothing of zero bytes keeps a step from ending.
    assert_eq!(arena.end_step().unwrap().allocations, 4);
    drop(none);
    assert_eq!(arena.end_step().unwrap().allocations, 0);
}

#[test]
fn what_of_a_retired_step_is_out_keeps_its_chunk_and_no_later_step() {
    let (arena, room) = both(StepArena::new());
    let kept = room.allocate_zeroed(1000, 64).unwrap();
    let other = room.allocate(1000, 64).unwrap();
    let retired = arena.retire_step();
    assert_eq!((retired.allocations, retired.parked_allocations), (2, 2));
    assert_eq!(retired.parked_bytes, retired.retained_bytes);
    assert_eq!(arena.live(), 0);
    let before = kept.as_ptr().addr();
    for _ in 0..40 {
        let mut used = room.allocate(40_000, 64).unwrap();
        used.as_mut_slice().fill(0xff);
        assert!(arena.end_step().is_err());
        let start = used.as_ptr().addr();
        assert!(start + 40_000 <= before || start >= before + 1000);
        drop(used);
        assert_eq!(arena.end_step().unwrap().parked_allocations, 2);
    }
    assert!(kept.as_slice().iter().all(|&byte| byte == 0));
    drop(kept);
    assert_eq!(arena.end_step().unwrap().parked_allocations, 1);
    add_up(arena.stats());
    drop(other);
    let stats = arena.end_step().unwrap();
    assert_eq!((stats.parked_allocations, stats.parked_bytes), (0, 0));
    add_up(arena.stats());
}

/// Two chunks take turns where each step leaves something to the next one.
#[test]
fn a_tensor_that_lives_one_step_longer_costs_a_second_chunk_and_no_third() {
    let (arena, room) = both(StepArena::new());
    let mut logits = room.allocate(10_000, 64).unwrap();
    let mut most = 0;
    for step in 0..50 {
        drop(room.allocate(30_000, 64).unwrap());
        let stats = arena.retire_step();
        assert_eq!(stats.parked_allocations, 1, "step {step}");
        most = most.max(stats.retained_bytes);
        logits = room.allocate(10_000, 64).unwrap();
    }
    assert_eq!(most, 2 * (64 << 10));
    drop(logits);
}

#[test]
fn a_buffer_outlives_the_arena_that_it_is_of() {
    let (arena, room) = both(StepArena::new());
    let storage = Storage::from(room.allocate_zeroed(100, 64).unwrap());
    let tensor = Tensor::from_storage(&storage, 0, [25], DType::F32).unwrap();
    arena.retire_step();
    drop((arena, room, storage));
    tensor.write::<f32>().unwrap().fill(3.0);
    let thread = std::thread::spawn(move || tensor.item::<f32>(&[24]));
    assert_eq!(thread.join().unwrap(), 3.0);
}

/// What came back is used again in the same step only where all of its chunk did.
#[test]
fn a_chunk_is_empty_when_the_last_of_it_came_back() {
    let (arena, room) = both(StepArena::new());
    let (first, second) = (
        room.allocate(64, 64).unwrap(),
        room.allocate(64, 64).unwrap(),
    );
    let top = first.as_ptr();
    drop(first);
    let third = room.allocate(64, 64).unwrap();
    assert_ne!(third.as_ptr(), top);
    drop((second, third));
    assert_eq!(room.allocate(64, 64).unwrap().as_ptr(), top);
    // So a step that never holds much never takes much.
    for _ in 0..100_000 {
        drop(room.allocate(3000, 64).unwrap());
    }
    let stats = arena.end_step().unwrap();
    assert_eq!(stats.peak_bytes, 3008 + 64);
    assert_eq!(
        (stats.allocations, stats.retained_bytes),
        (100_004, 64 << 10)
    );
}

#[test]
fn fresh_bytes_are_zero_and_old_ones_where_that_was_asked_for() {
    let (_arena, room) = both(StepArena::new());
    let fresh = room.allocate(10_000, 4096).unwrap();
    assert!(fresh.as_slice().iter().all(|&byte| byte == 0));
    drop(fresh);
    for align in [1, 64, 4096, 1 << 17] {
        for bytes in [1, 63, 100, 5000, 50_000, 200_000] {
            let mut used = room.allocate(60_000, 64).unwrap();
            used.as_mut_slice().fill(0xff);
            let beside = room.allocate_zeroed(bytes, align).unwrap();
            assert!(beside.as_slice().iter().all(|&byte| byte == 0));
            drop((used, beside));
            let zeroed = room.allocate_zeroed(bytes, align).unwrap();
            assert!(zeroed.as_slice().iter().all(|&byte| byte == 0));
            assert!(zeroed.as_ptr().addr().is_multiple_of(align));
        }
    }
}

/// Threads that allocate, drop what others made, and end steps: whoever ends one finds
/// nothing of it out.
#[test]
fn any_thread_may_drop_and_any_may_end() {
    let (arena, room) = both(StepArena::new());
    let (give, take) = std::sync::mpsc::sync_channel(64);
    let ended = std::thread::scope(|scope| {
        let dropper = scope.spawn(move || take.iter().map(drop).count());
        for _ in 0..2 {
            let (room, give) = (room.clone(), give.clone());
            scope.spawn(move || {
                for bytes in 1..3000 {
                    let mut buffer = room.allocate(bytes, 64).unwrap();
                    buffer.as_mut_slice().fill(bytes as u8);
                    give.send(buffer).unwrap();
                }
            });
        }
        drop(give);
        let mut ended = 0;
        while !dropper.is_finished() {
            ended += u64::from(arena.end_step().is_ok());
        }
        assert_eq!(dropper.join().unwrap(), 2 * 2999);
        ended
    });
    let last = arena.end_step().unwrap();
    assert_eq!(last.step, ended);
    assert_eq!(arena.stats().live_bytes, 0);
    add_up(arena.stats());
}

#[test]
fn a_footprint_is_what_is_taken_at_every_alignment() {
    let arena = StepArena::new().with_room(1 << 22);
    for log in 0..=20 {
        for bytes in [1, 64, 65, 1000] {
            let request = Request::new(bytes, 1 << log).unwrap();
            let block = arena.allocate_block(request).unwrap();
            let other = arena.allocate_block(request).unwrap();
            for block in [block, other] {
                // SAFETY: of this arena, once, and nobody used it.
                unsafe { arena.release_block(block) };
            }
            let stats = arena.end_step().unwrap();
            assert_eq!(stats.peak_bytes, 2 * StepArena::footprint(&request));
        }
    }
    assert_eq!(StepArena::footprint(&Request::new(0, 4096).unwrap()), 0);
    let huge = Request::new(isize::MAX as usize - 63, 64).unwrap();
    assert_eq!(StepArena::footprint(&huge), usize::MAX);
}
