//! The meter: what two threads count at once adds up.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use tenslab::memory::{AllocError, Allocator, Block, Meter, Request};

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

/// An allocator with one block of 64 bytes, which nobody touches.
struct OneBlock {
    is_out: AtomicBool,
}

const ONE_BLOCK_BYTES: usize = 64;

// SAFETY: the one block is out once at a time, and the models touch no byte of it (nor
// could they: they ask for zero bytes).
unsafe impl Allocator for OneBlock {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        // Acquire: pairs with the Release of whoever gave the block back.
        if self.is_out.swap(true, Ordering::Acquire) {
            return Err(AllocError::Exhausted { blocks: 1 });
        }
        let place = request.dangling();
        Ok(Block::new(place, 0, ONE_BLOCK_BYTES, 0, request.tag()))
    }

    unsafe fn release_block(&self, _block: Block) {
        // Release: what was done with the block, and counted of it, happens before it is
        // out again.
        self.is_out.store(false, Ordering::Release);
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
        let lab = Arc::new((
            Gate::new(),
            Meter::new(OneBlock {
                is_out: AtomicBool::new(false),
            }),
        ));
        let turn = |(gate, meter): &(Gate, Meter<OneBlock>)| {
            gate.pass();
            let Ok(block) = meter.allocate_block(Request::new(0, 1).unwrap()) else {
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
