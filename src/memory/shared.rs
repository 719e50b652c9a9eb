//! Handles to an allocator, and what keeps it alive.
//!
//! ```text
//!   SharedAllocator ─┐ handles         the last one closes
//!   SharedAllocator ─┤
//!                    ▼
//!                  Core { handles, life, allocator }      one heap block
//!                    ▲
//!   Owner (Buffer) ──┤ allocations     the last one after closing destroys
//!   Owner (Storage) ─┘
//! ```
//!
//! The counts are [`KeepAlive`]'s and one of handles; which of the two ends last destroys, on
//! whatever thread. `loom_tests/keep_alive.rs` explores it.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

use super::keep_alive::KeepAlive;
use super::{AllocError, Allocator, Block, Buffer, Decommitted, Request, Stats, Tag};
use crate::mutant::{self, Mutant};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Ordering, acquire_end};
use crate::types::Device;

/// An allocator with its two counts: the handles that may ask for more, and (in
/// [`KeepAlive`]) the allocations that have to come back.
struct Core<A: ?Sized> {
    handles: AtomicUsize,
    life: KeepAlive,
    allocator: A,
}

type CorePtr = NonNull<Core<dyn Allocator>>;

/// Destroys the allocator.
///
/// # Safety
/// The pointer came from `SharedAllocator::new`, and the caller is the one whom
/// [`KeepAlive`] told to destroy: nobody else holds it any more.
unsafe fn destroy(core: CorePtr) {
    // SAFETY: it was leaked from a box in `SharedAllocator::new`, and the caller
    // is the last one who has it.
    drop(unsafe { Box::from_raw(core.as_ptr()) });
}

/// A handle to an allocator, and the way to get [`Buffer`]s. Cheap to clone.
///
/// Any thread may allocate, and any thread may drop what it got. When the last
/// handle goes away the allocator is closed, and it is destroyed when the last
/// buffer is back: buffers and tensors may outlive every handle.
///
/// ```
/// use tenslab::memory::{SharedAllocator, SlabAllocator, AllocError};
///
/// let slab = SharedAllocator::new(SlabAllocator::new(4096, 2)?);
/// let (first, _second) = (slab.allocate(4096, 64)?, slab.allocate(100, 64)?);
/// assert_eq!(slab.allocate(1, 1).unwrap_err(), AllocError::Exhausted { blocks: 2 });
///
/// drop(slab);                                // the last handle:
/// assert_eq!(first.as_slice().len(), 4096);  // the buffers do not mind
/// # Ok::<(), AllocError>(())
/// ```
pub struct SharedAllocator {
    core: CorePtr,
    tag: Tag,
}

// SAFETY: `Allocator` is `Send + Sync`, and the counts are atomic; the pointer to
// the core is only ever shared (`&Core`) until one thread destroys it.
unsafe impl Send for SharedAllocator {}
// SAFETY: every method takes `&self` and reaches `&Core` only, which is an allocator that is
// `Sync` and atomic counts.
unsafe impl Sync for SharedAllocator {}

impl SharedAllocator {
    /// Shares `allocator`. One heap block, and none for the clones.
    pub fn new(allocator: impl Allocator + 'static) -> Self {
        let core: Box<Core<dyn Allocator>> = Box::new(Core {
            handles: AtomicUsize::new(1),
            life: KeepAlive::default(),
            allocator,
        });
        Self {
            core: NonNull::from(Box::leak(core)),
            tag: Tag::Other,
        }
    }

    #[inline]
    fn core(&self) -> &Core<dyn Allocator> {
        // SAFETY: the core is destroyed only after it was closed, which the last
        // handle does in its drop; this handle is alive. Nobody has it mutably.
        unsafe { self.core.as_ref() }
    }

    /// A handle to the same allocator whose allocations are counted under `tag`.
    #[must_use]
    pub fn with_tag(&self, tag: Tag) -> Self {
        let mut handle = self.clone();
        handle.tag = tag;
        handle
    }

