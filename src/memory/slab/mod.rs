//! [`SlabAllocator`]: equal blocks, handed out in constant time.
//!
//! ```text
//!   thread ──▶ magazine    24 blocks at hand, no exchange        magazine.rs
//!                 │ ▲      flush and refill, 12 at once          supply.rs
//!                 ▼ │
//!              tier        chains of idle blocks, one lock       tier.rs
//!                 │ ▲      carve, trim                           trim.rs
//!                 ▼ │
//!              rows        regions of pages, each twice as       table.rs
//!                          large as the one before, and a
//!                          table: 72 bytes a block
//! ```
//!
//! A block is looked for where it is cheapest: in this thread's magazine, in the tier, in
//! the other magazines (stealing), among the idle blocks whose pages were given back, and
//! only then among those that were never out. So memory follows what is in use at one
//! time, not how many threads there have been, and `Exhausted` is said only by a call
//! that held everything at once and found nothing.
//!
//! Tables and blocks are pages that nobody touches before the first use of a block, so a
//! slab of a million blocks costs nothing but addresses until they are used.
//!
//! # Who may touch what
//!
//! A block's number is in one place at a time: a magazine (whoever took it), a chain
//! (whoever has the lock), the hands of a trim, or out. Order of taking: a magazine, then the
//! lock; who has the lock takes magazines too, but only those that nobody has, and never
//! waits for one. `loom_tests/slab.rs` and `loom_tests/magazines.rs` explore it.

use std::fmt;
use std::ptr::NonNull;

mod magazine;
mod raw;
mod supply;
mod table;
mod tier;
mod trim;

pub(in crate::memory) use self::magazine::Held;
use self::magazine::Magazines;
pub use self::raw::{BlockError, BlockId};
use self::table::{BLOCK_ROWS, Table};
use self::tier::Tier;
use super::poison::{poison, unpoison, unspecified};
use super::rows::Rows;
use super::{
    AllocError, Allocator, Block, HeaderSlot, OsPages, PageSource, Region, Request, Stats,
};
use crate::sync::{Mutex, Names};

/// No block.
const NIL: u32 = u32::MAX;

/// Blocks are placed at multiples of this, so that no two share a cache line.
const GRAIN: usize = 64;

/// The first row of a growing slab is about this large; the later ones double.
const FIRST_ROW_BYTES: usize = 1 << 20;

/// As [`FIRST_ROW_BYTES`], for a slab that is one of many.
const CLASS_ROW_BYTES: usize = 64 << 10;

/// The most that a slab which is one of many can have in blocks.
const MOST_CLASS_BYTES: usize = if usize::BITS > 32 { 1 << 44 } else { 1 << 28 };

/// Equal blocks, handed out in constant time, from any thread.
///
/// A request fits if it is no larger than a block; a block aligned to more than its
/// own size does not exist. Zero bytes take no block. What is kept is given back to
/// the system by [`trim`](Allocator::trim), and all of it when the slab goes away, which
/// is when its last handle and its last buffer are gone.
///
/// Cost: a few plain loads and stores to allocate and to give back, no system call (but a few
/// for each new row, under the lock, and one to look into another thread's magazine), no heap
/// block. At most 72 bytes of
/// tables for each block that was ever used, in whole pages; this value itself has less
/// than 4 KiB. One that is refused for want of blocks has looked into every magazine.
///
/// ```
/// use tenslab::memory::{SharedAllocator, SlabAllocator, Tag};
///
/// let slab = SharedAllocator::new(SlabAllocator::new(16 << 10, 1_000_000)?);
/// let first = slab.allocate(16 << 10, 64)?;
/// let address = first.as_ptr();
/// drop(first);                                                // goes back,
/// assert_eq!(slab.allocate(5000, 64)?.as_ptr(), address);     // and is reused
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
pub struct SlabAllocator<P: PageSource = OsPages> {
    magazines: Magazines,
    rows: Rows<BLOCK_ROWS>,
    table: Table,
    /// From block to block, a multiple of [`GRAIN`].
    block_bytes: usize,
    /// Blocks there may be.
    blocks: u32,
    /// Tells this slab's ids from another's.
    name: u32,
    /// What every block's address is a multiple of.
    align: usize,
    pages: P,
    tier: Mutex<Tier>,
    /// One trim at a time. Whoever finds blocks in a trim's hands waits here.
    trimming: Mutex<()>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SlabAllocator>() <= 4096);

/// What is known of the bytes of a block that goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// Never used.
    Zero,
    /// Used before.
    Anything,
}

impl SlabAllocator {
    /// Up to `blocks` blocks of at least `block_bytes` bytes, from the system's pages.
    /// Nothing is reserved yet; the slab grows row by row, each as large as all before it.
    ///
    /// # Errors
    /// [`SlabTooLarge`](AllocError::SlabTooLarge) where all blocks together are more
    /// than an address space holds, and for `u32::MAX` blocks (that number is taken).
    pub fn new(block_bytes: usize, blocks: u32) -> Result<Self, AllocError> {
        Self::with_pages(block_bytes, blocks, OsPages::new())
    }

