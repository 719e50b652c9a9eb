//! Heap blocks that this thread has made so far.
//!
//! The tool counts what its own process does, so that `replay` can say how many heap
//! blocks a request costs on the machine and the build at hand, and not only in a test.
//! The price is one addition to a thread-local number for each heap block; giving one back is
//! not counted.
//! The times of `replay` do not feel it: where the count is 0, nothing was added.
//! The library has no global allocator: only this binary does.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static BLOCKS: Cell<u64> = const { Cell::new(0) };
}

/// Heap blocks made, or moved to another size, by this thread since it began.
pub(super) fn blocks() -> u64 {
    BLOCKS.get()
}

fn count() {
    // A thread that is ending has no counter any more, and nobody who reads it.
    let _ = BLOCKS.try_with(|blocks| blocks.set(blocks.get() + 1));
}

/// The system's allocator, counted.
struct Counting;

// SAFETY: every call goes to `System` unchanged. Counting allocates nothing: the number is
// made at compile time and has no destructor to register.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, that `layout` is not of size 0, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, that `layout` is not of size 0, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on: `ptr` came from here, so from `System`,
        // with this layout, and `new_size` is not 0 and fits `Layout`'s limit.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on: `ptr` came from here, so from `System`,
        // with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    #[test]
    fn every_way_to_make_a_heap_block_is_counted() {
        let before = super::blocks();
        let mut list = black_box(Vec::<u8>::with_capacity(16));
        list.reserve_exact(black_box(1 << 20));
        let zeroed = black_box(vec![0_u8; 4096]);
        assert_eq!(super::blocks() - before, 3);
        drop((list, zeroed));
        assert_eq!(super::blocks() - before, 3);
    }
}
