//! The trait that every layer implements: blocks go out and come back.

use std::ops::Range;

use serde::Serialize;

use super::{AllocError, Block, Request};
use crate::sync::Arc;
use crate::types::Device;

/// What an allocator holds, in bytes. A moment's picture: other threads go on.
///
/// Where no call is under way each number is exact, and
/// `live + cached + unused + metadata == reserved`. A wrapper passes on what the allocator below it says; what it
/// keeps itself (a meter's books, a trace's ring) is in none of them.
///
/// ```
/// use tenslab::memory::{SharedAllocator, SlabAllocator};
///
/// let slab = SharedAllocator::new(SlabAllocator::fixed(64 << 10, 16)?);
/// let (_out, idle) = (slab.allocate(50_000, 64)?, slab.allocate(1, 64)?);
/// drop(idle);
/// let stats = slab.stats();
/// assert_eq!((stats.live_bytes, stats.cached_bytes), (64 << 10, 64 << 10));
/// assert_eq!(stats.unused_bytes, 14 * (64 << 10));            // never out
/// assert_eq!(
///     stats.live_bytes + stats.cached_bytes + stats.unused_bytes + stats.metadata_bytes,
///     stats.reserved_bytes
/// );
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Asked for by the allocations that are out.
    pub requested_bytes: usize,
    /// Taken up by them, rounding included.
    pub live_bytes: usize,
    /// Kept for later allocations, with the memory that they had.
    pub cached_bytes: usize,
    /// Address space for allocations that has none: never out, or given back by a trim;
    /// and what is left over at the ends of whole pages.
    pub unused_bytes: usize,
    /// Address space for tables and such that the allocator itself holds. No more of it is
    /// in memory than was touched.
    pub metadata_bytes: usize,
    /// Address space held for all of these.
    pub reserved_bytes: usize,
}

/// What giving the memory of a part of a block back came to, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decommitted {
    /// The whole pages of the range: bytes that need no memory until they are written
    /// again. 0 where the allocator cannot give a part of a block back.
    pub bytes: usize,
    /// Those of them that were in memory: by so much the process got smaller.
    pub resident_bytes: usize,
}

/// Hands out blocks of memory and takes them back, from any thread.
///
/// This is the side that implementers and wrappers see. Users hold a
/// [`SharedAllocator`](super::SharedAllocator). A wrapper owns another allocator,
/// passes every call on, and does its own work around them. The methods that have a
/// default are for the bottom of a stack: a wrapper that does not forward them hides what
/// is below it.
///
/// ```
/// use tenslab::Device;
/// use tenslab::memory::{AllocError, Allocator, Block, Request, Stats};
///
/// struct RoundUp<A>(A);
///
/// // SAFETY: blocks come from `A` and go back to it unchanged.
/// unsafe impl<A: Allocator> Allocator for RoundUp<A> {
///     fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
///         self.0.allocate_block(request.with_align(request.align().max(128))?)
///     }
///
///     unsafe fn release_block(&self, block: Block) {
///         // SAFETY: the caller's promise, passed on.
///         unsafe { self.0.release_block(block) }
///     }
///
///     fn device(&self) -> Device {
///         self.0.device()
///     }
///
///     fn stats(&self) -> Stats {
///         self.0.stats()
///     }
///
///     fn trim(&self) -> usize {
///         self.0.trim()
///     }
/// }
/// ```
///
/// # Safety
/// For each block that [`allocate_block`](Allocator::allocate_block) returns, until
/// it is released:
/// - its `len` is the request's `bytes`, and its pointer a multiple of the
///   request's `align`;
/// - the `len` bytes are readable and writable, belong to nobody else and are
///   **initialised**: zero if the request says so, else anything;
/// - its header slot, if there is one, belongs to nobody else;
/// - both stay where they are when the allocator value moves.
pub unsafe trait Allocator: Send + Sync {
    /// Hands out a block.
    ///
    /// # Errors
    /// An [`AllocError`] that says what was asked and what there is. Nothing is
    /// changed then.
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError>;

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator, is given back
    /// once, and nobody uses its bytes or its header slot any more.
    unsafe fn release_block(&self, block: Block);

