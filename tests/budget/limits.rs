use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenslab::memory::{
    AllocError, Allocator, Block, Budget, Charge, CpuAllocator, Limit, Request, SharedAllocator,
    SlabAllocator,
};
use tenslab::{DType, Tensor};

use crate::probe::{Dice, FailAt, Spy};

fn on_cpu(limit: &Limit) -> SharedAllocator {
    SharedAllocator::new(Budget::new(CpuAllocator::new(), limit))
}

fn refused(requested: usize, live: usize, limit: usize) -> AllocError {
    // Not constructible from outside but by being refused: so it is compared as text too.
    let refusing = Limit::new(limit);
    let held = refusing.charge(live).unwrap();
    let error = refusing.charge(requested).unwrap_err();
    drop(held);
    error
}

#[test]
fn the_last_byte_fits_and_the_next_one_does_not() {
    for limit_bytes in [0, 1, 4095, 4096, 1 << 20] {
        let limit = Limit::new(limit_bytes);
        let handle = on_cpu(&limit);
        let all = handle.allocate(limit_bytes, 64).unwrap();
        assert_eq!(limit.used_bytes(), limit_bytes);
        assert_eq!(limit.available_bytes(), 0);
        for bytes in [1, 4096, usize::MAX / 4] {
            let error = handle.allocate(bytes, 64).unwrap_err();
            assert_eq!(error, refused(bytes, limit_bytes, limit_bytes));
        }
        assert!(handle.allocate(0, 64).is_ok(), "nothing always fits");
        drop(all);
        assert_eq!(limit.used_bytes(), 0);
        assert!(handle.allocate(limit_bytes + 1, 64).is_err());
        assert_eq!(limit.used_bytes(), 0);
    }
}

#[test]
fn a_refusal_says_what_was_asked_what_is_used_and_what_may_be() {
    let limit = Limit::new(1000);
    let _held = limit.charge(900).unwrap();
    let error = limit.charge(101).unwrap_err();
    assert_eq!(
        error.to_string(),
        "101 bytes do not fit the budget: 900 of 1000 are in use, and 0 were given back on demand"
    );
    assert!(error.is_shortage());
    assert!(!limit.charge(1001).unwrap_err().is_shortage());
}

#[test]
fn sums_that_wrap_do_not_fit() {
    let limit = Limit::unlimited();
    let mut most = limit.charge(usize::MAX).unwrap();
    assert!(limit.charge(1).is_err());
    assert!(limit.charge(usize::MAX).is_err());
    assert!(most.grow(1).is_err());
    assert_eq!(most.bytes(), usize::MAX);
    drop(most);
    assert_eq!(limit.used_bytes(), 0);
}

#[test]
fn all_who_share_a_limit_share_what_is_left() {
    let limit = Limit::new(100 << 10);
    let weights = on_cpu(&limit);
    let slab = SlabAllocator::new(16 << 10, 100).unwrap();
    let kv = SharedAllocator::new(Budget::new(slab, &limit));
    let chunk = limit.charge(20 << 10).unwrap();
    let tensor = Tensor::zeros([12 << 10], DType::F32, &weights).unwrap();
    let block = kv.allocate(100, 64).unwrap();
    assert_eq!(limit.used_bytes(), (20 + 48 + 16) << 10);
    let second = kv.allocate(100, 64).unwrap();
    assert_eq!(limit.available_bytes(), 0);
    assert!(kv.allocate(1, 1).is_err() && weights.allocate(1, 1).is_err());
    drop((chunk, tensor, block, weights, kv));
    assert_eq!(
        limit.used_bytes(),
        16 << 10,
        "a buffer outlives the handles"
    );
    drop(second);
    assert_eq!(limit.used_bytes(), 0);
}

