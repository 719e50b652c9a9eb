//! A budget counts committed bytes: what is decommitted makes room for others.
//!
//! How much goes is what the allocator says, so that this holds also where nothing can.

use std::sync::Arc;

use tenslab::memory::{
    AllocError, Allocator, BorrowError, Budget, CommitError, CpuAllocator, Guarded, Limit, Meter,
    Request, SharedAllocator, SlabAllocator, Storage, Trace,
};
use tenslab::{DType, Tensor};

const MIB: usize = 1 << 20;

fn limited(limit: &Limit) -> SharedAllocator {
    SharedAllocator::new(Budget::new(CpuAllocator::new(), limit))
}

/// Can parts of blocks be given back at all?
const GIVES: bool = cfg!(all(
    target_os = "linux",
    not(any(tenslab_portable, tenslab_asan))
));

#[test]
fn what_is_decommitted_is_not_counted_until_it_is_committed() {
    let limit = Limit::new(16 * MIB);
    let mut buffer = limited(&limit).allocate(8 * MIB, 64).unwrap();
    let all = limit.used_bytes();
    let gone = buffer.decommit(MIB..5 * MIB).bytes;
    assert!(!GIVES || gone == 4 * MIB);
    assert_eq!(limit.used_bytes(), all - gone);
    // Again, and a part of it: it went already.
    assert_eq!(buffer.decommit(MIB..5 * MIB).bytes, gone);
    buffer.decommit(2 * MIB..3 * MIB + 100);
    assert_eq!(limit.used_bytes(), all - gone);
    // More than that: what is new counts.
    let more = buffer.decommit(0..8 * MIB).bytes;
    assert_eq!(limit.used_bytes(), all - more);
    assert!(!GIVES || limit.used_bytes() == 0);
    buffer.commit(0..8 * MIB).unwrap();
    assert_eq!(limit.used_bytes(), all);
    buffer.commit(0..8 * MIB).unwrap();
    assert_eq!(limit.used_bytes(), all, "once");
}

#[test]
fn committing_a_part_counts_all_that_went_with_it_and_never_less_than_the_part() {
    let limit = Limit::unlimited();
    let mut buffer = limited(&limit).allocate(8 * MIB, 64).unwrap();
    let all = limit.used_bytes();
    let first = buffer.decommit(0..2 * MIB).bytes;
    let second = buffer.decommit(2 * MIB..4 * MIB).bytes;
    assert_eq!(limit.used_bytes(), all - first - second);
    buffer.commit(5 * MIB..6 * MIB).unwrap();
    assert_eq!(limit.used_bytes(), all - first - second, "nothing of it");
    buffer.commit(100..101).unwrap();
    assert_eq!(limit.used_bytes(), all - second);
    buffer.commit(2 * MIB - 1..2 * MIB + 1).unwrap();
    assert_eq!(limit.used_bytes(), all);
}

#[test]
fn a_block_goes_back_with_just_what_it_counts() {
    let limit = Limit::new(16 * MIB);
    let allocator = limited(&limit);
    let mut kept = allocator.allocate(2 * MIB, 64).unwrap();
    let kept_gone = kept.decommit(0..MIB).bytes;
    for round in 0..3 {
        let mut buffer = allocator.allocate(4 * MIB, 64).unwrap();
        buffer.decommit(round * MIB..(round + 1) * MIB);
        drop(buffer);
        // Its address comes again, and has no record then.
        let whole = allocator.allocate(4 * MIB, 64).unwrap();
        assert_eq!(limit.used_bytes(), 6 * MIB - kept_gone);
        drop(whole);
        assert_eq!(limit.used_bytes(), 2 * MIB - kept_gone);
    }
    drop(kept);
    assert_eq!(limit.used_bytes(), 0);
}

#[test]
fn a_commit_that_does_not_fit_is_refused_and_changes_nothing() {
    let limit = Limit::new(8 * MIB);
    let mut buffer = limited(&limit).allocate(8 * MIB, 64).unwrap();
    let gone = buffer.decommit(0..4 * MIB).bytes;
    let weights = limit.charge(gone).unwrap();
    if GIVES {
        let error = buffer.commit(0..4 * MIB).unwrap_err();
        assert!(
            matches!(error, AllocError::OverBudget { requested_bytes, .. } if requested_bytes == gone),
            "{error}"
        );
        assert_eq!(limit.used_bytes(), 8 * MIB);
    }
    drop(weights);
    buffer.commit(0..4 * MIB).unwrap();
    assert_eq!(limit.used_bytes(), 8 * MIB);
    drop(buffer);
    assert_eq!(limit.used_bytes(), 0);
}