    /// As [`new`](Self::new), but all blocks are one row: the first block reserves the
    /// addresses of all of them, and the slab never grows afterwards.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn fixed(block_bytes: usize, blocks: u32) -> Result<Self, AllocError> {
        Self::fixed_with_pages(block_bytes, blocks, OsPages::new())
    }
}

impl<P: PageSource> SlabAllocator<P> {
    /// As [`new`](SlabAllocator::new), with pages from somewhere else.
    ///
    /// # Errors
    /// As [`new`](SlabAllocator::new).
    pub fn with_pages(block_bytes: usize, blocks: u32, pages: P) -> Result<Self, AllocError> {
        let first = |stride: usize| (FIRST_ROW_BYTES / stride).max(1).ilog2();
        Self::with_first_row(block_bytes, blocks, pages, first)
    }

    /// As [`fixed`](SlabAllocator::fixed), with pages from somewhere else.
    ///
    /// # Errors
    /// As [`new`](SlabAllocator::new).
    pub fn fixed_with_pages(block_bytes: usize, blocks: u32, pages: P) -> Result<Self, AllocError> {
        let all = u64::from(blocks).next_power_of_two().ilog2();
        Self::with_first_row(block_bytes, blocks, pages, |_| all)
    }

    /// For one size of many: it begins with a row of [`CLASS_ROW_BYTES`], and has as many blocks
    /// as its addresses can be counted for.
    pub(super) fn of_class(block_bytes: usize, pages: P) -> Result<Self, AllocError> {
        let blocks = (MOST_CLASS_BYTES / block_bytes.max(GRAIN)).min(NIL as usize - 1);
        #[allow(clippy::cast_possible_truncation, reason = "below NIL")]
        Self::with_first_row(block_bytes, blocks as u32, pages, |stride| {
            (CLASS_ROW_BYTES / stride).max(1).ilog2()
        })
    }

    /// `first` says how many blocks of some bytes are in the first row, as a power of two.
    fn with_first_row(
        block_bytes: usize,
        blocks: u32,
        pages: P,
        first: impl Fn(usize) -> u32,
    ) -> Result<Self, AllocError> {
        static NAMES: Names = Names::new();
        let overflow = AllocError::SlabTooLarge {
            block_bytes,
            blocks,
        };
        if blocks == NIL {
            return Err(overflow);
        }
        let stride = block_bytes
            .max(1)
            .checked_next_multiple_of(GRAIN)
            .ok_or(overflow)?;
        // Twice: a region may have to be as much larger as its alignment.
        stride
            .checked_mul((blocks as usize).max(1))
            .and_then(|all| all.checked_mul(2))
            .filter(|&twice| twice <= isize::MAX as usize)
            .ok_or(overflow)?;
        Ok(Self {
            magazines: Magazines::default(),
            rows: Rows::new(first(stride)),
            table: Table::new(blocks),
            block_bytes: stride,
            blocks,
            name: NAMES.next(),
            align: (1 << stride.trailing_zeros()).min(super::MAX_ALIGN),
            pages,
            tier: Mutex::new(Tier::new()),
            trimming: Mutex::new(()),
        })
    }

    /// Bytes of a block: what was asked for, rounded up to 64.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Blocks there may be.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Blocks that are out at this moment. Exact while no call is under way.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        let past = self.tier.lock().in_use;
        let in_use = past.wrapping_add(self.magazines.counts().0);
        u32::try_from(in_use).unwrap_or(0)
    }

    /// A block out of this thread's magazine for a request that fits, whose cookie is its number
    /// and `mark`, which has no bit below 2^32. Or the magazine, which is empty, or neither: for
    /// [`allocate_far`](Self::allocate_far).
    // Always: see `hand_out`.
    #[inline(always)]
    pub(super) fn allocate_near(
        &self,
        request: Request,
        mark: u64,
    ) -> Result<Block, Option<Held<'_>>> {
        let bytes = request.bytes();
        debug_assert!(0 < bytes && bytes <= self.block_bytes && request.align() <= self.align);
        let block = self.take_near(bytes)?;
        Ok(self.hand_out(request, mark, block, Bytes::Anything))
    }

    /// A block from further away.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate_far(
        &self,
        empty: Option<Held<'_>>,
        request: Request,
        mark: u64,
    ) -> Result<Block, AllocError> {
        let (block, was) = self.take_from_tier(empty, request.bytes())?;
        Ok(self.hand_out(request, mark, block, was))
    }

    /// A block that is the caller's, for one who asked for it.
    // Always: out of line, the block would be copied on its way, and a copy waits for the writes.
    #[inline(always)]
    fn hand_out(&self, request: Request, mark: u64, block: u32, was: Bytes) -> Block {
        let bytes = request.bytes();
        let (Some(start), Some(header)) = (self.start(block), self.table.header(block)) else {
            unreachable!("a block that is out has a row and a table")
        };
        // SAFETY: `bytes` bytes of a committed block.
        unsafe { unpoison(start, bytes) };
        if !request.is_zeroed() {
            unspecified(start, bytes);
        } else if was != Bytes::Zero {
            // SAFETY: `bytes` bytes of a block that is ours until it is returned.
            unsafe { start.write_bytes(0, bytes) };
        }
        let cookie = u64::from(block) | mark;
        let tag = request.tag();
        Block::new(start, bytes, self.block_bytes, cookie, tag).with_header(header)
    }

    /// Takes a block back by its number, where `len` bytes of it were asked for.
    ///
    /// # Safety
    /// As [`release_block`](Allocator::release_block), of the block that begins at `start`.
    #[inline]
    pub(super) unsafe fn release_number(&self, start: NonNull<u8>, number: u32, len: usize) {
        // SAFETY: the block is committed, and nobody uses it any more (the caller's promise).
        unsafe { poison(start, self.block_bytes) };
        self.put(number, len);
    }

    /// The first byte of `block`. `None` where its row is not there.
    #[inline]
    fn start(&self, block: u32) -> Option<NonNull<u8>> {
        let (row, index) = self.rows.place(block);
        let base = self.rows.base(row)?;
        // SAFETY: in bounds: `place` gave an index below the row's length, because only
        // blocks of the slab are asked for, and the row's region has `block_bytes` for each.
        Some(unsafe { base.add(index as usize * self.block_bytes) })
    }
}

