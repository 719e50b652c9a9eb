//! Where the pieces of a heap are described: records that never move, reused by number.
//!
//! ```text
//!   row 0    | 1024 headers         | 1024 pieces           |    a region of its own
//!   row 1    | 1024 headers         | 1024 pieces           |
//!   row 2    | 2048 headers                 | 2048 pieces   …    twice as many, and so on
//! ```
//!
//! A piece is reached under the heap's lock only. Its header belongs to whoever has the block that
//! the piece stands for, without any lock; so the two never lie in one record.

use std::ptr::NonNull;

use crate::memory::rows::Rows;
use crate::memory::{AllocError, HeaderSlot, PageSource, Region};

/// No piece.
pub(in super::super) const NIL: u32 = u32::MAX;

/// Pieces in the first row, as a power of two. Few pools have more, and the pages of those that
/// were never used are not in memory.
const FIRST_LOG2: u32 = if cfg!(loom) { 4 } else { 10 };

/// As many rows as 2^31 pieces need.
pub(in super::super) const PIECE_ROWS: usize = if cfg!(loom) { 2 } else { 22 };

const PIECE_BYTES: usize = size_of::<Piece>();

const _: () = assert!(PIECE_BYTES == 64);

/// What is known of the pages of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(in super::super) enum State {
    /// Somebody's.
    Used,
    /// Free, in memory, with what the last owner left.
    Dirty,
    /// Free, committed and zero: nobody has touched it since.
    Fresh,
    /// Free, and its pages were given back.
    Gone,
    /// Never committed.
    Virgin,
}

impl State {
    pub(in super::super) const COUNT: usize = 5;

    /// Are its pages committed and nobody's?
    pub(in super::super) fn is_warm(self) -> bool {
        matches!(self, State::Dirty | State::Fresh)
    }

    /// Does it have to be committed before it is used?
    pub(in super::super) fn is_cold(self) -> bool {
        matches!(self, State::Gone | State::Virgin)
    }
}

/// Neighbouring pages of which the same is known. All numbers are of pages or of pieces.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(in super::super) struct Piece {
    pub(super) start: u32,
    pub(super) pages: u32,
    /// The pieces on either side.
    pub(super) before: u32,
    pub(super) after: u32,
    /// In the first piece of a run: the pages of all of it.
    pub(super) run_pages: u32,
    /// In the first piece of a run its last, in the last its first.
    pub(super) other_end: u32,
    /// In the first piece of a run: its children in the [index](super::index).
    pub(super) smaller: u32,
    pub(super) larger: u32,
    /// In the list of warm pieces.
    pub(super) older: u32,
    pub(super) newer: u32,
    /// When it became free.
    pub(super) tick: u32,
    pub(super) state: State,
    /// Free, but in the hands of a call that commits it or gives it back.
    pub(super) held: bool,
    /// Used, and its owner has given pages of it back.
    pub(super) holes: bool,
}

impl Piece {
    pub(super) fn new(start: u32, pages: u32, state: State) -> Self {
        Self {
            start,
            pages,
            before: NIL,
            after: NIL,
            run_pages: 0,
            other_end: NIL,
            smaller: NIL,
            larger: NIL,
            older: NIL,
            newer: NIL,
            tick: 0,
            state,
            held: false,
            holes: false,
        }
    }

    /// Is it in a run of the index?
    pub(super) fn is_free(&self) -> bool {
        self.state != State::Used && !self.held
    }

    /// Is it in the list of warm pieces?
    pub(super) fn is_listed(&self) -> bool {
        self.state.is_warm() && !self.held
    }

    pub(super) fn end(&self) -> u32 {
        self.start + self.pages
    }
}

/// All pieces of a heap. Under its lock.
#[derive(Debug)]
pub(super) struct Pieces {
    regions: [Option<Region>; PIECE_ROWS],
    /// The first piece of each row.
    firsts: [Option<NonNull<Piece>>; PIECE_ROWS],
    rows: usize,
    /// Pieces that were made; numbers from here on do not exist.
    made: u32,
    /// Those that may be made in the rows that are there.
    room: u32,
    /// Pieces that stand for nothing, linked by `after`.
    unused: u32,
    unused_len: u32,
}

// SAFETY: the regions belong to the heap alone; the pieces in them are reached through `&self`
// and `&mut self`, and the headers by whoever has the block.
unsafe impl Send for Pieces {}

impl Pieces {
    pub(super) fn new() -> Self {
        Self {
            regions: [const { None }; PIECE_ROWS],
            firsts: [None; PIECE_ROWS],
            rows: 0,
            made: 0,
            room: 0,
            unused: NIL,
            unused_len: 0,
        }
    }

