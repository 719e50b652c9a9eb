//! One piece of memory: a `Bump` of a single chunk, which is never more than that.
//!
//! ```text
//!   base                                            top     footer
//!   | never handed out      | …  | head bytes | head bytes |▒▒▒▒▒▒|   bumpalo goes down
//!                           low                                       [low, top) is initialised
//! ```
//!
//! bumpalo hands out bytes that hold nothing yet, and our allocations are initialised. So
//! bytes are cleared when they are handed out for the first time, and only then: a chunk
//! that nobody uses has no memory, and one that is used again is not cleared again.

use std::alloc::Layout;
use std::ptr::NonNull;

use bumpalo::Bump;

use crate::memory::poison::{poison, unpoison};
use crate::memory::{AllocError, Charge, HeaderSlot, Request, Tag};

/// Allocations are placed at multiples of this, so that no two share a cache line.
const GRAIN: usize = 64;

/// In front of each allocation, for its storage header.
pub(super) const HEAD: usize = HeaderSlot::BYTES;

/// Chunks are so many bytes, or a multiple.
const PAGE: usize = 4096;

/// Of each chunk: 48 bytes that bumpalo keeps at its end, 16 that it leaves to the heap, and
/// what its ends may be off the [`GRAIN`].
const OVERHEAD: usize = 128;

/// Up to this alignment the gap in front of an allocation is cleared with it, so that what was
/// cleared stays in one piece. Larger gaps may never be touched by anybody.
const WIDE_ALIGN: usize = 64 << 10;

const _: () = assert!(HEAD.is_multiple_of(GRAIN) && HeaderSlot::ALIGN <= GRAIN);

/// What a request takes of a chunk, wherever in it that may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// All of it, a multiple of [`GRAIN`].
    pub(super) whole: usize,
    /// Of those, the allocation's.
    pub(super) capacity: usize,
    pub(super) align: usize,
}

impl Need {
    /// `None`: no chunk is so large.
    #[inline]
    pub(super) fn of(request: &Request) -> Option<Self> {
        let align = request.align();
        // No overflow: a request rounded up to its alignment fits an `isize`.
        let capacity = (request.bytes() + (GRAIN - 1)) & !(GRAIN - 1);
        let whole = capacity + HEAD + align.saturating_sub(GRAIN);
        (whole <= isize::MAX as usize - 2 * PAGE).then_some(Self {
            whole,
            capacity,
            align,
        })
    }
}

/// Bytes of a chunk with room for `room` bytes. `None`: no chunk is so large.
pub(super) fn chunk_bytes(room: usize) -> Option<usize> {
    let bytes = room.checked_add(OVERHEAD)?.checked_next_multiple_of(PAGE)?;
    (bytes <= isize::MAX as usize).then_some(bytes)
}

/// Room that a chunk of `bytes` bytes has at the least.
pub(super) const fn room(bytes: usize) -> usize {
    bytes.saturating_sub(OVERHEAD)
}

/// Where an allocation is, and which bytes have to be cleared before anybody sees them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) start: NonNull<u8>,
    /// The first byte of what the need took.
    pub(super) whole: NonNull<u8>,
    pub(super) fresh: NonNull<u8>,
    pub(super) fresh_bytes: usize,
}

/// Memory of the global allocator, handed out from its end to its beginning.
#[derive(Debug)]
pub(super) struct Chunk {
    bump: Bump,
    // Behind the memory: fields are dropped in this order.
    charge: Option<Charge>,
    bytes: usize,
    base: NonNull<u8>,
    room: usize,
    left: usize,
    /// The address from which on, up to the end, every byte is initialised.
    low: usize,
    live: usize,
    by_tag: [usize; Tag::ALL.len()],
    parked: bool,
}

// SAFETY: `base` only says where the memory of `bump` is, which is `Send`; whoever has the
// chunk has both.
unsafe impl Send for Chunk {}

