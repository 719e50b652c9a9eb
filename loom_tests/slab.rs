//! The slab's shared tier and its growth: a block has one holder at a time, and none is
//! ever lost. Its magazines are in `magazines.rs`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use tenslab::memory::{Allocator, Block, Meter, Request, Tag};
use tenslab::{SharedAllocator, SlabAllocator, Storage};

use super::harness::{Gate, model};

const BLOCKS: u32 = 2;

struct Lab {
    slab: SlabAllocator,
    /// Is the block out? Written at hand-out and at give-back, so that loom sees two
    /// holders that nothing orders, and the assertion two holders in order.
    shadow: [UnsafeCell<bool>; BLOCKS as usize],
    gate: Gate,
}

impl Lab {
    /// A slab of which no block was ever out, with `block_bytes` a block.
    fn fresh(block_bytes: usize) -> Self {
        Self {
            slab: SlabAllocator::new(block_bytes, BLOCKS).unwrap(),
            shadow: [UnsafeCell::new(false), UnsafeCell::new(false)],
            gate: Gate::new(),
        }
    }

    /// A slab whose blocks have all been out before, and are in the shared tier.
    fn new() -> Arc<Self> {
        let lab = Self::fresh(64);
        let blocks = [lab.take(), lab.take()];
        for block in blocks {
            lab.give_back(block.unwrap());
        }
        lab.slab.flush();
        Arc::new(lab)
    }

    fn take(&self) -> Option<Block> {
        let block = self
            .slab
            .allocate_block(Request::new(64, 64).unwrap())
            .ok()?;
        self.mark(&block, true);
        Some(block)
    }

    fn give_back(&self, block: Block) {
        self.mark(&block, false);
        // SAFETY: from this slab's `take`, and it goes by value.
        unsafe { self.slab.release_block(block) };
    }

    fn mark(&self, block: &Block, out: bool) {
        self.shadow[usize::try_from(block.cookie()).unwrap()].with_mut(|shadow| {
            // SAFETY: a live cell; loom fails the model where somebody else is at it.
            let before = unsafe { shadow.replace(out) };
            assert_ne!(before, out, "block {} has two holders", block.cookie());
        });
    }
}

/// Two threads take a block at once.
///
/// Fails when `take` finds the next blocks under one lock and takes them under another:
/// both get the same block.
#[test]
fn two_takers_get_two_blocks() {
    model(|| {
        let lab = Lab::new();
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                lab.take().unwrap()
            }
        });
        lab.gate.pass();
        let mine = lab.take().unwrap();
        let theirs = other.join().unwrap();
        assert!(lab.take().is_none(), "there are two blocks");
        lab.give_back(mine);
        lab.give_back(theirs);
    });
}

/// One thread takes both blocks and returns the first, keeping the second, while the
/// other is in the middle of its take (the ABA problem).
///
/// Fails as above: a stale next is installed and leases a block twice.
#[test]
fn a_stale_next_is_never_installed() {
    model(|| {
        let lab = Lab::new();
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                let first = lab.take();
                let kept = lab.take();
                if let Some(block) = first {
                    lab.give_back(block);
                }
                kept
            }
        });
        lab.gate.pass();
        let mine = [lab.take(), lab.take()];
        let kept = other.join().unwrap();
        for block in mine.into_iter().chain([kept]).flatten() {
            lab.give_back(block);
        }
    });
}

/// Two threads give a block back at once: to the same magazine, or to one each, or past them.
///
/// Fails when a magazine is taken with a load and a store: one of the two is lost.
#[test]
fn no_block_is_lost() {
    model(|| {
        let lab = Lab::new();
        let (mine, theirs) = (lab.take().unwrap(), lab.take().unwrap());
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                lab.give_back(theirs);
            }
        });
        lab.gate.pass();
        lab.give_back(mine);
        other.join().unwrap();
        let blocks = [lab.take(), lab.take()];
        for block in blocks {
            lab.give_back(block.expect("both blocks came back"));
        }
    });
}

/// Two threads take the first two blocks of a slab, which are so large that each is a
/// segment of its own.
///
/// Fails when a fresh block is found under one lock and counted under another: both
/// get it, and one of two segments is lost.
#[test]
fn two_takers_grow_one_segment_each() {
    model(|| {
        let lab = Arc::new(Lab::fresh(1 << 20));
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                lab.take().unwrap()
            }
        });
        lab.gate.pass();
        let mine = lab.take().unwrap();
        let theirs = other.join().unwrap();
        assert!(lab.slab.stats().reserved_bytes > 2 << 20);
        assert!(lab.take().is_none(), "there are two blocks");
        lab.give_back(mine);
        lab.give_back(theirs);
    });
}

/// The whole stack: two views of a block of a metered slab are dropped by two threads
/// after the handle is gone. The block comes back once, with its header slot.
///
/// Fails when the last view is found with a load and a store.
#[test]
fn a_shared_block_comes_back_through_the_meter() {
    model(|| {
        let gate = Arc::new(Gate::new());
        let meter = Arc::new(Meter::new(SlabAllocator::new(64, 1).unwrap()));
        let allocator = SharedAllocator::new(Arc::clone(&meter)).with_tag(Tag::Kv);
        let mine = Storage::from(allocator.allocate(64, 64).unwrap());
        let theirs = mine.clone();
        drop(allocator);
        assert_eq!(meter.snapshot()[Tag::Kv].live_bytes, 64);
        let other = thread::spawn({
            let gate = Arc::clone(&gate);
            move || {
                gate.pass();
                drop(theirs);
            }
        });
        gate.pass();
        drop(mine);
        other.join().unwrap();
        assert_eq!(meter.snapshot().total.live_bytes, 0);
        assert_eq!(meter.upstream().in_use(), 0);
    });
}
