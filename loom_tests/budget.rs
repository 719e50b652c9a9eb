//! The budget: the limit holds at every moment, and nobody is refused for another's sake.

use std::ops::Range;
use std::ptr::NonNull;

use loom::sync::{Arc, Mutex};
use loom::thread;
use tenslab::memory::{AllocError, Allocator, Block, Budget, Charge, Decommitted, Limit, Request};

use super::harness::{Canary, Fate, Gate, Lab, model};

/// Two threads want the one block that there is room for, and give it back.
///
/// Fails when room is found under one lock and used under another (both get it), and when
/// bytes go back to the limit before their block is back.
#[test]
fn who_gets_bytes_finds_their_block_there() {
    fn use_it(fate: &Fate, budget: &Budget<Lab>) -> bool {
        let Ok(block) = budget.allocate_block(Request::new(64, 1).unwrap()) else {
            return false;
        };
        for canary in &fate.block {
            canary.write(canary.read() + 1);
        }
        // SAFETY: from this budget's `allocate_block`, and it goes by value, once.
        unsafe { budget.release_block(block) };
        true
    }

    model(|| {
        let fate = Fate::new();
        let limit = Limit::new(64);
        let budget = Arc::new(Budget::new(Lab::new(&fate), &limit));
        let other = thread::spawn({
            let (fate, budget) = (Arc::clone(&fate), Arc::clone(&budget));
            move || {
                fate.gate.pass();
                use_it(&fate, &budget)
            }
        });
        fate.gate.pass();
        let mine = use_it(&fate, &budget);
        let theirs = other.join().unwrap();
        assert!(mine || theirs, "there is room for one");
        assert_eq!((limit.used_bytes(), limit.peak_bytes()), (0, 64));
        assert_eq!(fate.released(), usize::from(mine) + usize::from(theirs));
    });
}

/// Runs `first` and `second` on two threads.
fn both<A: 'static, B>(limit: &Limit, first: fn(&Limit) -> A, second: fn(&Limit) -> B) -> (A, B) {
    let gate = Arc::new(Gate::new());
    let other = thread::spawn({
        let (gate, limit) = (Arc::clone(&gate), limit.clone());
        move || {
            gate.pass();
            first(&limit)
        }
    });
    gate.pass();
    let second = second(limit);
    (other.join().unwrap(), second)
}

/// One asks for more than there ever is, the other for what there is.
///
/// Fails when a request is added first and taken back where it was too much.
#[test]
fn what_fits_is_not_refused_because_of_what_does_not() {
    model(|| {
        let limit = Limit::new(10);
        let held = limit.charge(4).unwrap();
        let (never, fits) = both(
            &limit,
            |limit| limit.charge(7).is_err(),
            |limit| limit.charge(6).unwrap(),
        );
        assert!(never);
        drop((held, fits));
        assert_eq!(limit.used_bytes(), 0);
    });
}

/// Two together are too much, and one of them is right.
///
/// Fails when room is found under one lock and used under another.
#[test]
fn the_sum_is_never_above_the_limit() {
    model(|| {
        let limit = Limit::new(10);
        let (one, other) = both(&limit, |limit| limit.charge(6), |limit| limit.charge(7));
        assert!(one.is_ok() != other.is_ok());
        assert!(limit.used_bytes() <= 10);
        drop((one, other));
        assert_eq!(limit.used_bytes(), 0);
    });
}

/// Two charges at once, so at some moment both are out.
///
/// Fails when the peak is found under one lock and written under another: the thread that saw
/// less writes last.
#[test]
fn a_smaller_peak_never_wins() {
    model(|| {
        let limit = Limit::new(10);
        let charges = both(
            &limit,
            |limit| limit.charge(4).unwrap(),
            |limit| limit.charge(5).unwrap(),
        );
        drop(charges);
        assert_eq!((limit.used_bytes(), limit.peak_bytes()), (0, 9));
    });
}

/// One charges while the other forgets the peak: it is in the old one or in the new one.
#[test]
fn a_reset_peak_loses_no_charge() {
    model(|| {
        let limit = Limit::new(10);
        let (charge, before) = both(&limit, |limit| limit.charge(4).unwrap(), Limit::reset_peak);
        assert!(before == 4 || limit.peak_bytes() == 4);
        drop(charge);
        assert!(before == 4 || limit.peak_bytes() == 4);
    });
}

/// Two threads are short at once. The callback empties a cache, charges the same limit,
/// and registers a callback of its own.
///
/// Fails when a callback is called with the lock held: it waits for itself.
#[test]
fn a_callback_may_use_the_limit_it_is_called_for() {
    model(|| {
        let limit = Limit::new(10);
        let cache: Arc<Mutex<Option<Charge>>> =
            Arc::new(Mutex::new(Some(limit.charge(10).unwrap())));
        let guard = limit.on_pressure({
            let (limit, cache) = (limit.clone(), Arc::clone(&cache));
            move |short| {
                assert!(short.missing_bytes <= short.requested_bytes);
                let dropped = cache.lock().unwrap().take();
                let given_back = dropped.as_ref().map_or(0, Charge::bytes);
                drop(dropped);
                drop(limit.charge(1));
                drop(limit.on_pressure(|_| 0));
                given_back
            }
        });
        let (one, other) = both(&limit, |limit| limit.charge(5), |limit| limit.charge(5));
        // Who saw the cache empty may have come before its bytes were back.
        assert!(one.is_ok() || other.is_ok());
        drop((one, other, guard));
        assert_eq!(limit.used_bytes(), 0);
    });
}