    /// Makes `block` `bytes` bytes long, where it stands. By default that cannot be.
    ///
    /// After `Ok` the block's `len` is `bytes`, its bytes up to the old `len` are as
    /// before and the new ones are initialised; address, cookie, tag and header slot are
    /// the same, and its capacity is no more than [`grown_capacity`](Allocator::grown_capacity)
    /// said, if that said anything. After `Err` nothing is changed.
    ///
    /// # Errors
    /// [`AllocError::CannotGrow`] where there is no room, or that of an allocator with a limit.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator and is not given back,
    /// `bytes` is no less than its `len`, and nobody else uses the block meanwhile.
    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        Err(AllocError::CannotGrow {
            bytes,
            capacity: block.capacity(),
        })
    }

    /// Bytes of the allocator that `block` takes up at most once it has
    /// [grown](Allocator::grow_block) to `bytes` bytes: for a limit, which has to know before.
    /// `None` where that cannot be said; by default it can up to what the block takes up now.
    ///
    /// A promise about the block and no attempt: nothing is changed, and growth may fail after
    /// any answer.
    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        let capacity = block.capacity();
        (bytes <= capacity).then_some(capacity)
    }

    /// Gives the memory of a part of a block back, as far as it is whole pages. The
    /// block stays out and its bytes stay readable and writable; what they hold is
    /// anything until they are written. By default nothing happens.
    ///
    /// An allocator with a limit stops counting [`Decommitted::bytes`]; who wants to use
    /// them again says so with [`commit`](Allocator::commit) first.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator and is not given back,
    /// `range` is inside its `len`, and nobody else uses the range meanwhile.
    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        let _ = (block, range);
        Decommitted::default()
    }

    /// Says that a part of a block that was [decommitted](Allocator::decommit) will be
    /// used again. By default nothing happens: memory comes with the first touch.
    ///
    /// # Errors
    /// That of an allocator with a limit. The bytes can still be touched, but then more is
    /// used than was allowed.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator and is not given back,
    /// and `range` is inside its `len`.
    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        let _ = (block, range);
        Ok(())
    }

    /// Makes the pages of a block read-only, where the block owns whole pages, so that a
    /// stray write traps. By default nothing happens.
    ///
    /// Returns how many bytes nobody can write now; 0 where the allocator cannot, or the
    /// system refused. [`unprotect`](Allocator::unprotect) is owed whatever it returned. The
    /// block's header slot, if there is one, stays writable.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator and is not given back, and
    /// nobody writes to it until `unprotect` returned `true`.
    #[must_use = "0 bytes may be protected"]
    unsafe fn protect(&self, block: &Block) -> usize {
        let _ = block;
        0
    }

    /// Makes a block that was [protected](Allocator::protect) writable again, all of it.
    ///
    /// `false`: the system refused, and a part of the block may still be read-only. Such a
    /// block is never given back.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator and is not given back.
    #[must_use = "a block that is still read-only must not be given back"]
    unsafe fn unprotect(&self, block: &Block) -> bool {
        let _ = block;
        true
    }

    /// Where the memory is.
    fn device(&self) -> Device {
        Device::Cpu
    }

    /// What is held at this moment. All zero where the allocator does not count.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Gives cached memory back to wherever it came from.
    ///
    /// Returns how many bytes went.
    fn trim(&self) -> usize {
        0
    }
}

// SAFETY: blocks come from the allocator behind the pointer, which keeps the contract, and
// go back to that one; it does not move while an `Arc` of it lives.
unsafe impl<A: Allocator + ?Sized> Allocator for Arc<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        (**self).allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).release_block(block) }
    }

    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).grow_block(block, bytes) }
    }

    fn grown_capacity(&self, block: &Block, bytes: usize) -> Option<usize> {
        (**self).grown_capacity(block, bytes)
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).decommit(block, range) }
    }

    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).commit(block, range) }
    }

    unsafe fn protect(&self, block: &Block) -> usize {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).protect(block) }
    }

    unsafe fn unprotect(&self, block: &Block) -> bool {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).unprotect(block) }
    }

    fn device(&self) -> Device {
        (**self).device()
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }

    fn trim(&self) -> usize {
        (**self).trim()
    }
}
