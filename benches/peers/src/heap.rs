//! Counts heap blocks: calls of a malloc that ask for memory.
//!
//! Off by default and switched on for a pass of its own after the timing. Rival mallocs
//! are wrapped for that pass only. The process's global allocator has to be wrapped all
//! the time: contenders that go through it (`vec![0; n]`, and tenslab's `CpuAllocator`
//! below 1 MiB) pay one load and one branch that is always predicted.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static COUNTING: AtomicBool = AtomicBool::new(false);
static BLOCKS: AtomicU64 = AtomicU64::new(0);

/// A malloc that counts while [`switch`] is on.
pub struct Counted<A>(pub A);

/// Counts from now on, or no more. Whoever switches waits for its threads before and after.
pub fn switch(on: bool) {
    // Relaxed: the barriers of a race order it before and after the counted calls.
    COUNTING.store(on, Ordering::Relaxed);
}

/// Heap blocks counted so far.
pub fn blocks() -> u64 {
    // Relaxed: read after a barrier.
    BLOCKS.load(Ordering::Relaxed)
}

#[inline]
fn count() {
    // Relaxed: see `switch`.
    if COUNTING.load(Ordering::Relaxed) {
        // Relaxed: a sum, read after a barrier.
        BLOCKS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to a malloc that keeps the contract.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counted<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.dealloc(start, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.realloc(start, layout, bytes) }
    }
}