    /// Address space that the rows take.
    pub(super) fn bytes(&self) -> usize {
        self.regions.iter().flatten().map(Region::bytes).sum()
    }

    /// Makes sure that `count` more pieces can be made. `headers` learns where a new row's are.
    pub(super) fn ensure<P: PageSource>(
        &mut self,
        count: u32,
        pages: &P,
        headers: &Headers,
    ) -> Result<(), AllocError> {
        while self.unused_len + (self.room - self.made) < count {
            let row = self.rows;
            let len = headers.0.len(row, NIL);
            if row == PIECE_ROWS || len == 0 {
                return Err(AllocError::OutOfMemory { bytes: PIECE_BYTES });
            }
            let bytes = len as usize * (PIECE_BYTES + HeaderSlot::BYTES);
            let region = pages.reserve_committed(bytes, HeaderSlot::ALIGN.max(PIECE_BYTES))?;
            headers.0.set(row, Some(region.base()));
            // SAFETY: in bounds: the headers are the first half of the row.
            let first = unsafe { region.base().add(len as usize * HeaderSlot::BYTES) };
            self.firsts[row] = Some(first.cast());
            self.regions[row] = Some(region);
            self.rows += 1;
            self.room += len;
        }
        Ok(())
    }

    #[inline]
    fn place(&self, piece: u32) -> NonNull<Piece> {
        assert!(piece < self.made, "piece {piece} of {}", self.made);
        if piece < 1 << FIRST_LOG2
            && let Some(first) = self.firsts[0]
        {
            // SAFETY: in bounds: the first row has a place for each of its numbers.
            return unsafe { first.add(piece as usize) };
        }
        let (row, index) = Rows::<PIECE_ROWS>::place_of(FIRST_LOG2, piece);
        let Some(first) = self.firsts[row] else {
            unreachable!("a piece that was made has a row")
        };
        // SAFETY: in bounds: the row has a place for each of its numbers, and `index` is below
        // their count since the number was made, which needs room.
        unsafe { first.add(index as usize) }
    }

    #[inline]
    pub(super) fn get(&self, piece: u32) -> &Piece {
        // SAFETY: aligned, written when it was made, and changed through `&mut self` only.
        unsafe { self.place(piece).as_ref() }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, piece: u32) -> &mut Piece {
        // SAFETY: aligned, written when it was made, and `&mut self` keeps all others away.
        unsafe { self.place(piece).as_mut() }
    }

    /// A piece for which [`ensure`](Self::ensure) made room.
    pub(super) fn make(&mut self, value: Piece) -> u32 {
        if self.unused == NIL {
            assert!(self.made < self.room, "no room was made for a piece");
            let piece = self.made;
            self.made += 1;
            // SAFETY: aligned and inside a committed row; nobody has a reference to it, for it
            // did not exist.
            unsafe { self.place(piece).write(value) };
            return piece;
        }
        let piece = self.unused;
        self.unused = self.get(piece).after;
        self.unused_len -= 1;
        *self.get_mut(piece) = value;
        piece
    }

    /// The piece stands for nothing any more.
    pub(super) fn discard(&mut self, piece: u32) {
        let next = self.unused;
        self.get_mut(piece).after = next;
        self.unused = piece;
        self.unused_len += 1;
    }

    /// Pieces that stand for something.
    pub(super) fn len(&self) -> u32 {
        self.made - self.unused_len
    }

    /// The regions, for who gives them back.
    pub(super) fn take_regions(&mut self) -> impl Iterator<Item = Region> {
        (self.made, self.room, self.unused, self.unused_len) = (0, 0, NIL, 0);
        self.regions.iter_mut().filter_map(Option::take)
    }
}

/// Where the headers of blocks are, for who has a block and no lock.
#[derive(Debug)]
pub(in super::super) struct Headers(Rows<PIECE_ROWS>);

impl Headers {
    pub(in super::super) fn new() -> Self {
        Self(Rows::new(FIRST_LOG2))
    }

    /// The header slot of a piece that is somebody's.
    #[inline]
    pub(in super::super) fn of(&self, piece: u32) -> Option<HeaderSlot> {
        let (row, index) = self.0.place(piece);
        let base = self.0.base(row)?;
        // SAFETY: in bounds: a row begins with a header for each of its pieces.
        let place = unsafe { base.add(index as usize * HeaderSlot::BYTES) };
        // SAFETY: a row begins at a multiple of the slot's alignment, and headers are multiples
        // of it; the slot is this piece's alone, which is one block's at a time.
        Some(unsafe { HeaderSlot::new(place) })
    }
}