/// What was asked for fits, what the upstream took for it does not: the block goes back.
#[test]
fn a_block_that_takes_up_more_than_there_is_goes_back() {
    let (spy, log) = Spy::watching(SlabAllocator::new(4096, 10).unwrap());
    let limit = Limit::new(2 * 4096 + 4095);
    let handle = SharedAllocator::new(Budget::new(spy, &limit));
    let kept = [
        handle.allocate(1, 1).unwrap(),
        handle.allocate(4096, 64).unwrap(),
    ];
    assert_eq!(limit.used_bytes(), 2 * 4096);
    for _ in 0..20 {
        let error = handle.allocate(100, 64).unwrap_err();
        assert!(matches!(error, AllocError::OverBudget { .. }));
    }
    assert_eq!((log.taken(), log.returned()), (22, 20));
    assert_eq!(limit.used_bytes(), 2 * 4096);
    drop(kept);
    assert_eq!((limit.used_bytes(), log.returned()), (0, 22));
}

#[test]
fn what_the_upstream_refuses_is_not_charged() {
    for k in 0..5 {
        let limit = Limit::new(1000);
        let spy = Spy::new(CpuAllocator::new(), FailAt::call(k));
        let handle = SharedAllocator::new(Budget::new(spy, &limit));
        let found: Vec<_> = (0..5).map(|_| handle.allocate(200, 64)).collect();
        for (call, found) in found.iter().enumerate() {
            assert_eq!(found.is_err(), call == k);
        }
        assert_eq!(limit.used_bytes(), 800);
        drop(found);
        assert_eq!(limit.used_bytes(), 0);
    }
    let limit = Limit::unlimited();
    let slab = SlabAllocator::new(64, 1).unwrap();
    let handle = SharedAllocator::new(Budget::new(slab, &limit));
    assert!(handle.allocate(65, 1).is_err());
    assert!(handle.allocate(1, 128).is_err());
    assert!(handle.allocate(usize::MAX, 1).is_err());
    assert_eq!((limit.used_bytes(), limit.peak_bytes()), (0, 65));
}

#[test]
fn a_charge_grows_all_or_nothing_and_gives_back_what_it_holds() {
    let limit = Limit::new(100);
    let mut charge = limit.charge(10).unwrap();
    charge.grow(90).unwrap();
    assert!(charge.grow(1).is_err());
    assert_eq!((charge.bytes(), limit.used_bytes()), (100, 100));
    charge.shrink(60);
    charge.resize(70).unwrap();
    charge.resize(20).unwrap();
    assert!(charge.resize(101).is_err());
    assert_eq!((charge.bytes(), limit.used_bytes()), (20, 20));
    let mut part = charge.split(20);
    assert_eq!((charge.bytes(), part.bytes()), (0, 20));
    part.join(limit.charge(5).unwrap());
    part.join(charge);
    assert_eq!((part.bytes(), limit.used_bytes()), (25, 25));
    drop(part);
    assert_eq!((limit.used_bytes(), limit.peak_bytes()), (0, 100));
}

#[test]
fn a_charge_never_gives_more_than_it_holds() {
    let (limit, other) = (Limit::new(100), Limit::new(100));
    let mut charge = limit.charge(10).unwrap();
    let mut fails = |what: fn(&mut Charge, &Limit)| {
        assert!(catch_unwind(AssertUnwindSafe(|| what(&mut charge, &other))).is_err());
        assert_eq!(charge.bytes(), 10);
    };
    fails(|charge, _| charge.shrink(11));
    fails(|charge, _| drop(charge.split(usize::MAX)));
    fails(|charge, other| charge.join(other.charge(1).unwrap()));
    drop(charge);
    assert_eq!((limit.used_bytes(), other.used_bytes()), (0, 0));
}

#[test]
fn the_limit_moves_while_memory_is_out() {
    let limit = Limit::new(100);
    let handle = on_cpu(&limit);
    let mut out: Vec<_> = (0..10).map(|_| handle.allocate(10, 1).unwrap()).collect();
    limit.set_limit_bytes(50);
    assert_eq!((limit.available_bytes(), limit.shed()), (0, 50));
    assert!(handle.allocate(0, 1).is_ok());
    for _ in 0..5 {
        assert!(handle.allocate(1, 1).is_err());
        out.pop();
    }
    assert!(handle.allocate(1, 1).is_err());
    out.pop();
    out.push(handle.allocate(10, 1).unwrap());
    limit.set_limit_bytes(usize::MAX);
    out.push(handle.allocate(1 << 20, 1).unwrap());
    assert_eq!(limit.used_bytes(), 50 + (1 << 20));
    drop(out);
    assert_eq!(limit.used_bytes(), 0);
}

