//! What a reader would use otherwise: mallocs, and the usual pools of ready blocks.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::Mutex;

use crossbeam_queue::ArrayQueue;

use crate::contender::{Shape, Shared};

/// A malloc, called through its `GlobalAlloc` without being the process's global allocator.
///
/// That is fair: where it is the global one, `alloc::alloc` jumps to this same function
/// with the same layout, so a direct call saves it a jump and costs it nothing. All four
/// keep heaps apart, so none sees what another was asked.
pub struct Malloc<A> {
    /// Which.
    pub malloc: A,
    /// The alignment of its layouts.
    pub align: usize,
}

/// What a malloc gave out, with the size that `dealloc` wants to hear again.
pub struct Chunk {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: a chunk is whoever's holds it; every `GlobalAlloc` takes it back on any thread.
unsafe impl Send for Chunk {}

impl<A: GlobalAlloc + Sync> Malloc<A> {
    #[inline]
    fn layout(&self, bytes: usize) -> Layout {
        Layout::from_size_align(bytes, self.align).expect("a size that fits")
    }
}

impl<A: GlobalAlloc + Sync> Shared for Malloc<A> {
    type Held = Chunk;

    #[inline]
    fn take(&self, bytes: usize) -> Chunk {
        // SAFETY: no workload asks for 0 bytes.
        let start = unsafe { self.malloc.alloc(self.layout(bytes)) };
        assert!(!start.is_null(), "memory for the race");
        Chunk { start, bytes }
    }

    #[inline]
    fn give(&self, held: Chunk) {
        // SAFETY: `take` got it from the same malloc with this very layout, and it is
        // given back by value and so once.
        unsafe { self.malloc.dealloc(held.start, self.layout(held.bytes)) };
    }

    #[inline]
    fn start(held: &Chunk) -> *mut u8 {
        held.start
    }
}

/// `vec![0; n]`, from the global allocator, which is glibc's.
pub struct ZeroedVec;

impl Shared for ZeroedVec {
    type Held = Vec<u8>;

    #[inline]
    fn take(&self, bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }

    #[inline]
    fn give(&self, held: Vec<u8>) {
        drop(held);
    }

    #[inline]
    fn start(held: &Vec<u8>) -> *mut u8 {
        held.as_ptr().cast_mut()
    }
}

/// A `Vec` of ready blocks behind the standard library's lock.
pub struct LockedVec(Mutex<Vec<Ready>>);

/// A block of a pool. As a raw pointer, so that it may be written through while it is held
/// by reference; the pool that made it drops it.
pub struct Ready(*mut [u8]);

// SAFETY: owned like the `Box` that it was made of.
unsafe impl Send for Ready {}

impl Ready {
    fn all(shape: Shape) -> impl Iterator<Item = Ready> {
        (0..shape.blocks).map(move |_| {
            let block = vec![0_u8; shape.bytes].into_boxed_slice();
            Ready(Box::into_raw(block))
        })
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `all`, and dropped once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl LockedVec {
    /// With all its blocks in it.
    pub fn new(shape: Shape) -> Self {
        Self(Mutex::new(Ready::all(shape).collect()))
    }
}

impl Shared for LockedVec {
    type Held = Ready;

    #[inline]
    fn take(&self, _bytes: usize) -> Ready {
        let mut blocks = self.0.lock().expect("nobody panics under the lock");
        blocks.pop().expect("a block for the race")
    }

    #[inline]
    fn give(&self, held: Ready) {
        let mut blocks = self.0.lock().expect("nobody panics under the lock");
        blocks.push(held);
    }

    #[inline]
    fn start(held: &Ready) -> *mut u8 {
        held.0.cast()
    }
}

/// crossbeam's bounded queue of ready blocks: first in, first out, so the block that comes
/// is the one that was used the longest ago.
pub struct Queue(ArrayQueue<Ready>);

impl Queue {
    /// With all its blocks in it.
    pub fn new(shape: Shape) -> Self {
        let queue = ArrayQueue::new(shape.blocks);
        for block in Ready::all(shape) {
            let full = queue.push(block);
            assert!(full.is_ok(), "there is room for `blocks`");
        }
        Self(queue)
    }
}

impl Shared for Queue {
    type Held = Ready;

    #[inline]
    fn take(&self, _bytes: usize) -> Ready {
        self.0.pop().expect("a block for the race")
    }

    #[inline]
    fn give(&self, held: Ready) {
        let full = self.0.push(held);
        debug_assert!(full.is_ok(), "there is room for `blocks`");
    }

    #[inline]
    fn start(held: &Ready) -> *mut u8 {
        held.0.cast()
    }
}