/// Bytes of each of two blocks, which nobody touches.
static MEMORY: [[u8; 64]; 2] = [[0; 64]; 2];

/// So many blocks of 64 bytes, parts of which can be given back. Whoever has a block has its
/// canary.
struct Pages {
    free: Mutex<Vec<usize>>,
    owned: [Canary; 2],
}

impl Pages {
    fn new(blocks: usize) -> Self {
        Self {
            free: Mutex::new((0..blocks).collect()),
            owned: [Canary::new(), Canary::new()],
        }
    }

    fn touch(&self, block: &Block) {
        let canary = &self.owned[usize::try_from(block.cookie()).unwrap()];
        canary.write(canary.read() + 1);
    }
}

// SAFETY: loom's parts; a canary is only touched by who has its block, which loom checks.
unsafe impl Sync for Pages {}

// SAFETY: a block of the array is out once at a time, as `free` says; the bytes are
// initialised, and no model writes or reads them.
unsafe impl Allocator for Pages {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let bytes = request.bytes();
        let taken = self.free.lock().unwrap().pop();
        let at = taken.ok_or(AllocError::OutOfMemory { bytes })?;
        let start = NonNull::from(&MEMORY[at]).cast();
        let block = Block::new(start, bytes, 64, at as u64, request.tag());
        self.touch(&block);
        Ok(block)
    }

    unsafe fn release_block(&self, block: Block) {
        self.touch(&block);
        let at = usize::try_from(block.cookie()).unwrap();
        self.free.lock().unwrap().push(at);
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        self.touch(block);
        Decommitted {
            bytes: range.len(),
            ..Decommitted::default()
        }
    }
}

/// Two threads want the only block, give a part of it back, and then all of it.
///
/// Fails when what is decommitted is forgotten after the block went back: the other thread
/// has it by then, and it is the other's record that is forgotten.
#[test]
fn a_record_goes_before_its_block() {
    fn round(budget: &Budget<Pages>) -> bool {
        let Ok(block) = budget.allocate_block(Request::new(64, 1).unwrap()) else {
            return false;
        };
        // SAFETY: this budget's block, which is out, and a range of it.
        assert_eq!(unsafe { budget.decommit(&block, 0..48) }.bytes, 48);
        // SAFETY: from this budget's `allocate_block`, and it goes by value, once.
        unsafe { budget.release_block(block) };
        true
    }

    model(|| {
        let limit = Limit::unlimited();
        let budget = Arc::new(Budget::new(Pages::new(1), &limit));
        let gate = Arc::new(Gate::new());
        let other = thread::spawn({
            let (gate, budget) = (Arc::clone(&gate), Arc::clone(&budget));
            move || {
                gate.pass();
                round(&budget)
            }
        });
        gate.pass();
        let mine = round(&budget);
        let theirs = other.join().unwrap();
        assert!(mine || theirs, "there is one block");
        assert_eq!(limit.used_bytes(), 0);
    });
}

/// One thread decommits a block and hands it on; the other decommits one of its own and
/// gives both back.
///
/// Fails when blocks with a record are counted after the lock, with a load and a store: one
/// of two is lost, and who gives the second block back does not look for its record.
#[test]
fn who_releases_sees_what_another_decommitted() {
    fn decommitted(budget: &Budget<Pages>, block: Block) -> Block {
        // SAFETY: this budget's block, which is out, and a range of it.
        assert_eq!(unsafe { budget.decommit(&block, 0..48) }.bytes, 48);
        block
    }

    fn release(budget: &Budget<Pages>, block: Block) {
        // SAFETY: from this budget's `allocate_block`, and it goes by value, once.
        unsafe { budget.release_block(block) };
    }

    model(|| {
        let limit = Limit::unlimited();
        let budget = Arc::new(Budget::new(Pages::new(2), &limit));
        let gate = Arc::new(Gate::new());
        let request = Request::new(64, 1).unwrap();
        let [mine, theirs] = [(); 2].map(|()| budget.allocate_block(request).unwrap());
        let handed_on = Arc::new(Mutex::new(None));
        let other = thread::spawn({
            let (gate, budget) = (Arc::clone(&gate), Arc::clone(&budget));
            let (handed_on, theirs) = (Arc::clone(&handed_on), Sent(theirs));
            move || {
                gate.pass();
                let Sent(theirs) = { theirs };
                let theirs = decommitted(&budget, theirs);
                *handed_on.lock().unwrap() = Some(Sent(theirs));
            }
        });
        gate.pass();
        release(&budget, decommitted(&budget, mine));
        let early = handed_on.lock().unwrap().take();
        let is_early = early.is_some();
        if let Some(Sent(theirs)) = early {
            release(&budget, theirs);
        }
        other.join().unwrap();
        let late = handed_on.lock().unwrap().take();
        assert!(late.is_some() != is_early);
        if let Some(Sent(theirs)) = late {
            release(&budget, theirs);
        }
        assert_eq!(limit.used_bytes(), 0);
    });
}

/// A block on its way to another thread.
struct Sent(Block);

// SAFETY: a block is the right to give it back, which any thread may.
unsafe impl Send for Sent {}