    /// The tag of this handle's allocations.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// `bytes` bytes at a multiple of `align`, initialised to anything.
    ///
    /// Zero bytes are a valid request: the buffer is then aligned and never null.
    ///
    /// # Errors
    /// The allocator's [`AllocError`], or that of [`Request::new`].
    ///
    /// # Panics
    /// If `align` is not a power of two, and if the allocator breaks its contract: the block
    /// has another length than was asked for, or another alignment.
    // Always: out of line, the buffer would be copied once or twice on its way, and each copy
    // waits for the writes of the one before. The rare parts are out of line.
    #[inline(always)]
    #[track_caller]
    pub fn allocate(&self, bytes: usize, align: usize) -> Result<Buffer, AllocError> {
        self.request(Request::new(bytes, align)?.tagged(self.tag))
    }

    /// `bytes` zero bytes at a multiple of `align`. Fresh pages are zero already,
    /// so a large allocation from the system touches none of them.
    ///
    /// # Errors
    /// As [`allocate`](SharedAllocator::allocate).
    ///
    /// # Panics
    /// As [`allocate`](SharedAllocator::allocate).
    #[inline(always)]
    #[track_caller]
    pub fn allocate_zeroed(&self, bytes: usize, align: usize) -> Result<Buffer, AllocError> {
        self.request(Request::new(bytes, align)?.tagged(self.tag).zeroed())
    }

    #[inline(always)]
    fn request(&self, request: Request) -> Result<Buffer, AllocError> {
        // Entered first: whatever happens below, the owner's drop leaves again.
        let owner = Owner::enter(self);
        let result = self.core().allocator.allocate_block(request);
        let block = match &result {
            // SAFETY: `result` is not looked at again.
            Ok(block) => unsafe { block.part_by_part() },
            Err(error) => return Err(*error),
        };
        let misaligned = block.as_ptr().addr().get() & (request.align() - 1) != 0;
        if misaligned || block.len() != request.bytes() {
            contract_broken(request, block.as_ptr(), block.len());
        }
        // SAFETY: the block came from `owner`'s allocator just now and is nobody else's.
        Ok(unsafe { Buffer::from_parts(block, owner) })
    }

    /// A buffer over a block that the allocator gave out by another door.
    ///
    /// # Safety
    /// The block is of this allocator, out, and in nobody else's hands; or whoever else has
    /// its bytes only reads them, and so does who has the buffer.
    pub(crate) unsafe fn adopt(&self, block: Block) -> Buffer {
        let owner = Owner::enter(self);
        // SAFETY: the caller's promise.
        unsafe { Buffer::from_parts(block, owner) }
    }

    /// Where the memory is.
    #[must_use]
    pub fn device(&self) -> Device {
        self.core().allocator.device()
    }

    /// What the allocator holds at this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core().allocator.stats()
    }

    /// Gives cached memory back. Returns how many bytes went.
    pub fn trim(&self) -> usize {
        self.core().allocator.trim()
    }

    /// How many buffers and storages of this allocator are out at this moment.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.core().life.outstanding()
    }
}

impl Clone for SharedAllocator {
    fn clone(&self) -> Self {
        // Relaxed: the new handle comes from a living one, which keeps the core.
        if self.core().handles.fetch_add(1, Ordering::Relaxed) > usize::MAX / 2 {
            // Only forgotten handles get here; wrapping would free too early.
            std::process::abort();
        }
        Self {
            core: self.core,
            tag: self.tag,
        }
    }
}

impl Drop for SharedAllocator {
    fn drop(&mut self) {
        let core = self.core();
        let release = if mutant::is(Mutant::HandleRelaxed) {
            Ordering::Relaxed
        } else {
            // Release: what was done through this handle happens before the closing;
            // pairs with the fence below, in whichever thread drops the last one.
            Ordering::Release
        };
        let before = if mutant::is(Mutant::HandleTwoSteps) {
            let before = core.handles.load(Ordering::Acquire);
            core.handles.store(before - 1, release);
            before
        } else {
            core.handles.fetch_sub(1, release)
        };
        if before != 1 {
            return;
        }
        // Acquire: pairs with the Release of the other handles' drops.
        acquire_end(|order| core.handles.load(order));
        if core.life.close() {
            // SAFETY: `close` said that nobody is inside, and this was the last handle.
            unsafe { destroy(self.core) };
        }
    }
}

