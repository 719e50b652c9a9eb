//! [`SlabAllocator`]: equal blocks, handed out in constant time.
//!
//! ```text
//!  segment 0        | 0 | 1 | 2 | 3 |                  first
//!  segment 1        | 4 | 5 | 6 | 7 |                  as many again
//!  segment 2        | 8 | 9 | … | 15 |                 twice as many, and so on
//!
//!  each block has a header slot (64 B) and a link (4 B) in its segment's table
//!
//!  free list        head -> 2 -> 5 -> nil
//!  fresh            9 and above were never handed out
//! ```
//!
//! A slab grows segment by segment, each as large as all before it, so a block's
//! place follows from its number and nothing ever moves. What was given back last is
//! handed out first: its bytes are still in the cache. Links are numbers in a table
//! of their own, never in the blocks. Tables and blocks are pages that nobody touches
//! before the first use of a block, so a slab of a million blocks costs nothing but
//! addresses until they are used.
//!
//! The free list is behind one short lock. (Alone a lock costs 10.4 ns where a tagged
//! lock-free list costs 8.7; with two threads contending it is 15 against 71 ns,
//! measured for the design.) `loom_tests/slab.rs` explores it.

use std::fmt;
use std::ptr::NonNull;

use super::poison::{poison, unpoison};
use super::{
    AllocError, Allocator, Block, HeaderSlot, OsPages, PageSource, Region, Request, Stats,
};
use crate::mutant::{self, Mutant};
use crate::sync::Mutex;

/// No block.
const NIL: u32 = u32::MAX;

/// Blocks are placed at multiples of this, so that no two share a cache line.
const GRAIN: usize = 64;

/// The first segment is about this large; the later ones double.
const FIRST_SEGMENT_BYTES: usize = 1 << 20;

/// As many as 2^32 blocks can need, each segment doubling the slab.
const MAX_SEGMENTS: usize = 33;

/// Bytes of a link in a segment's table.
const LINK_BYTES: usize = size_of::<u32>();

/// Equal blocks, handed out in constant time, from any thread.
///
/// A request fits if it is no larger than a block; a block aligned to more than its
/// own size does not exist. Zero bytes take no block. What is kept is given back to
/// the system when the slab goes away, which is when its last handle and its last
/// buffer are gone.
///
/// Cost: one short lock to allocate and one to give back, no system call (but a few for
/// each new segment, under the lock), no heap block. Up to 72 bytes of tables for each block
/// that was ever used.
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
    pages: P,
    /// From block to block, a multiple of [`GRAIN`].
    block_bytes: usize,
    /// Blocks there may be.
    blocks: u32,
    /// Blocks in the first segment, as a power of two.
    first_log2: u32,
    /// What every block's address is a multiple of.
    align: usize,
    free: Mutex<FreeList>,
}

struct FreeList {
    /// The block that was given back last, or [`NIL`].
    head: u32,
    /// Blocks from here on were never handed out.
    fresh: u32,
    /// Blocks that are out.
    in_use: u32,
    /// Bytes asked for by the blocks that are out.
    requested_bytes: usize,
    /// Address space of all segments.
    reserved_bytes: usize,
    segments: [Option<Segment>; MAX_SEGMENTS],
}

/// Some blocks and their table.
struct Segment {
    blocks: u32,
    region: Region,
    /// `blocks` header slots, then `blocks` links.
    table: Region,
}

// SAFETY: the regions belong to the slab alone; which part of them is whose is
// decided under the lock.
unsafe impl Send for Segment {}

impl Segment {
    /// The `index`-th block.
    fn block(&self, index: u32, block_bytes: usize) -> NonNull<u8> {
        debug_assert!(index < self.blocks, "block {index} of {}", self.blocks);
        // SAFETY: in bounds, because the region has `blocks * block_bytes` bytes
        // and callers pass `index < blocks`.
        unsafe { self.region.base().add(index as usize * block_bytes) }
    }

    /// The place for the `index`-th block's header.
    fn header(&self, index: u32) -> HeaderSlot {
        debug_assert!(index < self.blocks, "block {index} of {}", self.blocks);
        // SAFETY: in bounds: the table begins with `blocks` slots.
        let place = unsafe { self.table.base().add(index as usize * HeaderSlot::BYTES) };
        // SAFETY: the table's base is page-aligned and slots are a multiple of their
        // alignment apart; the slot is this block's, and a block is out once at a time.
        unsafe { HeaderSlot::new(place) }
    }

