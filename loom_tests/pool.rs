//! The caching pool: a block has one holder at a time whether it comes from a cache, out of
//! another's or from the heap; nobody is refused for what others have in their hands.

use std::cell::Cell;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use tenslab::SharedAllocator;
use tenslab::internals::set_worker;
use tenslab::memory::{
    AllocError, Allocator, Block, CachingPool, LocalCache, PoolOptions, Request,
};

use super::harness::{Gate, model};

const PAGE: usize = 4096;

/// More pages than the models' pools have.
const MOST: usize = 4;

struct Lab {
    pool: CachingPool,
    local: LocalCache,
    /// Where the heap begins.
    base: usize,
    /// Is the page out? Written at hand-out and at give-back.
    shadow: [UnsafeCell<bool>; MOST],
    gate: Gate,
}

/// Whose cache a model's thread uses.
#[derive(Clone, Copy)]
enum Whose {
    Thread,
    Worker,
}

impl Lab {
    /// A pool that may have `pages` pages and has addresses for no more, which are in the heap
    /// and were out before.
    fn new(pages: usize) -> Arc<Self> {
        set_worker(0);
        let options = PoolOptions::new()
            .cap_bytes(pages * PAGE)
            .reservation_bytes(pages * PAGE);
        let pool = options.build().unwrap();
        let all = pool
            .allocate_block(Request::new(pages * PAGE, 64).unwrap())
            .unwrap();
        let lab = Self {
            local: pool.local_cache(2 * PAGE),
            base: all.as_ptr().addr().get(),
            shadow: std::array::from_fn(|_| UnsafeCell::new(false)),
            gate: Gate::new(),
            pool,
        };
        // SAFETY: from this pool, and it goes by value.
        unsafe { lab.pool.release_block(all) };
        lab.pool.flush();
        Arc::new(lab)
    }

    fn page(&self, block: &Block) -> usize {
        (block.as_ptr().addr().get() - self.base) / PAGE
    }

    fn take(&self, whose: Whose) -> Result<Block, AllocError> {
        let request = Request::new(PAGE, 64).unwrap();
        let block = match whose {
            Whose::Thread => self.pool.allocate_block(request)?,
            Whose::Worker => self.local.allocate_block(request)?,
        };
        self.mark(self.page(&block), true);
        Ok(block)
    }

    fn give_back(&self, whose: Whose, block: Block) {
        self.mark(self.page(&block), false);
        match whose {
            // SAFETY: from this pool, and it goes by value.
            Whose::Thread => unsafe { self.pool.release_block(block) },
            // SAFETY: from this pool, and it goes by value.
            Whose::Worker => unsafe { self.local.release_block(block) },
        }
    }

    /// Takes a page, uses it, and gives it back.
    fn round(&self, whose: Whose) {
        let block = self.take(whose).expect("one for each thread");
        // SAFETY: a page that is ours.
        unsafe { block.as_ptr().write(7) };
        // A lock that others take too: their steps may come here.
        let _ = self.pool.stats();
        // SAFETY: a page that is ours.
        assert_eq!(unsafe { block.as_ptr().read() }, 7, "its page went");
        self.give_back(whose, block);
    }

    fn mark(&self, page: usize, out: bool) {
        self.shadow[page].with_mut(|shadow| {
            // SAFETY: a live cell; loom fails the model where somebody else is at it.
            let before = unsafe { shadow.replace(out) };
            assert_ne!(before, out, "page {page} has two holders");
        });
    }

    /// Every page is there, once, and the numbers say so.
    fn is_whole(&self, pages: usize) {
        let stats = self.pool.stats();
        assert_eq!((stats.requested_bytes, stats.live_bytes), (0, 0));
        let all = self
            .pool
            .allocate_block(Request::new(pages * PAGE, 64).unwrap())
            .expect("all of it in one piece: a page is lost");
        // SAFETY: from this pool, and it goes by value.
        unsafe { self.pool.release_block(all) };
    }
}

/// Runs `mine` as thread 0 and `theirs` as thread `number`, at once.
fn together(
    lab: &Arc<Lab>,
    number: usize,
    mine: impl Fn(&Lab),
    theirs: impl Fn(&Lab) + Send + 'static,
) {
    let other = thread::spawn({
        let lab = Arc::clone(lab);
        move || {
            set_worker(number);
            lab.gate.pass();
            theirs(&lab);
        }
    });
    set_worker(0);
    lab.gate.pass();
    mine(lab);
    other.join().unwrap();
}

