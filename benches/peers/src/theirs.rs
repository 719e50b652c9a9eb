//! What a reader would use otherwise: mallocs, and the usual pools of ready blocks.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;
use std::sync::Mutex;

use bumpalo::Bump;
use crossbeam_queue::ArrayQueue;

use crate::contender::{Contender, Hand, Shape, Shared};
use crate::ours::ALIGN;

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
    /// Its own call for giving memory back, or nothing.
    pub purge: fn(),
}

/// What mallocs have for giving memory that nobody uses to the system.
pub mod purge {
    use std::ptr;

    /// `malloc_trim`: every whole page that is free, of all its arenas.
    pub fn glibc() {
        // SAFETY: no precondition; 0 is how much to leave at the heap's end.
        unsafe { libc::malloc_trim(0) };
    }

    /// `mi_collect`: this thread's pages and the common ones, now.
    pub fn mimalloc() {
        // SAFETY: no precondition.
        unsafe { libmimalloc_sys::mi_collect(true) };
    }

    /// `thread.tcache.flush`, then `arena.<all>.purge`.
    pub fn jemalloc() {
        // 4096 stands for all arenas (`MALLCTL_ARENAS_ALL`).
        for name in [c"thread.tcache.flush", c"arena.4096.purge"] {
            // SAFETY: the name ends in a zero, and neither reads nor writes a value.
            let answer = unsafe {
                tikv_jemalloc_sys::mallctl(
                    name.as_ptr(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                    0,
                )
            };
            assert_eq!(answer, 0, "{name:?}");
        }
    }
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

    #[inline(always)]
    fn take(&self, bytes: usize) -> Chunk {
        // SAFETY: no workload asks for 0 bytes.
        let start = unsafe { self.malloc.alloc(self.layout(bytes)) };
        assert!(!start.is_null(), "memory for the race");
        Chunk { start, bytes }
    }

    #[inline(always)]
    fn give(&self, held: Chunk) {
        // SAFETY: `take` got it from the same malloc with this very layout, and it is
        // given back by value and so once.
        unsafe { self.malloc.dealloc(held.start, self.layout(held.bytes)) };
    }

    #[inline]
    fn start(held: &Chunk) -> *mut u8 {
        held.start
    }

    fn trim(&self) {
        (self.purge)();
    }
}

/// Pages straight from the system, mapped for each block and unmapped with it.
pub struct FreshPages;

impl Shared for FreshPages {
    type Held = Chunk;

    #[inline(always)]
    fn take(&self, bytes: usize) -> Chunk {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new private mapping at no particular address touches nobody's memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "memory for the race");
        Chunk {
            start: start.cast(),
            bytes,
        }
    }

    #[inline(always)]
    fn give(&self, held: Chunk) {
        // SAFETY: `take` mapped exactly this, and it is given back by value and so once.
        let answer = unsafe { libc::munmap(held.start.cast(), held.bytes) };
        debug_assert_eq!(answer, 0, "a mapping of our own");
    }

    #[inline]
    fn start(held: &Chunk) -> *mut u8 {
        held.start
    }
}

/// bumpalo's arena, one for each thread: blocks go back at the end of a step.
pub struct Bumps;

/// A thread's arena.
pub struct Bumping(Bump);

/// A block of an arena.
pub struct Bumped(NonNull<u8>);

// SAFETY: nobody else has the block, and the arena's thread only takes it back when the
// step is over.
unsafe impl Send for Bumped {}

impl Contender for Bumps {
    type Held = Bumped;
    type Hand<'a> = Bumping;

    fn hand(&self) -> Bumping {
        Bumping(Bump::new())
    }
}

impl Hand for Bumping {
    type Held = Bumped;

    #[inline(always)]
    fn take(&mut self, bytes: usize) -> Bumped {
        let layout = Layout::from_size_align(bytes, ALIGN).expect("a size that fits");
        Bumped(self.0.alloc_layout(layout))
    }

    #[inline(always)]
    fn give(&mut self, _held: Bumped) {}

    #[inline]
    fn start(held: &Bumped) -> *mut u8 {
        held.0.as_ptr()
    }

    #[inline]
    fn end_step(&mut self) {
        self.0.reset();
    }
}

/// `vec![0; n]`, from the global allocator, which is glibc's.
pub struct ZeroedVec;

impl Shared for ZeroedVec {
    type Held = Vec<u8>;

    #[inline(always)]
    fn take(&self, bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }

    #[inline(always)]
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

    #[inline(always)]
    fn take(&self, _bytes: usize) -> Ready {
        let mut blocks = self.0.lock().expect("nobody panics under the lock");
        blocks.pop().expect("a block for the race")
    }

    #[inline(always)]
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

    #[inline(always)]
    fn take(&self, _bytes: usize) -> Ready {
        self.0.pop().expect("a block for the race")
    }

    #[inline(always)]
    fn give(&self, held: Ready) {
        let full = self.0.push(held);
        debug_assert!(full.is_ok(), "there is room for `blocks`");
    }

    #[inline]
    fn start(held: &Ready) -> *mut u8 {
        held.0.cast()
    }
}
