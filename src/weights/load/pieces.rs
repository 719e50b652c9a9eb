//! The work of filling the slab, piece by piece.
//!
//! ```text
//!  file   | header | a            | b | c | d                          |
//!                    |              \____/    |       |       |
//!                    1 piece        1 piece   pieces of one large tensor
//!  slab   | a            |pad| b |pad| c |pad| d                          |
//!         ^ 64           ^ 64    ^ 64    ^ 64: every tensor starts a cache line
//! ```
//!
//! [`Feed`] cuts pieces off the front of the slab and hands each to whichever
//! thread asks next. A piece owns its part of the slab as a `&mut` slice, so two
//! threads cannot have the same byte, and no list of pieces exists.

use std::mem;
use std::ops::Range;

use super::cast::SCRATCH_BYTES;
use super::plan::Place;
use crate::weights::{WeightEntries, WeightEntry};

/// Bytes that are read at a time. Small enough for a tensor to be shared by several threads,
/// and for what was read to be in the cache still when it is looked at; large enough to make
/// a call cheap.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Bytes of a file that the rows of one piece may be spread over.
const SPREAD_BYTES: usize = 16 << 20;

/// Tensors that are read together at most: the vectors of one call, of which Linux takes 1,024.
const MOST_NEIGHBOURS: usize = 256;

/// A piece of work: some bytes of one file, and the part of the slab they fill.
pub(super) struct Piece<'a> {
    /// Its number, in the order of the slab.
    pub(super) number: usize,
    /// Its first tensor, or the one that it is a part of.
    pub(super) entry: WeightEntry<'a>,
    /// The number of that one's place.
    pub(super) first: usize,
    /// The places of its tensors: one, or several whole ones.
    pub(super) places: &'a [Place],
    /// Bytes of the first tensor in the slab that are in pieces before this one.
    pub(super) done_bytes: usize,
    /// First byte in the file.
    pub(super) offset: u64,
    /// Bytes that are wanted of the file.
    pub(super) source_bytes: usize,
    pub(super) target: &'a mut [u8],
    pub(super) extent: Extent,
}

/// How its bytes lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// One run of one tensor.
    Run,
    /// Several runs of one tensor, a stride apart.
    Rows {
        /// How many.
        rows: usize,
    },
    /// Several whole tensors without a gap, either all cast or none.
    Neighbours,
}

/// Cuts the slab into pieces, front to back.
pub(super) struct Feed<'a> {
    entries: WeightEntries<'a>,
    places: &'a [Place],
    /// What has not been handed out.
    slab: &'a mut [u8],
    /// Where in the slab that begins.
    slab_at: usize,
    /// The place that comes next.
    next: usize,
    /// How many of its bytes in the file have been handed out.
    done: usize,
    /// How many pieces have been handed out.
    pieces: usize,
}

impl<'a> Feed<'a> {
    /// `entries` are those of the checkpoint, which the places count.
    pub(super) fn new(entries: WeightEntries<'a>, places: &'a [Place], slab: &'a mut [u8]) -> Self {
        Self {
            entries,
            places,
            slab,
            slab_at: 0,
            next: 0,
            done: 0,
            pieces: 0,
        }
    }

    /// The slab's bytes `range`, which lie behind all that was taken before.
    fn take(&mut self, range: Range<usize>) -> &'a mut [u8] {
        let rest = mem::take(&mut self.slab);
        let (_padding, rest) = rest.split_at_mut(range.start - self.slab_at);
        let (piece, rest) = rest.split_at_mut(range.len());
        self.slab = rest;
        self.slab_at = range.end;
        piece
    }

    /// Part of the next tensor: as much of a run as is read at a time, or several runs.
    fn part(&mut self, entry: WeightEntry<'a>) -> Piece<'a> {
        let (first, place) = (self.next, &self.places[self.next]);
        let run = place.run();
        let (row, within) = (self.done / run, self.done % run);
        let stride = place.part.as_ref().map_or(0, |part| part.stride);
        let rows = (place.source_bytes - self.done) / run;
        let (source_bytes, extent) = if rows < 2 || run > PIECE_BYTES {
            // A power of two at most, so a multiple of the widths.
            (PIECE_BYTES.min(run - within), Extent::Run)
        } else {
            let most = (PIECE_BYTES / run).min(SPREAD_BYTES / stride).max(1);
            let rows = rows.min(most);
            (run * rows, Extent::Rows { rows })
        };
        // Within the tensor, whose end is within the file.
        let offset = place.first_byte(entry) + (row * stride) as u64 + within as u64;
        let done_bytes = place.target_bytes(self.done);
        let begin = place.offset + done_bytes;
        let target = self.take(begin..begin + place.target_bytes(source_bytes));
        self.done += source_bytes;
        if self.done == place.source_bytes {
            self.next += 1;
            self.done = 0;
        }
        self.pieces += 1;
        Piece {
            number: self.pieces,
            entry,
            first,
            places: &self.places[first..=first],
            done_bytes,
            offset,
            source_bytes,
            target,
            extent,
        }
    }

    /// The next tensor and those that follow it in the file without a gap, as many as are
    /// read at a time: cast ones through the scratch, others to their places.
    fn neighbours(&mut self, entry: WeightEntry<'a>, most: usize) -> Piece<'a> {
        let (first, place) = (self.next, &self.places[self.next]);
        let offset = place.first_byte(entry);
        let cast = place.cast.is_some();
        let mut source_bytes = 0;
        while let Some(place) = self.places.get(self.next) {
            let Some(next) = self.entries.get(place.entry()) else {
                break;
            };
            let follows = next.file() == entry.file()
                && place.first_byte(next) == offset + source_bytes as u64
                && place.run() == place.source_bytes
                && place.cast.is_some() == cast
                && place.source_bytes <= most - source_bytes
                && self.next - first < MOST_NEIGHBOURS;
            if !follows {
                break;
            }
            source_bytes += place.source_bytes;
            self.next += 1;
        }
        let last = &self.places[self.next - 1];
        let target = self.take(self.places[first].offset..last.offset + last.nbytes);
        self.pieces += 1;
        Piece {
            number: self.pieces,
            entry,
            first,
            places: &self.places[first..self.next],
            done_bytes: 0,
            offset,
            source_bytes,
            target,
            extent: match self.next - first {
                1 => Extent::Run,
                _ => Extent::Neighbours,
            },
        }
    }
}

impl<'a> Iterator for Feed<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        // Empty tensors have a place and no bytes.
        while self.places.get(self.next)?.source_bytes == 0 {
            self.next += 1;
        }
        let place = &self.places[self.next];
        let entry = self.entries.get(place.entry())?;
        let most = match place.cast {
            Some(_) => SCRATCH_BYTES,
            None => PIECE_BYTES,
        };
        let whole = self.done == 0 && place.run() == place.source_bytes;
        if whole && place.source_bytes <= most {
            Some(self.neighbours(entry, most))
        } else {
            Some(self.part(entry))
        }
    }
}