/// Two threads take the last two pages and give them back, each into a cache of its own, while
/// the other empties it.
///
/// Fails when a block is lost where a cache is emptied, and when a pool refuses without having
/// all caches in hand.
#[test]
fn what_another_cache_has_is_found_and_none_is_lost() {
    model(|| {
        let lab = Lab::new(2);
        // Both pages are in the cache of thread 0.
        let out = [
            lab.take(Whose::Thread).unwrap(),
            lab.take(Whose::Thread).unwrap(),
        ];
        for block in out {
            lab.give_back(Whose::Thread, block);
        }
        together(
            &lab,
            1,
            |lab| lab.round(Whose::Thread),
            |lab| lab.round(Whose::Thread),
        );
        lab.is_whole(2);
    });
}

/// A worker is at its local cache while another thread, with none of its own, takes what is in it.
///
/// Fails when a place is taken with a load and a store: both pop the same block.
#[test]
fn a_local_cache_is_one_threads_at_a_time() {
    model(|| {
        let lab = Lab::new(2);
        let out = [
            lab.take(Whose::Worker).unwrap(),
            lab.take(Whose::Worker).unwrap(),
        ];
        for block in out {
            lab.give_back(Whose::Worker, block);
        }
        together(
            &lab,
            1,
            |lab| lab.round(Whose::Worker),
            |lab| lab.round(Whose::Worker),
        );
        lab.is_whole(2);
    });
}

/// A worker empties its cache while another thread takes from the pool, at the cap.
///
/// Fails when a block is lost where a cache is emptied, and when a pool refuses while another
/// has a cache in hand.
#[test]
fn a_flush_hides_nothing_from_who_is_at_the_cap() {
    model(|| {
        let lab = Lab::new(1);
        let block = lab.take(Whose::Worker).unwrap();
        lab.give_back(Whose::Worker, block);
        together(
            &lab,
            1,
            |lab| _ = lab.local.flush(),
            |lab| lab.round(Whose::Thread),
        );
        lab.is_whole(1);
    });
}

/// One thread gives back more than its cache holds, so that some goes through the depot, while
/// another one that finds nothing of its own takes and gives back, at the cap.
///
/// Fails when what is in the depot is not looked for: then the pages cannot be had in one piece.
/// And when a block is lost where a cache is emptied.
#[test]
fn what_goes_through_the_depot_is_nobodys_loss() {
    model(|| {
        let lab = Lab::new(4);
        let [first, second, third, fourth] =
            [(); 4].map(|()| Cell::new(Some(lab.take(Whose::Thread).unwrap())));
        // One is free from the beginning, so nobody may be refused.
        lab.give_back(Whose::Thread, fourth.take().unwrap());
        together(
            &lab,
            1,
            |lab| {
                for block in [&first, &second, &third] {
                    lab.give_back(Whose::Thread, block.take().unwrap());
                }
            },
            |lab| lab.round(Whose::Thread),
        );
        lab.is_whole(4);
    });
}

/// A trim has the free pages in its hands while another thread wants one.
///
/// Fails when a trim leaves what it gives back in the index (the page goes while somebody uses
/// it), and when who finds nothing does not wait for what others have in their hands.
#[test]
fn a_trim_takes_no_page_from_anybody_and_nobody_is_refused_for_it() {
    model(|| {
        let lab = Lab::new(1);
        together(
            &lab,
            1,
            |lab| _ = lab.pool.trim_bytes(PAGE),
            |lab| lab.round(Whose::Thread),
        );
        lab.is_whole(1);
    });
}

/// The last handle goes while another thread gives the last block back.
///
/// Fails when a keep-alive is closed in two steps, and when it forgets what was counted at
/// the seats: the pool goes twice, or while its block does.
#[test]
fn a_pool_lives_until_its_last_block_is_back() {
    model(|| {
        set_worker(0);
        let gate = Arc::new(Gate::new());
        let pool = PoolOptions::new()
            .reservation_bytes(1 << 20)
            .build()
            .unwrap();
        let memory = SharedAllocator::new(pool);
        let (first, second) = (
            memory.allocate(PAGE, 64).unwrap(),
            memory.allocate(PAGE, 64).unwrap(),
        );
        drop(first); // in this thread's cache
        let other = thread::spawn({
            let gate = Arc::clone(&gate);
            move || {
                set_worker(1);
                gate.pass();
                drop(second);
            }
        });
        gate.pass();
        drop(memory);
        other.join().unwrap();
    });
}
