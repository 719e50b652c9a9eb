//! The process's global allocator, counted: how many heap blocks were asked for.
//!
//! Every thread's blocks count, also those of the thread pool, the tokenizer and
//! the standard library. So "0 heap blocks per decoded token" is a statement about
//! the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Relaxed throughout: a number that publishes nothing. It is read by the thread that
/// waited for the others (a pool's `join` is Acquire), so their additions are in.
static BLOCKS: AtomicU64 = AtomicU64::new(0);

/// Heap blocks that the process has asked for so far; growing one counts as one.
pub(crate) fn blocks() -> u64 {
    BLOCKS.load(Ordering::Relaxed)
}

/// Asks for `count` heap blocks, and gives them back: to see that the count is real.
pub(crate) fn plant(count: u64) {
    for seed in 0..count {
        drop(std::hint::black_box(Box::new(seed)));
    }
}

// SAFETY: everything goes to `System` as it came; counting touches no memory of the heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise (a layout that is not empty), passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on: `block` is `System`'s, of this layout.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on: `block` is `System`'s, of this layout.
        unsafe { System.dealloc(block, layout) }
    }
}