/// Pressure that is made by a commit under a guard finds no lock held.
#[test]
fn a_callback_may_allocate_while_a_guarded_block_is_committed() {
    let limit = Limit::new(12 * MIB);
    let guarded = Guarded::new(Budget::new(CpuAllocator::new(), &limit)).with_quarantine(0);
    let allocator = SharedAllocator::new(guarded);
    let mut buffer = allocator.allocate(8 * MIB, 64).unwrap();
    let gone = buffer.decommit(0..8 * MIB).bytes;
    let held = std::sync::Mutex::new(Some(limit.charge(limit.available_bytes() - MIB).unwrap()));
    let _guard = limit.on_pressure({
        let allocator = allocator.clone();
        move |_| {
            drop(allocator.allocate(100, 64));
            held.lock()
                .unwrap()
                .take()
                .map_or(0, |charge| charge.bytes())
        }
    });
    buffer.commit(0..8 * MIB).unwrap();
    assert!(!GIVES || gone >= 7 * MIB);
    drop(buffer);
}

#[test]
fn two_threads_may_commit_parts_of_what_went_in_one_call() {
    const ROUNDS: usize = 300;
    let limit = Limit::unlimited();
    let budget = Arc::new(Budget::new(CpuAllocator::new(), &limit));
    let request = Request::new(4 * MIB, 64).unwrap();
    let block = budget.allocate_block(request).unwrap();
    let all = limit.used_bytes();
    /// A block that two threads look at.
    struct Both<'a>(&'a tenslab::memory::Block);
    // SAFETY: it is only lent to `commit`, with ranges that share no byte.
    unsafe impl Sync for Both<'_> {}
    for _ in 0..ROUNDS {
        // SAFETY: this budget's block, which is out, and nobody else is there.
        let gone = unsafe { budget.decommit(&block, 0..4 * MIB) }.bytes;
        assert_eq!(limit.used_bytes(), all - gone);
        let both = Both(&block);
        std::thread::scope(|scope| {
            for range in [0..2 * MIB, 2 * MIB..4 * MIB] {
                let (both, budget, limit) = (&both, &budget, &limit);
                scope.spawn(move || {
                    // SAFETY: as above, and the other thread has another range.
                    unsafe { budget.commit(both.0, range) }.unwrap();
                    assert!(limit.used_bytes() >= all, "used before it is paid for");
                });
            }
        });
        assert_eq!(limit.used_bytes(), all);
    }
    // SAFETY: this budget's block, which nobody uses any more.
    unsafe { budget.release_block(block) };
    assert_eq!(limit.used_bytes(), 0);
}

#[test]
fn a_block_grows_into_pages_that_count() {
    let limit = Limit::unlimited();
    let mut buffer = limited(&limit).allocate(2 * MIB + 1, 64).unwrap();
    let all = limit.used_bytes();
    let gone = buffer.decommit(MIB..2 * MIB + 1).bytes;
    assert_eq!(limit.used_bytes(), all - gone);
    if buffer.try_grow(all).is_ok() {
        assert_eq!(limit.used_bytes(), all);
    }
    drop(buffer);
    assert_eq!(limit.used_bytes(), 0);
}

/// The bytes of a tensor beside the range are as they were, and it can be used again.
#[test]
fn a_part_of_a_shared_storage_makes_room_while_tensors_stay() {
    let limit = Limit::new(8 * MIB);
    let below = Guarded::new(Budget::new(CpuAllocator::new(), &limit)).with_quarantine(0);
    let allocator = SharedAllocator::new(Meter::new(Trace::new(below)));
    let storage = Storage::from(allocator.allocate_zeroed(4 * MIB, 64).unwrap());
    let all = limit.used_bytes();
    let other = Tensor::from_storage(&storage, 2 * MIB, [2 * MIB], DType::U8).unwrap();
    other.write::<u8>().unwrap().fill(7);
    let gone = storage.decommit(0..2 * MIB).unwrap().bytes;
    assert!(!GIVES || gone >= 2 * MIB - (64 << 10), "{gone}");
    assert_eq!(limit.used_bytes(), all - gone);
    assert!(other.read::<u8>().unwrap().iter().all(|&byte| byte == 7));

    let weights = limit.charge(limit.available_bytes()).unwrap();
    if GIVES {
        let error = storage.commit(0..2 * MIB).unwrap_err();
        let refused = AllocError::OverBudget {
            requested_bytes: gone,
            live_bytes: 8 * MIB,
            limit_bytes: 8 * MIB,
            given_back_bytes: 0,
        };
        assert_eq!(error, CommitError::Alloc(refused));
    }
    drop(weights);
    storage.commit(0..2 * MIB).unwrap();
    assert_eq!(limit.used_bytes(), all);
    let first = Tensor::from_storage(&storage, 0, [2 * MIB], DType::U8).unwrap();
    first.write::<u8>().unwrap().fill(1);
    assert!(first.read::<u8>().unwrap().iter().all(|&byte| byte == 1));
    storage.decommit(0..4 * MIB).unwrap();
    drop((storage, first, other));
    assert_eq!((limit.used_bytes(), allocator.outstanding()), (0, 0));
}

