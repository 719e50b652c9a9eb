//! What a storage does with its pages while handles are there: gives the memory of a part
//! back, or makes all of it read-only.
//!
//! ```text
//!   decommit           the pages of a range go back; touched again, the bytes are anything
//!   freeze_protected   FROZEN, then mprotect(READ): a write through any pointer traps
//!   the last drop      mprotect(READ | WRITE), then the block goes back as any other
//!                      refused: the block is leaked, for its next user would trap
//! ```
//!
//! Freezing keeps safe code from writing. It does not keep a kernel from it that has a pointer
//! and a wrong bound; read-only pages do. Whoever drops the last handle makes them writable:
//! `loom_tests/storage.rs` explores that it sees that it has to.

use std::ops::Range;

use super::Storage;
use crate::memory::buffer::check;
use crate::memory::{BorrowError, CommitError, Decommitted};
use crate::sync::Ordering;

/// What [`Storage::freeze_protected`] could do beyond freezing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "no byte may be protected: look at `bytes`"]
#[non_exhaustive]
pub struct Protected {
    /// Bytes that nobody can write any more: the storage's whole pages, what is behind its
    /// last byte included. 0 where its allocator cannot, or the system refused; the storage is
    /// frozen all the same.
    pub bytes: usize,
}

impl Storage {
    /// Gives the memory of a range back while handles, tensors and views stay, as far as it
    /// is whole pages and the allocator can, and says how much that was. The bytes of the
    /// range are anything afterwards; they may still be read and written, and memory comes
    /// again with the first touch.
    ///
    /// It is a write: for the length of the call the storage is borrowed as a write guard
    /// borrows it, all of it and not only the range. For who has a slice from an `unsafe`
    /// door of a tensor, it writes the range.
    ///
    /// ```
    /// use tenslab::memory::{Budget, CpuAllocator, Limit, SharedAllocator, Storage};
    ///
    /// let limit = Limit::new(8 << 20);
    /// let allocator = SharedAllocator::new(Budget::new(CpuAllocator::new(), &limit));
    /// let blocks = Storage::from(allocator.allocate_zeroed(8 << 20, 64)?);
    /// let gone = blocks.decommit(0..4 << 20)?;                // idle for now
    /// assert_eq!(limit.available_bytes(), gone.bytes);
    ///
    /// blocks.commit(0..4 << 20)?;                             // counts again
    /// assert_eq!(limit.available_bytes(), 0);
    /// # Ok::<(), tenslab::Error>(())
    /// ```
    ///
    /// Cost: what the allocator's costs, mostly one system call. Any thread may call it.
    ///
    /// # Errors
    /// [`BorrowError::Frozen`], [`BorrowError::Writing`] and [`BorrowError::Reading`] as for
    /// a write guard; nothing is changed then.
    ///
    /// # Panics
    /// If the range is not of this storage.
    #[track_caller]
    pub fn decommit(&self, range: Range<usize>) -> Result<Decommitted, BorrowError> {
        check(&range, self.len());
        let _alone = self.exclude()?;
        let block = self.block();
        // SAFETY: the block is of this owner (`From<Buffer>`) and out while a handle lives;
        // the range was checked; nobody else uses the bytes while `_alone` lives, or they
        // reach them by a pointer and answer for it.
        Ok(unsafe { self.header().owner.allocator().decommit(&block, range) })
    }

    /// Says that a range that was [decommitted](Storage::decommit) will be used again, so
    /// that an allocator with a limit counts it. Other ranges may be read meanwhile and
    /// other threads may commit: for the length of the call the storage is borrowed as a
    /// read guard borrows it, so that nothing is decommitted meanwhile. Frozen is fine.
    ///
    /// Cost: what the allocator's costs; mostly nothing. Any thread may call it.
    ///
    /// # Errors
    /// [`CommitError::Borrow`] while somebody writes, [`CommitError::Alloc`] as
    /// [`Allocator::commit`](crate::memory::Allocator::commit): what was not counted is not counted
    /// then.
    ///
    /// # Panics
    /// If the range is not of this storage.
    #[track_caller]
    pub fn commit(&self, range: Range<usize>) -> Result<(), CommitError> {
        check(&range, self.len());
        let _reads = self.share()?;
        let block = self.block();
        // SAFETY: the block is of this owner (`From<Buffer>`) and out while a handle lives,
        // and the range was checked.
        unsafe { self.header().owner.allocator().commit(&block, range) }?;
        Ok(())
    }

    /// Forbids writing for ever, as [`freeze`](Storage::freeze), and makes the pages
    /// read-only, so that also a write through a raw pointer traps (`SIGSEGV` on Unix). The last
    /// handle's drop makes them writable again before it gives the bytes back.
    ///
    /// Only where the storage owns whole pages: a large block (1 MiB and more, or 128 KiB if it
    /// was allocated zeroed) of [`CpuAllocator`](crate::memory::CpuAllocator) on Linux, through any
    /// wrappers. It says how many bytes that was. Doing it twice is fine. What is mapped
    /// ([`map_file`](crate::memory::map_file)) is read-only anyway.
    ///
    /// Where the system refuses to make them writable again (a process may have only so many
    /// mappings), the bytes are leaked: they stay
    /// [outstanding](crate::memory::SharedAllocator::outstanding), and a meter and a budget go on
    /// counting them.
    ///
    /// ```
    /// use tenslab::memory::{self, Storage};
    ///
    /// let weights = Storage::from(memory::cpu().allocate_zeroed(4 << 20, 64)?);
    /// let protected = weights.freeze_protected()?;
    /// # #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    /// assert_eq!(protected.bytes, 4 << 20);
    ///
    /// let small = Storage::from(memory::cpu().allocate(100, 64)?);
    /// assert_eq!(small.freeze_protected()?.bytes, 0);     // shares its page with others
    /// assert!(small.is_frozen());
    /// # Ok::<(), tenslab::Error>(())
    /// ```
    ///
    /// Cost: one system call here and one at the last drop. Any thread may call it.
    ///
    /// # Errors
    /// [`BorrowError::Writing`] while somebody writes; nothing is changed then.
    pub fn freeze_protected(&self) -> Result<Protected, BorrowError> {
        self.freeze()?;
        let header = self.header();
        // Before, so that the last handle's drop puts right also what was begun and refused.
        // Relaxed: it goes to that drop with this handle's own.
        header.protected.store(true, Ordering::Relaxed);
        let block = self.block();
        // SAFETY: the block is of this owner (`From<Buffer>`) and out while a handle lives. It
        // is frozen for ever, so nobody writes until the last drop calls `unprotect`; who does
        // by a pointer answers for it.
        let bytes = unsafe { header.owner.allocator().protect(&block) };
        Ok(Protected { bytes })
    }
}
