//! [`Fault`]: an allocator that refuses on request, so that a test sees what an error leaves
//! behind.

use std::num::NonZeroU64;
use std::ops::Range;

use super::{AllocError, Allocator, Block, Decommitted, Request, Stats};
use crate::sync::Mutex;
use crate::types::Device;

/// Which allocations of a [`Fault`] fail. Calls are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FaultPlan {
    /// None.
    #[default]
    Never,
    /// Those with these numbers: `3..4` is one, `3..u64::MAX` all from the fourth on.
    Calls(Range<u64>),
    /// Every n-th: with 3 those with the numbers 2, 5, 8 …, with 1 all.
    Every(NonZeroU64),
    /// One in so many on average, always the same ones for the same seed.
    Seeded {
        /// Chooses which.
        seed: u64,
        /// How few.
        one_in: NonZeroU64,
    },
}

impl FaultPlan {
    fn fails(&self, call: u64) -> bool {
        match self {
            FaultPlan::Never => false,
            FaultPlan::Calls(calls) => calls.contains(&call),
            FaultPlan::Every(n) => call % *n == n.get() - 1,
            FaultPlan::Seeded { seed, one_in } => mixed(seed ^ mixed(call)) % *one_in == 0,
        }
    }
}

/// A number that looks like any other: the finalizer of splitmix64 (Steele, Lea and
/// Flood, 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// An allocator that fails when it is told to, for tests of what stands on it.
///
/// To see whether code loses anything when memory runs out, fail its first allocation,
/// then its second, and so on until none fails:
///
/// ```
/// use std::sync::Arc;
/// use tenslab::memory::{CpuAllocator, Fault, FaultPlan, SharedAllocator};
/// use tenslab::{DType, Tensor};
///
/// for k in 0.. {
///     let fault = Arc::new(Fault::new(CpuAllocator::new(), FaultPlan::Calls(k..k + 1)));
///     let handle = SharedAllocator::new(Arc::clone(&fault));
///     let tensors: Result<Vec<_>, _> =
///         (0..3).map(|_| Tensor::zeros([16], DType::F32, &handle)).collect();
///     assert_eq!(tensors.is_err(), fault.failures() == 1);
///     drop(tensors);
///     assert_eq!(handle.outstanding(), 0);
///     if fault.failures() == 0 {
///         assert_eq!(k, 3);
///         break;
///     }
/// }
/// ```
///
/// A call that fails is an [`OutOfMemory`](AllocError::OutOfMemory) with the bytes asked
/// for; it does not reach the upstream. Calls for zero bytes count as well. Any thread may
/// call: one short lock each time, so that no number is given twice.
#[derive(Debug)]
pub struct Fault<A> {
    upstream: A,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    plan: FaultPlan,
    calls: u64,
    failures: u64,
}

impl<A> Fault<A> {
    /// Lets allocations of `upstream` fail as `plan` says.
    pub fn new(upstream: A, plan: FaultPlan) -> Self {
        Self {
            upstream,
            state: Mutex::new(State {
                plan,
                calls: 0,
                failures: 0,
            }),
        }
    }

    /// The allocator that is kept from working.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }

    /// Goes on with another plan, counting from 0 again.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.state.lock() = State {
            plan,
            calls: 0,
            failures: 0,
        };
    }

    /// Allocations asked for under this plan.
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Those of them that failed by the plan.
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// Counts a call, and says whether it fails.
    fn fails(&self) -> bool {
        let mut state = self.state.lock();
        let fails = state.plan.fails(state.calls);
        state.calls += 1;
        state.failures += u64::from(fails);
        fails
    }
}

// SAFETY: blocks come from the upstream and go back to it unchanged.
unsafe impl<A: Allocator> Allocator for Fault<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        if self.fails() {
            let bytes = request.bytes();
            return Err(AllocError::OutOfMemory { bytes });
        }
        self.upstream.allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.release_block(block) }
    }

    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        if self.fails() {
            return Err(AllocError::OutOfMemory { bytes });
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.grow_block(block, bytes) }
    }

    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        self.upstream.grown_capacity(block, bytes)
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.decommit(block, range) }
    }

    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.commit(block, range) }
    }

    unsafe fn protect(&self, block: &Block) -> usize {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.protect(block) }
    }

    unsafe fn unprotect(&self, block: &Block) -> bool {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.unprotect(block) }
    }

    fn device(&self) -> Device {
        self.upstream.device()
    }

    fn stats(&self) -> Stats {
        self.upstream.stats()
    }

    fn trim(&self) -> usize {
        self.upstream.trim()
    }
}