impl fmt::Debug for SharedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedAllocator")
            .field("device", &self.device())
            .field("tag", &self.tag)
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

// SAFETY: blocks come from the shared allocator and go back to it unchanged; this
// handle keeps it alive.
unsafe impl Allocator for SharedAllocator {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        self.core().allocator.allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { self.core().allocator.release_block(block) }
    }

    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { self.core().allocator.grow_block(block, bytes) }
    }

    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        self.core().allocator.grown_capacity(block, bytes)
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { self.core().allocator.decommit(block, range) }
    }

    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { self.core().allocator.commit(block, range) }
    }

    unsafe fn protect(&self, block: &Block) -> usize {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { self.core().allocator.protect(block) }
    }

    unsafe fn unprotect(&self, block: &Block) -> bool {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { self.core().allocator.unprotect(block) }
    }

    fn device(&self) -> Device {
        self.device()
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn trim(&self) -> usize {
        self.trim()
    }
}

/// What a live allocation holds of its allocator: the right to give it back.
pub(super) struct Owner {
    core: CorePtr,
}

// SAFETY: it reaches `&Core` only: an allocator that is `Send + Sync`, and atomic counts.
// Whichever thread drops the last one destroys it alone.
unsafe impl Send for Owner {}
// SAFETY: `&Owner` reaches `&Core` only.
unsafe impl Sync for Owner {}

impl Owner {
    #[inline]
    fn enter(handle: &SharedAllocator) -> Self {
        handle.core().life.enter();
        Self { core: handle.core }
    }

    #[inline]
    fn core(&self) -> &Core<dyn Allocator> {
        // SAFETY: the core is destroyed only when nobody is inside, and this owner
        // is, until its drop. Nobody has it mutably.
        unsafe { self.core.as_ref() }
    }

    pub(super) fn device(&self) -> Device {
        self.core().allocator.device()
    }

    /// Gives `block` back and leaves.
    ///
    /// # Safety
    /// As [`Allocator::release_block`], for the allocator of this owner.
    #[inline]
    pub(super) unsafe fn release(self, block: Block) {
        // SAFETY: the caller's promise.
        unsafe { self.core().allocator.release_block(block) };
    }

    /// The allocator that it is inside of.
    pub(super) fn allocator(&self) -> &dyn Allocator {
        &self.core().allocator
    }

    /// The owner as a plain pointer, for a header; still inside.
    pub(super) fn into_raw(self) -> RawOwner {
        RawOwner(ManuallyDrop::new(self).core)
    }
}

impl Drop for Owner {
    #[inline]
    fn drop(&mut self) {
        if self.core().life.leave() {
            // SAFETY: `leave` said that this was the last one, after the last handle.
            unsafe { destroy(self.core) };
        }
    }
}

/// An [`Owner`] that does not leave by itself.
pub(super) struct RawOwner(CorePtr);

impl RawOwner {
    /// # Safety
    /// At most once for each `into_raw`.
    pub(super) unsafe fn into_owner(self) -> Owner {
        Owner { core: self.0 }
    }

    pub(super) fn device(&self) -> Device {
        self.allocator().device()
    }

    /// Is it inside the allocator of this handle?
    pub(super) fn is_of(&self, handle: &SharedAllocator) -> bool {
        self.0.addr() == handle.core.addr()
    }

    /// The allocator that it is inside of.
    pub(super) fn allocator(&self) -> &dyn Allocator {
        // SAFETY: the owner it was made of is still inside, so the core is alive.
        &unsafe { self.0.as_ref() }.allocator
    }
}

/// Asked for again here, because an [`Allocator`] is anybody's code, and one that is wrong
/// about this would lend bytes that are not there. The block is leaked: nobody knows what it is.
#[cold]
#[inline(never)]
fn contract_broken(request: Request, start: NonNull<u8>, len: usize) -> ! {
    panic!("the allocator answered {request:?} with {len} bytes at {start:?}")
}
