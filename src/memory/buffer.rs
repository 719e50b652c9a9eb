//! The one owner of one allocation.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

use super::shared::Owner;
use super::{AllocError, Block, Decommitted, Tag, populate};
use crate::types::Device;

/// The one owner of one allocation. Dropping it gives the memory back, exactly
/// once, also for zero bytes.
///
/// It cannot be cloned; share its bytes through a
/// [`Storage`](super::Storage). It keeps the allocator that made it alive.
/// Its bytes are always initialised, so reading them is never undefined:
/// after [`allocate`](super::SharedAllocator::allocate) they are merely anything.
///
/// Whoever writes through [`as_ptr`](Buffer::as_ptr) keeps it so: no value with
/// padding bytes may be written there.
///
/// ```
/// use tenslab::memory;
///
/// let mut buffer = memory::cpu().allocate_zeroed(4, 64)?;
/// buffer.as_mut_slice()[3] = 7;
/// assert_eq!(buffer.as_slice(), [0, 0, 0, 7]);
/// # Ok::<(), memory::AllocError>(())
/// ```
pub struct Buffer {
    block: ManuallyDrop<Block>,
    owner: ManuallyDrop<Owner>,
}

// SAFETY: it owns its bytes alone, and allocators take blocks back from any thread.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` lends `&[u8]` and plain values only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// `block` came from the allocator of `owner`, has not been given back and is
    /// in nobody else's hands.
    #[inline]
    pub(super) unsafe fn from_parts(block: Block, owner: Owner) -> Self {
        Self {
            block: ManuallyDrop::new(block),
            owner: ManuallyDrop::new(owner),
        }
    }

    /// The block and its owner, without giving the block back.
    #[inline]
    pub(super) fn into_parts(self) -> (Block, Owner) {
        let mut buffer = ManuallyDrop::new(self);
        // SAFETY: `buffer` is never dropped or used again, so this is the only taking.
        let block = unsafe { ManuallyDrop::take(&mut buffer.block) };
        // SAFETY: `buffer` is never dropped or used again, so this is the only taking.
        let owner = unsafe { ManuallyDrop::take(&mut buffer.owner) };
        (block, owner)
    }

    /// The first byte. Never null; aligned as was asked for, also for zero bytes.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.block.as_ptr().as_ptr()
    }

    /// Bytes asked for.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Were zero bytes asked for?
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// On whose behalf it was allocated.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.block.tag()
    }

    /// Where the memory is.
    #[must_use]
    pub fn device(&self) -> Device {
        self.owner.device()
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let bytes = NonNull::slice_from_raw_parts(self.block.as_ptr(), self.block.len());
        // SAFETY: the block's `len` bytes are readable and initialised by the
        // allocator's contract, and nobody else has them. Through `&self` they are
        // only read; writing through `as_ptr` meanwhile is that writer's fault.
        unsafe { bytes.as_ref() }
    }

    /// The bytes, to write.
    #[inline]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let mut bytes = NonNull::slice_from_raw_parts(self.block.as_ptr(), self.block.len());
        // SAFETY: the block's `len` bytes are readable, writable and initialised by the
        // allocator's contract, and nobody else has them; `&mut self` keeps every other
        // slice of them away.
        unsafe { bytes.as_mut() }
    }

    /// Makes it `bytes` bytes long without moving it. The new bytes are anything. Asking
    /// for less than it has does nothing.
    ///
    /// It works where the allocator has room behind the block: always up to the end of
    /// the last page of a large block of [`CpuAllocator`](super::CpuAllocator), and beyond
    /// it while the addresses behind it are free. A way to be lucky, not to be sure: on an
    /// error allocate anew and copy.
    ///
    /// # Errors
    /// [`AllocError::CannotGrow`], or that of an allocator with a limit; the buffer is as
    /// before.
    pub fn try_grow(&mut self, bytes: usize) -> Result<(), AllocError> {
        if bytes <= self.len() {
            return Ok(());
        }
        // SAFETY: the block is of this owner (`from_parts`) and out; `bytes` is more than
        // its length, and `&mut self` keeps everybody else away.
        unsafe { self.owner.allocator().grow_block(&mut self.block, bytes) }
    }

    /// Gives the memory of a range back, as far as it is whole pages and the allocator
    /// can, and says how much that was. The bytes of the range are anything afterwards;
    /// they may still be read and written, and memory comes again with the first touch.
    ///
    /// # Panics
    /// If the range is not of this buffer.
    #[track_caller]
    pub fn decommit(&mut self, range: Range<usize>) -> Decommitted {
        check(&range, self.len());
        // SAFETY: the block is of this owner (`from_parts`) and out, the range was checked,
        // and `&mut self` keeps everybody else away.
        unsafe { self.owner.allocator().decommit(&self.block, range) }
    }

    /// Says that a range that was [decommitted](Buffer::decommit) will be used again, so
    /// that an allocator with a limit counts it.
    ///
    /// # Errors
    /// That of an allocator with a limit.
    ///
    /// # Panics
    /// If the range is not of this buffer.
    #[track_caller]
    pub fn commit(&mut self, range: Range<usize>) -> Result<(), AllocError> {
        check(&range, self.len());
        // SAFETY: the block is of this owner (`from_parts`) and out, and the range was
        // checked.
        unsafe { self.owner.allocator().commit(&self.block, range) }
    }

    /// As [`decommit`](Buffer::decommit), for one of several who use parts of the buffer.
    ///
    /// # Safety
    /// Nobody uses the bytes of the range meanwhile.
    ///
    /// # Panics
    /// If the range is not of this buffer.
    #[track_caller]
    pub(crate) unsafe fn decommit_unused(&self, range: Range<usize>) -> Decommitted {
        check(&range, self.len());
        // SAFETY: the block is of this owner (`from_parts`) and out, the range was checked, and
        // nobody uses it (the caller's promise).
        unsafe { self.owner.allocator().decommit(&self.block, range) }
    }

    /// As [`commit`](Buffer::commit), for one of several who use parts of the buffer.
    ///
    /// # Errors
    /// That of an allocator with a limit.
    ///
    /// # Panics
    /// If the range is not of this buffer.
    #[track_caller]
    pub(crate) fn commit_part(&self, range: Range<usize>) -> Result<(), AllocError> {
        check(&range, self.len());
        // SAFETY: the block is of this owner (`from_parts`) and out, and the range was
        // checked.
        unsafe { self.owner.allocator().commit(&self.block, range) }
    }

    /// Brings the pages of a range into memory now, with `threads` threads: see
    /// [`populate`].
    ///
    /// # Errors
    /// As [`populate`].
    ///
    /// # Panics
    /// If the range is not of this buffer.
    #[track_caller]
    pub fn populate(&mut self, range: Range<usize>, threads: usize) -> Result<(), AllocError> {
        populate(&mut self.as_mut_slice()[range], threads)
    }
}

/// A range that is not of the bytes is a typo of the caller's, as in a slice.
#[track_caller]
pub(super) fn check(range: &Range<usize>, len: usize) {
    assert!(
        range.start <= range.end && range.end <= len,
        "{range:?} is not a range of {len} bytes"
    );
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `self` is going away, so nobody uses its own any more.
        let block = unsafe { self.block.part_by_part() };
        // SAFETY: `self` is going away, so nobody takes it a second time.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        // SAFETY: the block is of this owner (`from_parts`), this is the only time
        // it goes back, and slices of it cannot outlive the buffer.
        unsafe { owner.release(block) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("ptr", &self.as_ptr())
            .field("len", &self.len())
            .field("tag", &self.tag())
            .finish_non_exhaustive()
    }
}
