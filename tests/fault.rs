//! Failing on request: which calls fail, and that nothing else does.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::num::NonZeroU64;
use std::sync::Arc;

use probe::Spy;
use tenslab::memory::{AllocError, CpuAllocator, Fault, FaultPlan, SharedAllocator};

const NONE: [u64; 0] = [];

/// The numbers of the calls that fail, of 1000.
fn failing(plan: FaultPlan) -> Vec<u64> {
    let (spy, log) = Spy::watching(CpuAllocator::new());
    let fault = Arc::new(Fault::new(spy, plan));
    let handle = SharedAllocator::new(Arc::clone(&fault));
    let mut failed = Vec::new();
    for call in 0..1000 {
        // Zero bytes count like any others.
        let bytes = usize::try_from(call % 3).unwrap();
        match handle.allocate(bytes, 1) {
            Ok(buffer) => assert_eq!(buffer.len(), bytes),
            Err(error) => {
                assert_eq!(error, AllocError::OutOfMemory { bytes });
                failed.push(call);
            }
        }
    }
    assert_eq!(fault.calls(), 1000);
    assert_eq!(fault.failures(), failed.len() as u64);
    assert_eq!(
        log.taken(),
        1000 - failed.len(),
        "failures stop short of it"
    );
    assert_eq!(log.taken(), log.returned());
    failed
}

fn nonzero(number: u64) -> NonZeroU64 {
    NonZeroU64::new(number).unwrap()
}

#[test]
fn the_plan_says_which_calls_fail() {
    assert_eq!(failing(FaultPlan::Never), NONE);
    assert_eq!(failing(FaultPlan::Calls(7..8)), [7]);
    assert_eq!(failing(FaultPlan::Calls(998..u64::MAX)), [998, 999]);
    assert_eq!(failing(FaultPlan::Calls(5..5)), NONE);
    assert_eq!(failing(FaultPlan::Every(nonzero(300))), [299, 599, 899]);
    assert_eq!(failing(FaultPlan::Every(nonzero(1))).len(), 1000);
    assert_eq!(failing(FaultPlan::Every(nonzero(u64::MAX))), NONE);
}

#[test]
fn a_seed_chooses_the_same_calls_each_time_and_another_seed_others() {
    let seeded = |seed, one_in| {
        let one_in = nonzero(one_in);
        failing(FaultPlan::Seeded { seed, one_in })
    };
    assert_eq!(seeded(1, 10), seeded(1, 10));
    assert_ne!(seeded(1, 10), seeded(2, 10));
    for seed in 0..20 {
        let failures = seeded(seed, 10).len();
        assert!(
            (50..=160).contains(&failures),
            "{failures} of 1000, seed {seed}"
        );
    }
    assert_eq!(seeded(3, 1).len(), 1000);
}

#[test]
fn a_new_plan_counts_from_the_beginning() {
    let fault = Arc::new(Fault::new(CpuAllocator::new(), FaultPlan::Never));
    let handle = SharedAllocator::new(Arc::clone(&fault));
    let held = handle.allocate(10, 1).unwrap();
    fault.set_plan(FaultPlan::Calls(0..1));
    assert_eq!((fault.calls(), fault.failures()), (0, 0));
    assert!(handle.allocate(10, 1).is_err());
    assert!(handle.allocate(10, 1).is_ok());
    assert_eq!((fault.calls(), fault.failures()), (2, 1));
    drop(held);
}

#[test]
fn threads_share_one_count() {
    let plan = FaultPlan::Every(nonzero(10));
    let fault = Arc::new(Fault::new(CpuAllocator::new(), plan));
    let handle = SharedAllocator::new(Arc::clone(&fault));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    drop(handle.allocate(1, 1));
                }
            });
        }
    });
    assert_eq!((fault.calls(), fault.failures()), (4000, 400));
}
