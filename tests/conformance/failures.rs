//! The k-th call of whatever is below fails, for every k: nothing panics, nothing leaks,
//! nothing is counted, and what was there stays.

use std::sync::Arc;

use tenslab::memory::{
    AllocError, Allocator, CpuAllocator, Fault, FaultPlan, SharedAllocator, SlabAllocator, Storage,
};
use tenslab::{DType, Tensor};

use super::probe::{CountedPages, FailAt, Spy};
use super::{Any, BLOCK, BOTTOMS, block_bytes, name, widened, wrap, wrappers};

/// All kinds of allocation, until one fails. Returns the bytes of those that came out.
fn story(handle: &SharedAllocator) -> Result<usize, AllocError> {
    let small = handle.allocate(100, 64)?;
    let none = handle.allocate(0, 64)?;
    let zeroed = handle.allocate_zeroed(BLOCK, 4096)?;
    let large = Storage::from(handle.allocate(200 << 10, 64)?);
    drop(small);
    let again = handle.allocate(50, 1)?;
    let tensor = Tensor::zeros([16, 16], DType::F32, handle).map_err(|error| match error {
        tenslab::tensor::TensorError::Alloc(error) => error,
        other => panic!("{other}"),
    })?;
    let view = tensor.slice(0, 3, 5).unwrap();
    drop(tensor);
    assert_eq!(view.item::<f32>(&[1, 15]), 0.0);
    Ok(none.len() + zeroed.len() + large.len() + again.len())
}

/// Runs the story; afterwards nothing is out and nothing is counted.
fn told(upstream: Any, what: &str) -> Result<usize, AllocError> {
    let handle = SharedAllocator::new(upstream);
    let found = story(&handle);
    assert_eq!(handle.outstanding(), 0, "{what}");
    let stats = handle.stats();
    assert_eq!((stats.live_bytes, stats.requested_bytes), (0, 0), "{what}");
    if let Err(error) = found {
        assert!(
            matches!(error, AllocError::OutOfMemory { .. }),
            "{what}: {error}"
        );
        // It was this once. (A slab that could not grow tries again.)
        assert!(story(&handle).is_ok(), "{what}: and again");
    }
    found
}

/// Lessons rows 41 and 16: in front of the bottom, and between the wrappers.
#[test]
fn any_call_between_the_layers_may_fail() {
    for bottom in BOTTOMS {
        for wrappers in wrappers() {
            for depth in 0..=wrappers.len() {
                let (above, below) = wrappers.split_at(depth);
                let mut k = 0;
                loop {
                    let what = format!("{}, {k} at {depth}", name(&wrappers, bottom.name));
                    let (spy, log) = Spy::watching(wrap(below, bottom.under(&wrappers)));
                    let fault = Arc::new(Fault::new(spy, FaultPlan::Calls(k..k + 1)));
                    let whole = wrap(above, Arc::clone(&fault) as Any);
                    let found = told(whole, &what);
                    assert_eq!(log.taken(), log.returned(), "{what}");
                    assert_eq!(found.is_err(), fault.failures() == 1, "{what}");
                    drop(fault);
                    assert!(log.is_gone(), "{what}: something is kept");
                    if found.is_ok() {
                        break;
                    }
                    k += 1;
                }
                assert_eq!(k, 6, "calls of the story");
            }
        }
    }
}

/// Also the pages below a slab, under every two wrappers.
#[test]
fn any_call_for_pages_may_fail() {
    for wrappers in wrappers() {
        let mut k = 0;
        loop {
            let what = format!("{}, {k}", name(&wrappers, "slab of pages"));
            let pages = CountedPages::new(FailAt::call(k));
            let counts = Arc::clone(&pages.0);
            let slab = SlabAllocator::with_pages(block_bytes(&wrappers), 64, pages).unwrap();
            let found = told(wrap(&wrappers, Arc::new(slab)), &what);
            assert_eq!(found.is_err(), counts.fail.calls() > k, "{what}");
            assert_eq!(
                (counts.regions(), counts.reserved_bytes()),
                (0, 0),
                "{what}"
            );
            if found.is_ok() {
                assert!(k >= 4, "a segment and its table, reserved and committed");
                break;
            }
            k += 1;
        }
    }
}

/// Nothing changes about a stack however often it is refused.
#[test]
fn a_stack_that_always_fails_stays_as_it_was() {
    for wrappers in wrappers() {
        let plan = FaultPlan::Calls(0..u64::MAX);
        let fault = Arc::new(Fault::new(CpuAllocator::new(), plan));
        let handle = SharedAllocator::new(wrap(&wrappers, Arc::clone(&fault) as Any));
        for bytes in [0, 1, BLOCK, isize::MAX as usize - 63] {
            let error = match widened(&wrappers, bytes, 64) {
                Ok(bytes) => AllocError::OutOfMemory { bytes },
                Err(error) => error,
            };
            assert_eq!(handle.allocate(bytes, 64).unwrap_err(), error);
            assert_eq!(handle.allocate_zeroed(bytes, 64).unwrap_err(), error);
        }
        let calls = fault.calls();
        assert!(
            calls < 8 * 10,
            "{}: {calls} calls",
            name(&wrappers, "fault")
        );
        assert_eq!(handle.outstanding(), 0);
        assert_eq!(fault.stats().live_bytes, 0);
    }
}
