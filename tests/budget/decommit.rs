//! A budget counts committed bytes: what is decommitted makes room for others.
//!
//! How much goes is what the allocator says, so that this holds also where nothing can.

use std::sync::Arc;

use tenslab::memory::{
    AllocError, Allocator, Budget, CpuAllocator, Guarded, Limit, Request, SharedAllocator,
};

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