/// Lessons row 13.
#[test]
fn forgetting_the_peak_does_not_touch_what_is_used() {
    let limit = Limit::unlimited();
    let mut charge = limit.charge(20).unwrap();
    charge.shrink(10);
    assert_eq!(limit.reset_peak(), 20);
    assert_eq!((limit.used_bytes(), limit.peak_bytes()), (10, 10));
    charge.grow(1).unwrap();
    assert_eq!((limit.used_bytes(), limit.peak_bytes()), (11, 11));
}

/// Counts what is out of it, and remembers the most.
struct Watched {
    live: AtomicUsize,
    most: AtomicUsize,
}

// SAFETY: blocks come from the CPU allocator and go back to it unchanged.
unsafe impl Allocator for Watched {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let live = self.live.fetch_add(request.bytes(), Ordering::SeqCst) + request.bytes();
        self.most.fetch_max(live, Ordering::SeqCst);
        CpuAllocator::new().allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        self.live.fetch_sub(block.len(), Ordering::SeqCst);
        // SAFETY: the caller's promise; every CPU allocator is as good as another.
        unsafe { CpuAllocator::new().release_block(block) }
    }
}

/// The upstream counts for itself: what is out is never above the limit, not for a moment.
#[test]
fn the_limit_holds_while_threads_contend() {
    const LIMIT: usize = 10_000;
    let watched = Arc::new(Watched {
        live: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    });
    let limit = Limit::new(LIMIT);
    let handle = SharedAllocator::new(Budget::new(Arc::clone(&watched), &limit));
    let refusals = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (handle, refusals) = (handle.clone(), &refusals);
            scope.spawn(move || {
                let mut dice = Dice(seed);
                let mut out = Vec::new();
                for _ in 0..20_000 {
                    if dice.below(3) == 0 && !out.is_empty() {
                        out.swap_remove(dice.below(out.len()));
                    }
                    match handle.allocate(1 + dice.below(1000), 1) {
                        Ok(buffer) => out.push(buffer),
                        Err(_) => {
                            refusals.fetch_add(1, Ordering::Relaxed);
                            out.truncate(dice.below(out.len() + 1));
                        }
                    }
                }
            });
        }
    });
    assert!(watched.most.load(Ordering::SeqCst) <= LIMIT);
    assert!(limit.peak_bytes() <= LIMIT && limit.peak_bytes() > LIMIT - 1000);
    assert!(refusals.into_inner() > 0, "it was never at the limit");
    assert_eq!(
        (limit.used_bytes(), watched.live.load(Ordering::SeqCst)),
        (0, 0)
    );
}

#[test]
fn what_fits_is_never_refused_while_another_asks_for_too_much() {
    let limit = Limit::new(100);
    let done = Arc::new(AtomicBool::new(false));
    let greedy = std::thread::spawn({
        let (limit, done) = (limit.clone(), Arc::clone(&done));
        move || {
            while !done.load(Ordering::Relaxed) {
                assert!(limit.charge(101).is_err());
            }
        }
    });
    for _ in 0..100_000 {
        drop(limit.charge(100).expect("it fits"));
    }
    done.store(true, Ordering::Relaxed);
    greedy.join().unwrap();
    assert_eq!((limit.used_bytes(), limit.peak_bytes()), (0, 100));
}

/// Also in the middle of what a budget over a budget does.
#[test]
fn budgets_stack_and_each_limit_holds() {
    let (narrow, wide) = (Limit::new(100), Limit::new(1000));
    let inner = Budget::new(CpuAllocator::new(), &wide);
    let handle = SharedAllocator::new(Budget::new(inner, &narrow));
    let other = limit_of(&wide, 950);
    let held = handle.allocate(50, 1).unwrap();
    assert!(handle.allocate(50, 1).is_err(), "the wide one is full");
    assert_eq!((narrow.used_bytes(), wide.used_bytes()), (50, 1000));
    drop(other);
    assert!(handle.allocate(51, 1).is_err(), "the narrow one is full");
    drop(held);
    assert_eq!((narrow.used_bytes(), wide.used_bytes()), (0, 0));
}

fn limit_of(limit: &Limit, bytes: usize) -> Charge {
    limit.charge(bytes).unwrap()
}