    /// The place of the `index`-th block's link.
    fn link(&self, index: u32) -> NonNull<u32> {
        debug_assert!(index < self.blocks, "block {index} of {}", self.blocks);
        let offset = self.blocks as usize * HeaderSlot::BYTES + index as usize * LINK_BYTES;
        // SAFETY: in bounds: `blocks` links follow the slots.
        let place = unsafe { self.table.base().add(offset) };
        place.cast()
    }
}

impl FreeList {
    /// The block that is below `block` in the free list.
    fn next(&self, place: (usize, u32)) -> u32 {
        self.segments[place.0].as_ref().map_or(NIL, |segment| {
            // SAFETY: the place is inside the table, aligned for a u32, committed
            // (zero at first) and only reached under the lock.
            unsafe { segment.link(place.1).read() }
        })
    }

    fn set_next(&mut self, place: (usize, u32), next: u32) {
        if let Some(segment) = &self.segments[place.0] {
            // SAFETY: the place is inside the table, aligned for a u32, committed and
            // only reached under the lock, which `&mut self` says is held.
            unsafe { segment.link(place.1).write(next) };
        }
    }
}

impl SlabAllocator {
    /// Up to `blocks` blocks of at least `block_bytes` bytes, from the system's pages.
    /// Nothing is reserved yet.
    ///
    /// # Errors
    /// [`SlabTooLarge`](AllocError::SlabTooLarge) where all blocks together are more
    /// than an address space holds, and for `u32::MAX` blocks (that number is taken).
    pub fn new(block_bytes: usize, blocks: u32) -> Result<Self, AllocError> {
        Self::with_pages(block_bytes, blocks, OsPages::new())
    }
}

