//! The magazines of a slab: taken by one thread at a time, flushed, stolen from, and
//! looked into before anybody is told that there is no block.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use tenslab::SlabAllocator;
use tenslab::internals::set_worker;
use tenslab::memory::{AllocError, Allocator, Block, BlockError, BlockId, Request};

use super::harness::{Gate, model};

/// More than the models' slabs have.
const MOST: usize = 4;

struct Lab {
    slab: SlabAllocator,
    /// Is the block out? Written at hand-out and at give-back.
    shadow: [UnsafeCell<bool>; MOST],
    gate: Gate,
}

impl Lab {
    /// A slab of `blocks` blocks, which are in the magazine of thread 0 as far as it holds
    /// them (two).
    fn new(blocks: u32) -> Arc<Self> {
        Self::at(0, blocks)
    }

    /// The same with the magazine of another thread.
    fn at(worker: usize, blocks: u32) -> Arc<Self> {
        set_worker(worker);
        let lab = Self {
            slab: SlabAllocator::new(64, blocks).unwrap(),
            shadow: std::array::from_fn(|_| UnsafeCell::new(false)),
            gate: Gate::new(),
        };
        let out: Vec<_> = (0..blocks).map(|_| lab.take().unwrap()).collect();
        for block in out {
            lab.give_back(block);
        }
        Arc::new(lab)
    }

    fn take(&self) -> Result<Block, AllocError> {
        let block = self.slab.allocate_block(Request::new(64, 64).unwrap())?;
        self.mark(usize::try_from(block.cookie()).unwrap(), true);
        Ok(block)
    }

    fn give_back(&self, block: Block) {
        self.mark(usize::try_from(block.cookie()).unwrap(), false);
        // SAFETY: from this slab's `take`, and it goes by value.
        unsafe { self.slab.release_block(block) };
    }

    /// Takes a block and gives it back.
    fn round(&self) {
        let block = self.take().expect("one for each thread");
        self.give_back(block);
    }

    fn mark(&self, block: usize, out: bool) {
        self.shadow[block].with_mut(|shadow| {
            // SAFETY: a live cell; loom fails the model where somebody else is at it.
            let before = unsafe { shadow.replace(out) };
            assert_ne!(before, out, "block {block} has two holders");
        });
    }

    /// Every block is there, once, and the numbers say so.
    fn is_whole(&self) {
        assert_eq!(self.slab.in_use(), 0);
        assert_eq!(self.slab.stats().requested_bytes, 0);
        let out: Vec<_> = std::iter::from_fn(|| self.take().ok()).collect();
        assert_eq!(out.len(), self.slab.blocks() as usize, "a block is lost");
        for block in out {
            self.give_back(block);
        }
    }
}

/// Runs `mine` as thread `numbers[0]` and `theirs` as thread `numbers[1]`, at once.
fn together(
    lab: &Arc<Lab>,
    numbers: [usize; 2],
    mine: impl Fn(&Lab),
    theirs: impl Fn(&Lab) + Send + 'static,
) {
    let other = thread::spawn({
        let lab = Arc::clone(lab);
        move || {
            set_worker(numbers[1]);
            lab.gate.pass();
            theirs(&lab);
        }
    });
    set_worker(numbers[0]);
    lab.gate.pass();
    mine(lab);
    other.join().unwrap();
}

/// Two threads without a seat have the same magazine: one gets it, the other does without.
///
/// Fails when a magazine is taken with a load and a store (both pop the same block), when
/// its taking is Relaxed and when its leaving is (ids are read that nothing published).
#[test]
fn a_magazine_is_one_threads_at_a_time() {
    model(|| {
        let lab = Lab::at(2, 2);
        together(&lab, [2, 2], Lab::round, Lab::round);
        lab.is_whole();
    });
}

/// Two threads take and give back, each at its own magazine, the first at its seat; all
/// blocks are in one of the two at first.
///
/// Fails when the owner of a seat or who steals from it does not see the other (both pop the
/// same block), and when the other magazines are not looked into: a thread is refused a block
/// that nobody has.
#[test]
fn what_another_magazine_has_is_stolen() {
    model(|| {
        let lab = Lab::new(2);
        together(&lab, [0, 1], Lab::round, Lab::round);
        lab.is_whole();
    });
}

/// One thread takes the only block over and over, while another looks for a block. There
/// is a moment without one, so it may be refused; but with two blocks it may not, however
/// they move from magazine to magazine.
///
/// Fails when exhausted is said because a magazine was taken at that moment.
#[test]
fn nobody_is_refused_while_a_block_moves() {
    model(|| {
        let lab = Lab::new(2);
        together(
            &lab,
            [0, 1],
            |lab| {
                lab.round();
                lab.slab.flush();
            },
            Lab::round,
        );
        lab.is_whole();
    });
}

/// Two threads flush at once, and each magazine has a block.
///
/// Fails when blocks are linked under one lock and made the head under another.
#[test]
fn two_flushes_lose_no_block() {
    model(|| {
        let lab = Lab::new(2);
        // One of the two goes from the first magazine to the second.
        let block = lab.take().unwrap();
        set_worker(1);
        lab.give_back(block);
        let flush = |lab: &Lab| lab.slab.flush();
        together(&lab, [0, 1], flush, flush);
        lab.is_whole();
    });
}

/// A magazine is full, and one more block comes back: a batch goes to the shared tier,
/// from which another thread takes a batch. No mutant is for this one alone: it is where
/// a flush, a refill and a steal meet.
#[test]
fn a_flush_and_a_refill_lose_no_block() {
    model(|| {
        let lab = Lab::new(3);
        // Two are in magazine 0 and one is out.
        let third = std::cell::Cell::new(Some(lab.take().unwrap()));
        let other = lab.take().unwrap();
        lab.give_back(other);
        together(
            &lab,
            [0, 1],
            |lab| lab.give_back(third.take().unwrap()),
            |lab| {
                lab.slab.flush();
                lab.round();
            },
        );
        lab.is_whole();
    });
}

/// A trim has all idle blocks in its hands while another thread wants one.
///
/// Fails when who is refused does not wait for the trim.
#[test]
fn nobody_is_refused_for_a_trim() {
    model(|| {
        let lab = Lab::new(2);
        // One stays out, so that its row does.
        let kept = lab.take().unwrap();
        together(&lab, [0, 1], |lab| _ = lab.slab.trim(), Lab::round);
        lab.give_back(kept);
        lab.is_whole();
    });
}

/// Two threads give the same id back at once: one is told off.
///
/// Fails when the generation is checked and changed in two steps: the block is on the
/// list twice.
#[test]
fn one_of_two_that_give_back_an_id_succeeds() {
    model(|| {
        let lab = Lab::new(2);
        let id: BlockId = lab.slab.take_id().unwrap();
        let told = Arc::new(loom::sync::Mutex::new(Vec::new()));
        let tell = {
            let told = Arc::clone(&told);
            move |lab: &Lab| {
                let answer = lab.slab.give_back_id(id);
                told.lock().unwrap().push(answer);
            }
        };
        together(&lab, [0, 1], tell.clone(), tell);
        let told = told.lock().unwrap();
        assert_eq!(told.iter().filter(|answer| answer.is_ok()).count(), 1);
        assert!(told.contains(&Err(BlockError::GivenBack { id })));
        lab.is_whole();
    });
}
