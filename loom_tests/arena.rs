//! A step's end against those who allocate and drop: one lock, and what has to be done under
//! it in one go.

use std::sync::atomic::{AtomicUsize as Plain, Ordering::SeqCst};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use tenslab::StepArena;
use tenslab::memory::{Allocator, Block, Request, StepError};

use super::harness::{Gate, model};

/// Bytes of an allocation, and its place in a chunk, header included.
const BYTES: usize = 64;
const SHADOWS: usize = 8;

struct Lab {
    arena: StepArena,
    /// Is the place out? By the distance from the first one, downwards: loom sees two holders
    /// that nothing orders, and the assertion two holders in order.
    shadow: [UnsafeCell<bool>; SHADOWS],
    /// Where the first allocation of the only chunk is.
    top: Plain,
    gate: Gate,
}

impl Lab {
    fn new() -> Self {
        Self {
            arena: StepArena::new(),
            shadow: std::array::from_fn(|_| UnsafeCell::new(false)),
            top: Plain::new(0),
            gate: Gate::new(),
        }
    }

    fn request() -> Request {
        Request::new(BYTES, 64).unwrap()
    }

    fn take(&self) -> Block {
        let block = self.arena.allocate_block(Self::request()).unwrap();
        let _ = self
            .top
            .compare_exchange(0, block.as_ptr().addr().get(), SeqCst, SeqCst);
        self.mark(&block, true);
        block
    }

    fn give_back(&self, block: Block) {
        self.mark(&block, false);
        // SAFETY: from this arena's `take`, and it goes by value.
        unsafe { self.arena.release_block(block) };
    }

    fn mark(&self, block: &Block, out: bool) {
        let down = self.top.load(SeqCst) - block.as_ptr().addr().get();
        let place = down / StepArena::footprint(&Self::request());
        self.shadow[place].with_mut(|shadow| {
            // SAFETY: a live cell; loom fails the model where somebody else is at it.
            let before = unsafe { shadow.replace(out) };
            assert_ne!(before, out, "place {place} has two holders");
        });
    }
}

/// One thread ends the step while another makes an allocation, and keeps it.
///
/// Fails when the end looks whether something is out under one lock, and ends the step under
/// another: then an allocation is of a step that ended, and still out.
#[test]
fn a_step_that_ended_has_nothing_out() {
    model(|| {
        let lab = Arc::new(Lab::new());
        lab.give_back(lab.take());
        lab.arena.end_step().unwrap();
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                lab.take()
            }
        });
        lab.gate.pass();
        let early = lab.arena.end_step();
        let kept = other.join().unwrap();
        match early {
            Ok(stats) => assert_eq!(stats.allocations, 0, "one of the step is still out"),
            Err(StepError::Live { allocations, .. }) => assert_eq!(allocations, 1),
            Err(error) => panic!("{error}"),
        }
        assert!(lab.arena.end_step().is_err());
        lab.give_back(kept);
        assert_eq!(lab.arena.end_step().unwrap().allocations, 1);
    });
}

/// One thread drops the last allocation of a chunk while another makes new ones.
///
/// Fails when the chunk is found without allocations under one lock, and emptied under
/// another: what was made in between is handed out again.
#[test]
fn a_chunk_is_empty_when_the_last_of_it_came_back() {
    model(|| {
        let lab = Arc::new(Lab::new());
        let last = lab.take();
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                lab.give_back(last);
            }
        });
        lab.gate.pass();
        let first = lab.take();
        other.join().unwrap();
        let more = [lab.take(), lab.take()];
        assert_eq!(lab.arena.live(), 3);
        for block in more {
            lab.give_back(block);
        }
        lab.give_back(first);
        lab.arena.end_step().unwrap();
        assert_eq!(lab.arena.stats().live_bytes, 0);
    });
}

/// One thread retires the step while another drops the last allocation of it.
///
/// Fails when a chunk that is in use is found under one lock, and parked under another: if its
/// last allocation came back in between, nothing ever brings the chunk back.
#[test]
fn a_chunk_that_was_parked_comes_back() {
    model(|| {
        let lab = Arc::new(Lab::new());
        let last = lab.take();
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                lab.give_back(last);
            }
        });
        lab.gate.pass();
        lab.arena.retire_step();
        other.join().unwrap();
        let before = lab.arena.stats().reserved_bytes;
        let again = lab.arena.allocate_block(Lab::request()).unwrap();
        let after = lab.arena.stats().reserved_bytes;
        assert_eq!(before, after, "the chunk is lost");
        // SAFETY: of this arena, once.
        unsafe { lab.arena.release_block(again) };
        let stats = lab.arena.end_step().unwrap();
        assert_eq!((stats.parked_allocations, stats.parked_bytes), (0, 0));
    });
}

/// Two threads make allocations that need a chunk each.
///
/// Fails when the slot for a chunk is found under one lock, and filled under another: one of
/// two chunks is lost, with what is out of it.
#[test]
fn two_who_need_a_chunk_have_two() {
    model(|| {
        const LARGE: usize = 60 << 10;
        let arena = Arc::new((StepArena::new(), Gate::new()));
        let take = |(arena, gate): &(StepArena, Gate)| {
            gate.pass();
            let request = Request::new(LARGE, 64).unwrap();
            arena.allocate_block(request).unwrap()
        };
        let other = thread::spawn({
            let arena = Arc::clone(&arena);
            move || take(&arena)
        });
        let mine = take(&arena);
        let theirs = other.join().unwrap();
        let (arena, _) = &*arena;
        assert_eq!(
            arena.stats().reserved_bytes,
            2 * (64 << 10),
            "a chunk is lost"
        );
        for block in [mine, theirs] {
            // SAFETY: of this arena, once.
            unsafe { arena.release_block(block) };
        }
        assert_eq!(arena.end_step().unwrap().allocations, 2);
    });
}
