//! What the layer answers instead of memory or access. Every error is `Copy` and makes no heap
//! block: memory may be what is short.

use super::StorageId;
use crate::types::Device;

/// An allocation that could not be made. `Copy`: making one allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The system has no memory of this size to give.
    #[error("out of memory: {bytes} bytes could not be had from the system")]
    OutOfMemory {
        /// Bytes asked of the system.
        bytes: usize,
    },
    /// No allocation can be this large.
    #[error("{bytes} bytes aligned to {align} are more than an address space holds")]
    SizeOverflow {
        /// Bytes asked for.
        bytes: usize,
        /// Alignment asked for.
        align: usize,
    },
    /// The request does not fit one block.
    #[error("{bytes} bytes do not fit a block of {block_bytes}")]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes in a block.
        block_bytes: usize,
    },
    /// The alignment is more than this allocator can give.
    #[error("alignment {align} is above the {max} that this allocator gives")]
    AlignTooLarge {
        /// Alignment asked for.
        align: usize,
        /// The most it can be.
        max: usize,
    },
    /// No slab can hold so many blocks of this size.
    #[error("{blocks} blocks of {block_bytes} bytes are more than a slab holds")]
    SlabTooLarge {
        /// Bytes of a block.
        block_bytes: usize,
        /// Blocks asked for.
        blocks: u32,
    },
    /// Every block is in use.
    #[error("all {blocks} blocks of the slab are in use")]
    Exhausted {
        /// Blocks in the slab.
        blocks: u32,
    },
    /// The budget has no room for it.
    #[error(
        "{requested_bytes} bytes do not fit the budget: {live_bytes} of {limit_bytes} are in \
         use, and {given_back_bytes} were given back on demand"
    )]
    OverBudget {
        /// Bytes asked for.
        requested_bytes: usize,
        /// Bytes in use when it was refused.
        live_bytes: usize,
        /// Bytes that may be in use.
        limit_bytes: usize,
        /// Bytes that callbacks say they gave back before it was refused.
        given_back_bytes: usize,
    },
    /// The pool cannot have as much memory as that would take.
    ///
    /// A request of `largest_free_bytes` bytes (with no alignment above a page) would have
    /// succeeded in its place.
    #[error(
        "{requested_bytes} bytes do not fit the pool: it may have {cap_bytes}, of which \
         {live_bytes} are in use and {cached_bytes} free; the largest request that fits now is \
         {largest_free_bytes}"
    )]
    PoolExhausted {
        /// Bytes asked for.
        requested_bytes: usize,
        /// Bytes that are taken up by what is out, rounding included.
        live_bytes: usize,
        /// Bytes that were in memory and nobody's.
        cached_bytes: usize,
        /// Bytes that the pool may have.
        cap_bytes: usize,
        /// The largest request that would have been served.
        largest_free_bytes: usize,
    },
    /// The block cannot be made longer where it stands.
    #[error("a block of {capacity} bytes cannot grow to {bytes} where it stands")]
    CannotGrow {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that the block takes up.
        capacity: usize,
    },
    /// The memory cannot be locked, so the system might swap it out.
    #[error(
        "{bytes} bytes cannot be locked into memory: the process may lock {limit_bytes} in all \
         (RLIMIT_MEMLOCK, ulimit -l)"
    )]
    CannotLock {
        /// Bytes that have to be locked.
        bytes: usize,
        /// Bytes that the process may lock, what it has locked already included.
        limit_bytes: u64,
    },
    /// There is no allocator for this device.
    #[error("allocation on {device} is not implemented: tenslab runs on the CPU")]
    UnsupportedDevice {
        /// The device asked for.
        device: Device,
    },
}

impl AllocError {
    /// Might the same request succeed once something else is given back?
    #[must_use]
    pub const fn is_shortage(&self) -> bool {
        match self {
            AllocError::OverBudget {
                requested_bytes,
                limit_bytes,
                ..
            } => *requested_bytes <= *limit_bytes,
            AllocError::PoolExhausted {
                requested_bytes,
                cap_bytes,
                ..
            } => *requested_bytes <= *cap_bytes,
            error => matches!(
                error,
                AllocError::OutOfMemory { .. } | AllocError::Exhausted { .. }
            ),
        }
    }
}

/// A borrow of storage that is refused. Nothing ever waits for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BorrowError {
    /// Somebody is writing.
    #[error("{storage} is being written to, through this or another view of it")]
    Writing {
        /// The storage asked for.
        storage: StorageId,
    },
    /// Somebody is reading, so nobody may write.
    #[error("{storage} has {readers} read guards out, so it cannot be written to")]
    Reading {
        /// The storage asked for.
        storage: StorageId,
        /// How many read guards are out.
        readers: u32,
    },
    /// The storage is frozen: it is never written to again.
    #[error("{storage} is frozen, so it cannot be written to")]
    Frozen {
        /// The storage asked for.
        storage: StorageId,
    },
    /// There are other handles of the storage, so none of them owns it alone.
    #[error("{storage} has {handles} handles, so none of them is its sole owner")]
    NotSole {
        /// The storage asked for.
        storage: StorageId,
        /// How many handles there are: tensors, views, clones.
        handles: u32,
    },
    /// More read guards are out (or were forgotten) than the state word counts.
    #[error("{storage} has {readers} read guards out, the most that are counted")]
    TooManyReaders {
        /// The storage asked for.
        storage: StorageId,
        /// How many read guards are out.
        readers: u32,
    },
}

/// A part of a storage that cannot be committed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Somebody is writing to the storage.
    #[error(transparent)]
    Borrow(#[from] BorrowError),
    /// The allocator does not allow it.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}