#[test]
fn nobody_decommits_what_somebody_reads_or_writes_or_what_is_frozen() {
    let limit = Limit::unlimited();
    let slab = SlabAllocator::new(MIB, 2).unwrap();
    for allocator in [limited(&limit), SharedAllocator::new(slab)] {
        let storage = Storage::from(allocator.allocate_zeroed(MIB, 64).unwrap());
        let id = storage.id();
        let tensor = Tensor::from_storage(&storage, 0, [64], DType::U8).unwrap();
        let range = MIB / 2..MIB;
        let used = limit.used_bytes();

        let reads = tensor.read::<u8>().unwrap();
        let reading = BorrowError::Reading {
            storage: id,
            readers: 1,
        };
        assert_eq!(storage.decommit(range.clone()), Err(reading));
        assert_eq!(storage.commit(range.clone()), Ok(()));
        drop(reads);

        let writes = tensor.write::<u8>().unwrap();
        let writing = BorrowError::Writing { storage: id };
        assert_eq!(storage.decommit(range.clone()), Err(writing));
        let error = storage.commit(range.clone()).unwrap_err();
        assert_eq!(error, CommitError::Borrow(writing));
        assert!(error.to_string().contains(&id.to_string()), "{error}");
        drop(writes);

        assert_eq!(limit.used_bytes(), used, "a refusal changes nothing");
        // Each call ends its borrow.
        storage.decommit(range.clone()).unwrap();
        storage.commit(range.clone()).unwrap();
        drop(tensor.write::<u8>().unwrap());
        storage.freeze().unwrap();
        let frozen = BorrowError::Frozen { storage: id };
        assert_eq!(storage.decommit(range.clone()), Err(frozen));
        assert_eq!(storage.commit(range), Ok(()));
        assert_eq!(limit.used_bytes(), used);
    }
}

#[test]
fn a_range_that_is_not_of_the_storage_is_a_typo() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let storage = Storage::from(limited(&Limit::unlimited()).allocate(MIB, 64).unwrap());
    for (start, end) in [(0, MIB + 1), (MIB + 1, MIB + 1), (2, 1)] {
        let range = || std::ops::Range { start, end };
        let panics = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
        assert!(panics(&|| {
            let _done = storage.decommit(range());
        }));
        assert!(panics(&|| {
            let _done = storage.commit(range());
        }));
    }
    assert!(storage.decommit(0..MIB).is_ok(), "and nothing is held");
}

/// Of one storage at the same time, from two threads: what is counted is right at the end.
#[test]
fn threads_that_decommit_and_commit_one_storage_lose_no_byte_of_the_count() {
    let limit = Limit::unlimited();
    let storage = Storage::from(limited(&limit).allocate(4 * MIB, 64).unwrap());
    let all = limit.used_bytes();
    std::thread::scope(|scope| {
        for at in 0..2 {
            let storage = storage.clone();
            scope.spawn(move || {
                for round in 0..500 {
                    let range = at * MIB..(2 + at) * MIB;
                    // Either may be refused, for the other one is there.
                    if round % 2 == 0 {
                        let _refused = storage.decommit(range);
                    } else {
                        let _refused = storage.commit(range);
                    }
                }
            });
        }
    });
    storage.commit(0..4 * MIB).unwrap();
    assert_eq!(limit.used_bytes(), all);
    drop(storage);
    assert_eq!(limit.used_bytes(), 0);
}
