//! What a slab knows of each block, and in which rows its blocks and that table lie.
//!
//! ```text
//!   blocks    a row of about 1 MiB first                the bytes that users get
//!   table     a row of 512 first, in groups of eight:
//!             | 8 links | 8 generations | 8 headers |   72 bytes a block, all together
//! ```
//!
//! Both are [rows that double](crate::memory::rows). Eight blocks share their part of the
//! table, so that the first `n` blocks touch its first `72 n` bytes and no page more.

use std::ptr::NonNull;

use super::HeaderSlot;
use crate::memory::rows::Rows;
use crate::sync::atomic::AtomicU32;

/// As many rows as 2^32 blocks can need where the first has one.
pub(super) const BLOCK_ROWS: usize = if cfg!(loom) { 4 } else { 33 };

/// As many rows as 2^32 blocks can need where the first has [`TABLE_FIRST`].
pub(super) const TABLE_ROWS: usize = if cfg!(loom) { 1 } else { 24 };

/// Blocks in the first row of the table, as a power of two. 512 blocks are whole pages,
/// and so are all later rows.
pub(super) const TABLE_FIRST_LOG2: u32 = 9;

/// Blocks that share a group of the table.
const GROUP: usize = 8;

const WORD_BYTES: usize = size_of::<u32>();

/// Where the headers of a group begin: behind the links and the generations.
const HEADERS_AT: usize = 2 * GROUP * WORD_BYTES;

const GROUP_BYTES: usize = HEADERS_AT + GROUP * HeaderSlot::BYTES;

// Headers are aligned in every group of a table that is.
const _: () = assert!(HEADERS_AT.is_multiple_of(HeaderSlot::ALIGN));
const _: () = assert!(GROUP_BYTES.is_multiple_of(HeaderSlot::ALIGN));
#[cfg(not(loom))]
const _: () = assert!(GROUP_BYTES == 72 * GROUP);

/// Bytes of a table of `blocks` blocks: no header behind the last.
pub(super) const fn table_bytes(blocks: u32) -> usize {
    let (groups, rest) = (blocks as usize / GROUP, blocks as usize % GROUP);
    let tail = if rest == 0 {
        0
    } else {
        HEADERS_AT + rest * HeaderSlot::BYTES
    };
    groups * GROUP_BYTES + tail
}

/// What the slab knows of each block. Its rows come with the blocks and stay.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) rows: Rows<TABLE_ROWS>,
    /// loom's atomics cannot lie in a table of bytes.
    #[cfg(loom)]
    generations: Box<[AtomicU32]>,
}

impl Table {
    #[cfg_attr(not(loom), allow(unused_variables, reason = "for the models"))]
    pub(super) fn new(blocks: u32) -> Self {
        Self {
            rows: Rows::new(TABLE_FIRST_LOG2),
            #[cfg(loom)]
            generations: (0..blocks.min(4)).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The place of `block`'s group, and which of the group it is. `None` where the row
    /// is not there: no block of it was ever out.
    #[inline]
    fn group(&self, block: u32) -> Option<(NonNull<u8>, usize)> {
        let (row, index) = self.rows.place(block);
        let (group, lane) = (index as usize / GROUP, index as usize % GROUP);
        let base = self.rows.base(row)?;
        // SAFETY: in bounds: the row has a group for each eight of its blocks (the last
        // may be cut behind the header of the last block), and `place` gave an index
        // below the row's length, because only blocks of the slab are asked for.
        Some((unsafe { base.add(group * GROUP_BYTES) }, lane))
    }

    /// The place for the header of `block`.
    #[inline]
    pub(super) fn header(&self, block: u32) -> Option<HeaderSlot> {
        let (group, lane) = self.group(block)?;
        // SAFETY: in bounds: `table_bytes` has a header for each block of the row.
        let place = unsafe { group.add(HEADERS_AT + lane * HeaderSlot::BYTES) };
        // SAFETY: the row begins at a multiple of the page size, and groups and headers
        // are multiples of the slot's alignment from there; the slot is this block's
        // alone, and a block is out once at a time.
        Some(unsafe { HeaderSlot::new(place) })
    }

    /// The place of the link of `block`.
    fn link(&self, block: u32) -> Option<NonNull<u32>> {
        let (group, lane) = self.group(block)?;
        // SAFETY: in bounds: a group begins with `GROUP` links.
        let place = unsafe { group.add(lane * WORD_BYTES) };
        Some(place.cast())
    }

    /// The block below `block` in its chain.
    ///
    /// # Safety
    /// The caller has `block` alone: it holds the lock that the chain is under, or the
    /// chain itself.
    pub(super) unsafe fn next(&self, block: u32) -> u32 {
        self.link(block).map_or(super::NIL, |link| {
            // SAFETY: inside the table, aligned for a u32, committed (zero at first),
            // and nobody writes it (the caller's promise).
            unsafe { link.read() }
        })
    }

    /// Puts `block` above `next`.
    ///
    /// # Safety
    /// As [`next`](Self::next).
    pub(super) unsafe fn set_next(&self, block: u32, next: u32) {
        if let Some(link) = self.link(block) {
            // SAFETY: inside the table, aligned for a u32, committed, and nobody else
            // reads or writes it (the caller's promise).
            unsafe { link.write(next) };
        }
    }

    /// How often `block` went out and came back through the raw door.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn generation(&self, block: u32) -> Option<&AtomicU32> {
        let (group, lane) = self.group(block)?;
        // SAFETY: in bounds: the generations follow the `GROUP` links of a group.
        let place = unsafe { group.add((GROUP + lane) * WORD_BYTES) };
        // SAFETY: aligned for a u32, committed (0 at first), there until the slab goes
        // away, and reached as an atomic only.
        Some(unsafe { AtomicU32::from_ptr(place.cast::<u32>().as_ptr()) })
    }

    /// How often `block` went out and came back through the raw door.
    #[cfg(loom)]
    pub(super) fn generation(&self, block: u32) -> Option<&AtomicU32> {
        self.generations.get(block as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_at_most_72_bytes_a_block_and_a_page() {
        assert!(Rows::<TABLE_ROWS>::new(TABLE_FIRST_LOG2).place(u32::MAX).0 < TABLE_ROWS);
        assert!(table_bytes(1 << TABLE_FIRST_LOG2).is_multiple_of(4096));
        for blocks in 1..10_000 {
            let pages = table_bytes(blocks).next_multiple_of(4096);
            assert!(pages <= 72 * blocks as usize + 4096, "{blocks} blocks");
        }
    }
}
