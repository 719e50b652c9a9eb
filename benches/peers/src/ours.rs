//! tenslab's own contenders, at each height of the stack.

use std::sync::Arc;

use tenslab::memory::{Allocator, Block, Request, StepArena};
use tenslab::{Buffer, DType, SharedAllocator, Tensor};

use crate::contender::{Contender, Hand, Shared};

/// The alignment asked of tenslab: a cache line, as `Tensor` asks.
pub const ALIGN: usize = 64;

/// `SharedAllocator::allocate` and the buffer's drop.
pub struct Buffers(pub SharedAllocator);

impl Shared for Buffers {
    type Held = Buffer;

    #[inline(always)]
    fn take(&self, bytes: usize) -> Buffer {
        self.0.allocate(bytes, ALIGN).expect("memory for the race")
    }

    #[inline(always)]
    fn give(&self, held: Buffer) {
        drop(held);
    }

    #[inline]
    fn start(held: &Buffer) -> *mut u8 {
        held.as_ptr()
    }

    fn trim(&self) {
        self.0.trim();
    }
}

/// As [`Buffers`], each thread by a handle that it makes for itself: a worker's own cache.
pub struct Locals<F>(pub F);

/// One thread's handle.
pub struct Local(SharedAllocator);

impl<F: Fn() -> SharedAllocator + Sync> Contender for Locals<F> {
    type Held = Buffer;
    type Hand<'a>
        = Local
    where
        F: 'a;

    fn hand(&self) -> Local {
        Local((self.0)())
    }

    fn trim(&self) {
        (self.0)().trim();
    }
}

impl Hand for Local {
    type Held = Buffer;

    #[inline(always)]
    fn take(&mut self, bytes: usize) -> Buffer {
        self.0.allocate(bytes, ALIGN).expect("memory for the race")
    }

    #[inline(always)]
    fn give(&mut self, held: Buffer) {
        drop(held);
    }

    #[inline]
    fn start(held: &Buffer) -> *mut u8 {
        held.as_ptr()
    }
}

/// As [`Buffers`], out of an arena whose steps end.
pub struct Steps {
    arena: Arc<StepArena>,
    memory: SharedAllocator,
}

impl Steps {
    /// Of an arena without a chunk.
    pub fn new() -> Self {
        let arena = Arc::new(StepArena::new());
        let memory = SharedAllocator::new(Arc::clone(&arena));
        Self { arena, memory }
    }
}

impl Contender for Steps {
    type Held = Buffer;
    type Hand<'a> = Stepping<'a>;

    fn hand(&self) -> Stepping<'_> {
        Stepping(self)
    }

    fn trim(&self) {
        self.memory.trim();
    }
}

/// A thread's way into [`Steps`].
pub struct Stepping<'a>(&'a Steps);

impl Hand for Stepping<'_> {
    type Held = Buffer;

    #[inline(always)]
    fn take(&mut self, bytes: usize) -> Buffer {
        let buffer = self.0.memory.allocate(bytes, ALIGN);
        buffer.expect("memory for the race")
    }

    #[inline(always)]
    fn give(&mut self, held: Buffer) {
        drop(held);
    }

    #[inline]
    fn start(held: &Buffer) -> *mut u8 {
        held.as_ptr()
    }

    #[inline]
    fn end_step(&mut self) {
        self.0.arena.end_step().expect("all of the step is back");
    }
}

/// `Tensor::empty` of one dimension, and the tensor's drop.
pub struct Tensors(pub SharedAllocator);

impl Shared for Tensors {
    type Held = Tensor;

    #[inline(always)]
    fn take(&self, bytes: usize) -> Tensor {
        Tensor::empty([bytes], DType::U8, &self.0).expect("memory for the race")
    }

    #[inline(always)]
    fn give(&self, held: Tensor) {
        drop(held);
    }

    #[inline]
    fn start(held: &Tensor) -> *mut u8 {
        held.data_ptr()
    }
}

/// `allocate_block` and `release_block`, without the handle that keeps the allocator alive.
pub struct Blocks<A>(pub A);

/// A block on its way between threads.
pub struct Raw(Block);

// SAFETY: a block is whoever's holds it, on any thread: `Allocator` is `Send + Sync` and
// takes a block back from any of them.
unsafe impl Send for Raw {}

impl<A: Allocator> Shared for Blocks<A> {
    type Held = Raw;

    #[inline(always)]
    fn take(&self, bytes: usize) -> Raw {
        let request = Request::new(bytes, ALIGN).expect("a size that fits");
        Raw(self.0.allocate_block(request).expect("memory for the race"))
    }

    #[inline(always)]
    fn give(&self, held: Raw) {
        // SAFETY: `held` came from `take` of this contender (workloads do not mix them),
        // is given back by value and so once, and nobody keeps its address.
        unsafe { self.0.release_block(held.0) };
    }

    #[inline]
    fn start(held: &Raw) -> *mut u8 {
        held.0.as_ptr().as_ptr()
    }
}