impl<P: PageSource> SlabAllocator<P> {
    /// As [`new`](SlabAllocator::new), with pages from somewhere else.
    ///
    /// # Errors
    /// As [`new`](SlabAllocator::new).
    pub fn with_pages(block_bytes: usize, blocks: u32, pages: P) -> Result<Self, AllocError> {
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
        let align = (1 << stride.trailing_zeros()).min(super::MAX_ALIGN);
        let first = (FIRST_SEGMENT_BYTES / stride).max(1);
        Ok(Self {
            pages,
            block_bytes: stride,
            blocks,
            first_log2: first.ilog2(),
            align,
            free: Mutex::new(FreeList {
                head: NIL,
                fresh: 0,
                in_use: 0,
                requested_bytes: 0,
                reserved_bytes: 0,
                segments: [const { None }; MAX_SEGMENTS],
            }),
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

    /// Blocks that are out at this moment.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.free.lock().in_use
    }

    /// Which segment a block is in, and the how-manieth it is there.
    fn place(&self, block: u32) -> (usize, u32) {
        match (block >> self.first_log2).checked_ilog2() {
            None => (0, block),
            Some(doubling) => (
                doubling as usize + 1,
                block - (1 << (doubling + self.first_log2)),
            ),
        }
    }

    /// Reserves the segment that begins with the next fresh block.
    fn grow(&self, segment: usize, first_block: u32) -> Result<Segment, AllocError> {
        let doubled = segment.saturating_sub(1);
        // Past the end of u32 only where the slab's own number of blocks cuts it off.
        let blocks = u32::try_from(1_u64 << (doubled + self.first_log2 as usize))
            .unwrap_or(u32::MAX)
            .min(self.blocks - first_block);
        let region = self.map(blocks as usize * self.block_bytes, self.align)?;
        let table_bytes = blocks as usize * (HeaderSlot::BYTES + LINK_BYTES);
        let table = match self.map(table_bytes, HeaderSlot::ALIGN) {
            Ok(table) => table,
            Err(error) => {
                // SAFETY: reserved a moment ago, and nobody has seen it.
                unsafe { self.pages.release(region) };
                return Err(error);
            }
        };
        // SAFETY: committed, and no block of it is out.
        unsafe { poison(region.base(), region.bytes()) };
        Ok(Segment {
            blocks,
            region,
            table,
        })
    }

    /// A committed region of at least `bytes` bytes.
    fn map(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        let region = self.pages.reserve(bytes, align)?;
        // SAFETY: reserved from this source just now.
        match unsafe { self.pages.commit(&region, 0..region.bytes()) } {
            Ok(()) => Ok(region),
            Err(error) => {
                // SAFETY: reserved a moment ago, and nobody has seen it.
                unsafe { self.pages.release(region) };
                Err(error)
            }
        }
    }

    /// Takes a block off the free list, or a fresh one. `true`: it was never used, so
    /// it is zero.
    fn take(
        &self,
        requested_bytes: usize,
    ) -> Result<(u32, NonNull<u8>, HeaderSlot, bool), AllocError> {
        let mut free = self.free.lock();
        let fresh = free.head == NIL;
        let block = if fresh { free.fresh } else { free.head };
        if block >= self.blocks {
            return Err(AllocError::Exhausted {
                blocks: self.blocks,
            });
        }
        let (segment, index) = self.place(block);
        if fresh {
            if free.segments[segment].is_none() {
                let grown = self.grow(segment, block)?;
                if mutant::is(Mutant::SlabGrowTwoSteps) {
                    drop(free);
                    free = self.free.lock();
                }
                free.reserved_bytes += grown.region.bytes() + grown.table.bytes();
                free.segments[segment] = Some(grown);
            }
            free.fresh = block + 1;
        } else {
            let next = free.next((segment, index));
            if mutant::is(Mutant::SlabStaleNext) {
                drop(free);
                free = self.free.lock();
            }
            free.head = next;
        }
        free.in_use += 1;
        free.requested_bytes += requested_bytes;
        let Some(home) = &free.segments[segment] else {
            unreachable!("blocks below `fresh` have a segment");
        };
        Ok((
            block,
            home.block(index, self.block_bytes),
            home.header(index),
            fresh,
        ))
    }

    /// Puts a block back on the free list.
    fn give_back(&self, block: u32, requested_bytes: usize) {
        let place = self.place(block);
        let mut free = self.free.lock();
        let head = free.head;
        free.set_next(place, head);
        if mutant::is(Mutant::SlabPushTwoSteps) {
            drop(free);
            free = self.free.lock();
        }
        free.head = block;
        free.in_use -= 1;
        free.requested_bytes -= requested_bytes;
    }
}

// SAFETY: a block is handed out by `take` to one holder at a time (it leaves the free
// list or `fresh` under the lock and comes back in `give_back`). Its bytes are
// committed pages, zero or written before, so initialised; it is `self.align`-aligned
// because the region and the stride are. Regions do not move with the allocator value.
unsafe impl<P: PageSource> Allocator for SlabAllocator<P> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let (bytes, align, tag) = (request.bytes(), request.align(), request.tag());
        if bytes == 0 {
            return Ok(Block::new(request.dangling(), 0, 0, u64::from(NIL), tag));
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
        let (block, start, header, is_zero) = self.take(bytes)?;
        // SAFETY: `bytes` bytes of a committed block.
        unsafe { unpoison(start, bytes) };
        if request.is_zeroed() && !is_zero {
            // SAFETY: `bytes` bytes of a block that is ours until it is returned.
            unsafe { start.write_bytes(0, bytes) };
        }
        Ok(Block::new(start, bytes, self.block_bytes, u64::from(block), tag).with_header(header))
    }

    unsafe fn release_block(&self, block: Block) {
        if block.is_empty() {
            return;
        }
        let Ok(number) = u32::try_from(block.cookie()) else {
            debug_assert!(false, "a block of another allocator: {block:?}");
            return;
        };
        // SAFETY: the block is committed, and nobody uses it any more (the caller's promise).
        unsafe { poison(block.as_ptr(), self.block_bytes) };
        self.give_back(number, block.len());
    }

    fn stats(&self) -> Stats {
        let free = self.free.lock();
        let cached = free.fresh - free.in_use;
        Stats {
            requested_bytes: free.requested_bytes,
            live_bytes: free.in_use as usize * self.block_bytes,
            cached_bytes: cached as usize * self.block_bytes,
            reserved_bytes: free.reserved_bytes,
        }
    }
}

impl<P: PageSource> Drop for SlabAllocator<P> {
    fn drop(&mut self) {
        for segment in self
            .free
            .get_mut()
            .segments
            .iter_mut()
            .filter_map(Option::take)
        {
            // SAFETY: still mapped. The address range may be somebody else's next.
            unsafe { unpoison(segment.region.base(), segment.region.bytes()) };
            for region in [segment.region, segment.table] {
                // SAFETY: from this slab's source, once; whoever had a block kept the
                // slab alive (or broke the promise of `release_block`).
                unsafe { self.pages.release(region) };
            }
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