/// A wrapped sum of what went up and down.
fn not_negative(sum: usize) -> usize {
    usize::try_from(sum.cast_signed()).unwrap_or(0)
}

// SAFETY: a block is handed out by `take` to one holder at a time (its number leaves the
// magazine, the chain or the row that it was in, and comes back in `put`). Its bytes are
// committed pages, zero or written before, so initialised; it is `self.align`-aligned
// because the region and the stride are. Regions do not move with the allocator value.
unsafe impl<P: PageSource> Allocator for SlabAllocator<P> {
    #[inline]
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let (bytes, align) = (request.bytes(), request.align());
        if bytes == 0 {
            let nowhere = request.dangling();
            return Ok(Block::new(nowhere, 0, 0, u64::from(NIL), request.tag()));
        }
        if bytes > self.block_bytes {
            return Err(AllocError::TooLarge {
                bytes,
                block_bytes: self.block_bytes,
            });
        }
        if align > self.align {
            return Err(AllocError::AlignTooLarge {
                align,
                max: self.align,
            });
        }
        match self.allocate_near(request, 0) {
            Ok(block) => Ok(block),
            Err(empty) => self.allocate_far(empty, request, 0),
        }
    }

    #[inline]
    unsafe fn release_block(&self, block: Block) {
        if block.is_empty() {
            return;
        }
        let Ok(number) = u32::try_from(block.cookie()) else {
            debug_assert!(false, "a block of another allocator: {block:?}");
            return;
        };
        // SAFETY: the caller's promise.
        unsafe { self.release_number(block.as_ptr(), number, block.len()) };
    }

    /// `requested`, `live` and `cached` are of blocks that were used and keep their pages.
    /// `unused` is the rest of the rows: what was never used, and what was given back by
    /// [`trim`](Allocator::trim). `metadata` is the tables.
    fn stats(&self) -> Stats {
        let tier = self.tier.lock();
        let (blocks, bytes) = self.magazines.counts();
        let warm = (tier.carved - tier.cold.len) as usize;
        // Magazine after magazine is looked at while threads go on, so a sum may be off by what
        // is under way: but never below nothing, nor above all there is.
        let in_use = not_negative(tier.in_use.wrapping_add(blocks)).min(warm);
        let live_bytes = in_use * self.block_bytes;
        Stats {
            requested_bytes: not_negative(tier.requested_bytes.wrapping_add(bytes)).min(live_bytes),
            live_bytes,
            cached_bytes: (warm - in_use) * self.block_bytes,
            // No underflow: every warm block has its bytes in a row.
            unused_bytes: tier.row_bytes - warm * self.block_bytes,
            metadata_bytes: tier.table_bytes,
            reserved_bytes: tier.row_bytes + tier.table_bytes,
        }
    }

    /// Idle blocks give their pages back: rows that are wholly idle go, and elsewhere
    /// pages that are wholly of idle blocks are decommitted, neighbours in one call. All of
    /// it is outside the lock; who finds no block meanwhile waits for the trim. Tables stay.
    ///
    /// Returns the bytes that were in memory, as the kernel says. Where it does not say,
    /// those of the idle blocks whose row went.
    fn trim(&self) -> usize {
        self.trim_idle()
    }
}

impl<P: PageSource> Drop for SlabAllocator<P> {
    fn drop(&mut self) {
        for (region, of_blocks) in self.tier.get_mut().take_regions() {
            if of_blocks {
                // SAFETY: still mapped. The address range may be somebody else's next.
                unsafe { unpoison(region.base(), region.bytes()) };
            }
            // SAFETY: from this slab's source, once; whoever had a block kept the
            // slab alive (or broke the promise of `release_block`).
            unsafe { self.pages.release(region) };
        }
    }
}

impl<P: PageSource> fmt::Debug for SlabAllocator<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabAllocator")
            .field("block_bytes", &self.block_bytes)
            .field("blocks", &self.blocks)
            .field("in_use", &self.in_use())
            .finish_non_exhaustive()
    }
}
