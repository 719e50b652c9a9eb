//! The meter and the trace: what two threads count at once adds up, and a block is not
//! counted twice while it changes hands.

use std::ptr::NonNull;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use tenslab::memory::{
    AllocError, Allocator, Block, EventKind, Meter, Request, Trace, TraceLimits,
};

use super::harness::{Fate, Gate, Lab, model};

/// Two threads allocate at once, so at some moment both blocks are out.
///
/// Fails when the peak is read under one lock and written under another: the thread that
/// saw less writes last.
#[test]
fn a_smaller_peak_never_wins() {
    model(|| {
        let fate = Fate::new();
        let meter = Arc::new(Meter::new(Lab::new(&fate)));
        let allocate =
            |meter: &Meter<Lab>| meter.allocate_block(Request::new(0, 1).unwrap()).unwrap();
        let other = thread::spawn({
            let (fate, meter) = (Arc::clone(&fate), Arc::clone(&meter));
            move || {
                fate.gate.pass();
                allocate(&meter)
            }
        });
        fate.gate.pass();
        let mine = allocate(&meter);
        let theirs = other.join().unwrap();
        let out = meter.snapshot().total;
        assert_eq!(out.allocations, 2);
        assert_eq!(out.peak_live_bytes, out.live_bytes);
        for block in [mine, theirs] {
            // SAFETY: from this meter's `allocate_block`, and each goes by value, once.
            unsafe { meter.release_block(block) };
        }
        assert_eq!(meter.snapshot().total.live_bytes, 0);
    });
}

/// An allocator with one block, which nobody touches.
struct OneBlock {
    is_out: AtomicBool,
    memory: NonNull<[u8; ONE_BLOCK_BYTES]>,
}

const ONE_BLOCK_BYTES: usize = 64;

impl OneBlock {
    fn new() -> Self {
        Self {
            is_out: AtomicBool::new(false),
            memory: NonNull::from(Box::leak(Box::new([0; ONE_BLOCK_BYTES]))),
        }
    }
}

// SAFETY: `memory` is only handed on; the rest is loom's.
unsafe impl Send for OneBlock {}
// SAFETY: `&OneBlock` hands `memory` on, and reaches nothing else but loom's atomic.
unsafe impl Sync for OneBlock {}

// SAFETY: the one block is out once at a time, is initialised, and does not move.
unsafe impl Allocator for OneBlock {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        assert!(request.bytes() <= ONE_BLOCK_BYTES && request.align() == 1);
        // Acquire: pairs with the Release of whoever gave the block back.
        if self.is_out.swap(true, Ordering::Acquire) {
            return Err(AllocError::Exhausted { blocks: 1 });
        }
        let (place, bytes) = (self.memory.cast(), request.bytes());
        Ok(Block::new(place, bytes, ONE_BLOCK_BYTES, 0, request.tag()))
    }

    unsafe fn release_block(&self, _block: Block) {
        // Release: what was done with the block, and counted of it, happens before it is
        // out again.
        self.is_out.store(false, Ordering::Release);
    }
}

impl Drop for OneBlock {
    fn drop(&mut self) {
        // SAFETY: leaked from a box of this type in `new`, and nobody has it any more.
        drop(unsafe { Box::from_raw(self.memory.as_ptr()) });
    }
}

/// Two threads take the only block and give it back. It is out once at a time, so no
/// more than one block was ever out.
///
/// Fails when the meter counts a block as back only after it went back: in between, the
/// other thread has taken it again.
#[test]
fn a_block_that_went_back_is_not_counted_twice() {
    model(|| {
        let lab = Arc::new((Gate::new(), Meter::new(OneBlock::new())));
        let turn = |(gate, meter): &(Gate, Meter<OneBlock>)| {
            gate.pass();
            let Ok(block) = meter.allocate_block(Request::new(9, 1).unwrap()) else {
                return;
            };
            // Mine is out, and nobody else's can be.
            assert_eq!(meter.snapshot().total.live_bytes, ONE_BLOCK_BYTES);
            // SAFETY: from this meter's `allocate_block`, by value, once.
            unsafe { meter.release_block(block) };
        };
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || turn(&lab)
        });
        turn(&lab);
        other.join().unwrap();
        let total = lab.1.snapshot().total;
        assert_eq!((total.allocations, total.live_bytes), (0, 0));
        assert_eq!(total.peak_live_bytes, ONE_BLOCK_BYTES);
    });
}

/// The same turns through a trace: in its history the block goes out and comes back by
/// turns, and while it is out it is the one live block.
///
/// Fails when the trace records a release only after the block went back: in between, the
/// other thread has recorded that it took it.
#[test]
fn a_block_is_recorded_as_back_before_it_is_out_again() {
    model(|| {
        let limits = TraceLimits {
            events: 8,
            live_blocks: 2,
        };
        let lab = Arc::new((Gate::new(), Trace::with_limits(OneBlock::new(), limits)));
        let turn = |(gate, trace): &(Gate, Trace<OneBlock>)| {
            gate.pass();
            let Ok(block) = trace.allocate_block(Request::new(9, 1).unwrap()) else {
                return;
            };
            assert_eq!(trace.live_snapshot().live().len(), 1);
            // SAFETY: from this trace's `allocate_block`, by value, once.
            unsafe { trace.release_block(block) };
        };
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || turn(&lab)
        });
        turn(&lab);
        other.join().unwrap();
        let recording = lab.1.snapshot();
        let mut is_out = false;
        for event in recording.events() {
            match event.kind {
                EventKind::Allocate(_) => assert!(!std::mem::replace(&mut is_out, true)),
                EventKind::Release { .. } => assert!(std::mem::replace(&mut is_out, false)),
                _ => {}
            }
        }
        assert!(!is_out && recording.live().is_empty());
    });
}