impl Chunk {
    /// A chunk of `bytes` bytes, which [`chunk_bytes`] gave. `charge` is what a limit counts
    /// for it.
    pub(super) fn new(bytes: usize, charge: Option<Charge>) -> Result<Self, AllocError> {
        let failed = AllocError::OutOfMemory { bytes };
        debug_assert!(bytes.is_multiple_of(PAGE) && bytes >= PAGE, "{bytes}");
        // bumpalo rounds up to whole pages less 16 bytes, its footer of 48 included.
        let bump = Bump::try_with_capacity(bytes - GRAIN).map_err(|_| failed)?;
        // From now on it takes no memory by itself, neither less nor more.
        bump.set_allocation_limit(Some(bump.allocated_bytes()));
        let most = bump.chunk_capacity() / GRAIN * GRAIN;
        let ends = [most, most.saturating_sub(GRAIN)].into_iter();
        // All of it once, to see how much there is between two multiples of the grain.
        let (base, room) = ends
            .filter_map(|room| Layout::from_size_align(room, GRAIN).ok())
            .find_map(|all| Some((bump.try_alloc_layout(all).ok()?, all.size())))
            .ok_or(failed)?;
        let mut chunk = Self {
            bump,
            charge,
            bytes,
            base,
            room,
            left: 0,
            low: base.addr().get() + room,
            live: 0,
            by_tag: [0; Tag::ALL.len()],
            parked: false,
        };
        chunk.reset();
        // SAFETY: `room` bytes of a live chunk, and nobody has any of them.
        unsafe { poison(base, room) };
        Ok(chunk)
    }

    fn reset(&mut self) {
        self.bump.reset();
        self.left = self.room;
    }

    /// Takes what `need` says. `None`: there is too little left.
    #[inline]
    pub(super) fn take(&mut self, need: Need, tag: Tag) -> Option<Place> {
        if need.whole > self.left {
            return None;
        }
        let layout = Layout::from_size_align(need.whole, GRAIN).ok()?;
        let whole = self.bump.try_alloc_layout(layout).ok()?;
        self.left -= need.whole;
        self.live += 1;
        self.by_tag[tag as usize] += 1;
        let first = whole.addr().get();
        let end = first + need.whole;
        let start = (end - need.capacity) & !(need.align - 1);
        // SAFETY: in bounds: `start` is rounded down by at most the alignment less one grain
        // (both ends are multiples of it), which with the head and the capacity is all of it.
        let start = unsafe { whole.add(start - first) };
        // What is cleared along with it, and so may be counted as initialised.
        let (from, to) = if need.align <= WIDE_ALIGN {
            (first, end)
        } else {
            let start = start.addr().get();
            (start - HEAD, start + need.capacity)
        };
        let mut place = Place {
            start,
            whole,
            // SAFETY: in bounds: `from` is in what was taken.
            fresh: unsafe { whole.add(from - first) },
            fresh_bytes: 0,
        };
        if from < self.low {
            place.fresh_bytes = to.min(self.low) - from;
            if to >= self.low {
                self.low = from;
            }
        }
        Some(place)
    }

    /// One of its allocations came back; who counts the last one [empties](Self::empty) it.
    #[inline]
    pub(super) fn count_out(&mut self, tag: Tag) {
        self.live -= 1;
        self.by_tag[tag as usize] -= 1;
    }

    /// Nobody has any of its bytes.
    #[inline]
    pub(super) fn empty(&mut self) {
        self.reset();
        self.parked = false;
    }

    /// Hands out nothing more until all that is out of it came back.
    pub(super) fn park(&mut self) {
        self.parked = true;
        self.left = 0;
    }

    #[inline]
    pub(super) fn is_parked(&self) -> bool {
        self.parked
    }

    #[inline]
    pub(super) fn live(&self) -> usize {
        self.live
    }

    pub(super) fn by_tag(&self) -> [usize; Tag::ALL.len()] {
        self.by_tag
    }

    /// Bytes of the global allocator.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that it hands out.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Bytes that it may still hand out.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Bytes at its beginning that were never handed out.
    pub(super) fn untouched(&self) -> usize {
        self.low - self.base.addr().get()
    }

    /// Gives its memory back, and hands on what a limit counts for it.
    pub(super) fn into_charge(mut self) -> Option<Charge> {
        self.charge.take()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: still there. The bytes may be somebody else's next.
        unsafe { unpoison(self.base, self.room) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use super::*;

    /// What bumpalo is known to do; were it to round otherwise some day, a limit would count a
    /// little less or more than a chunk takes.
    #[test]
    fn a_chunk_takes_what_is_charged_for_it() {
        for pages in [1, 2, 3, 16, 17, 1000] {
            let chunk = Chunk::new(pages * PAGE, None).unwrap();
            let taken = chunk.bump.allocated_bytes_including_metadata();
            assert_eq!(taken + 16, pages * PAGE);
            assert!(chunk.room >= room(pages * PAGE));
        }
    }
}
