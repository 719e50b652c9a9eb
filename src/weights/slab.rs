//! Where the tensors go in the slab, and the work of filling it, piece by piece.
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
//! threads cannot have the same byte, and no list of pieces exists. A tensor
//! that is not cast is read straight into its place; small neighbours are read
//! together, and casts go, through a bounded scratch buffer.

use std::mem;
use std::ops::Range;

use super::convert::{Cast, Float};
use super::source::Source;
use super::{Checkpoint, WeightEntries, WeightEntry, WeightsError};
use crate::types::DType;

/// Every tensor starts at a multiple of this many bytes: a cache line, and the
/// widest vector register.
pub(super) const TENSOR_ALIGN: usize = 64;

/// Bytes of scratch in each thread: what is read before it is cast or spread.
pub(super) const SCRATCH_BYTES: usize = 1 << 20;

/// Bytes of a large tensor that are read at a time. Small enough for a
/// tensor to be shared by several threads, large enough to make a call cheap.
const DIRECT_BYTES: usize = 4 << 20;

/// Where one tensor goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// First byte in the slab.
    pub(super) offset: usize,
    /// Bytes in the slab.
    pub(super) nbytes: usize,
    /// Bytes in the file.
    source_bytes: usize,
    /// How its elements change on the way.
    pub(super) cast: Option<Cast>,
}

/// The places of all entries, and the bytes of the slab.
pub(super) fn lay_out(
    checkpoint: &Checkpoint,
    target: Option<Float>,
) -> Result<(Vec<Place>, usize), WeightsError> {
    let mut places = Vec::with_capacity(checkpoint.entries().len());
    let mut slab_bytes = 0_usize;
    for entry in checkpoint.entries() {
        let cast = target.and_then(|to| {
            let from = entry.dtype().host().and_then(Float::of)?;
            (from != to).then_some(Cast { from, to })
        });
        let place = usize::try_from(entry.nbytes())
            .ok()
            .and_then(|source_bytes| {
                let nbytes = match cast {
                    Some(cast) => cast.target_bytes(source_bytes)?,
                    None => source_bytes,
                };
                let offset = slab_bytes.checked_next_multiple_of(TENSOR_ALIGN)?;
                slab_bytes = offset.checked_add(nbytes)?;
                Some(Place {
                    offset,
                    nbytes,
                    source_bytes,
                    cast,
                })
            })
            .ok_or_else(|| WeightsError::TooLarge {
                path: checkpoint.path().into(),
                bytes: (slab_bytes as u64).saturating_add(entry.nbytes()),
            })?;
        places.push(place);
    }
    Ok((places, slab_bytes))
}

/// A piece of work: some bytes of one file, and the part of the slab they fill.
pub(super) struct Piece<'a> {
    /// Its number, in the order of the slab.
    pub(super) number: usize,
    /// Its first tensor, or the one that it is a part of.
    entry: WeightEntry<'a>,
    /// First byte in the file.
    offset: u64,
    /// Bytes in the file.
    pub(super) source_bytes: usize,
    target: &'a mut [u8],
    places: &'a [Place],
    how: How,
}

enum How {
    /// As it is, into its place.
    Direct,
    /// Through the scratch, converted.
    Cast(Cast),
    /// Several whole tensors through the scratch, each to its own place.
    Spread,
}

impl Piece<'_> {
    /// Which file it is of.
    pub(super) fn file(&self) -> usize {
        self.entry.file()
    }

    /// Reads it. `scratch` grows to [`SCRATCH_BYTES`] when it is first needed.
    pub(super) fn fill(self, source: &Source, scratch: &mut Scratch) -> Result<(), WeightsError> {
        let what = self.entry.name();
        if let How::Direct = self.how {
            return source.read_exact_at(self.target, self.offset, what);
        }
        let bytes = scratch.take(self.source_bytes, source)?;
        source.read_exact_at(bytes, self.offset, what)?;
        if let How::Cast(cast) = self.how {
            cast.convert(bytes, self.target);
            return Ok(());
        }
        let origin = self.places[0].offset;
        let mut rest = &*bytes;
        for place in self.places {
            let (from, behind) = rest.split_at(place.source_bytes);
            rest = behind;
            let to = &mut self.target[place.offset - origin..][..place.nbytes];
            match place.cast {
                Some(cast) => cast.convert(from, to),
                None => to.copy_from_slice(from),
            }
        }
        Ok(())
    }
}

/// The buffer that one thread reads into before it casts or spreads.
#[derive(Default)]
pub(super) struct Scratch(Vec<u8>);

impl Scratch {
    fn take(&mut self, bytes: usize, source: &Source) -> Result<&mut [u8], WeightsError> {
        debug_assert!(bytes <= SCRATCH_BYTES, "{bytes} bytes of scratch");
        if self.0.is_empty() {
            self.0 = source.buffer(SCRATCH_BYTES, "scratch")?;
        }
        Ok(&mut self.0[..bytes])
    }
}

/// Cuts the slab into pieces, front to back.
pub(super) struct Feed<'a> {
    entries: WeightEntries<'a>,
    places: &'a [Place],
    /// What has not been handed out.
    slab: &'a mut [u8],
    /// Where in the slab that begins.
    slab_at: usize,
    /// The entry that comes next.
    next: usize,
    /// How many of its bytes in the file have been handed out.
    done: usize,
    /// How many pieces have been handed out.
    pieces: usize,
}

impl<'a> Feed<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, places: &'a [Place], slab: &'a mut [u8]) -> Self {
        Self {
            entries: checkpoint.entries(),
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

    /// Part of the next entry, which is too large for one piece.
    fn part(&mut self, entry: WeightEntry<'a>) -> Piece<'a> {
        let (first, place) = (self.next, self.places[self.next]);
        let whole = place.source_bytes;
        let most = match place.cast {
            Some(_) => SCRATCH_BYTES,
            None => DIRECT_BYTES,
        };
        let source_bytes = most.min(whole - self.done);
        // Both are multiples of the widths: `most` is a power of two.
        let target_of = |bytes: usize| match place.cast {
            Some(cast) => bytes / cast.from.bytes() * cast.to.bytes(),
            None => bytes,
        };
        let begin = place.offset + target_of(self.done);
        let offset = entry.offset() + self.done as u64;
        let target = self.take(begin..begin + target_of(source_bytes));
        self.done += source_bytes;
        if self.done == whole {
            self.next += 1;
            self.done = 0;
        }
        let how = place.cast.map_or(How::Direct, How::Cast);
        self.piece(entry, first..first + 1, offset, source_bytes, target, how)
    }

    /// As many whole entries of one file as fit the scratch together. The ranges of
    /// a file leave no holes, so their bytes lie in one run.
    fn run(&mut self, entry: WeightEntry<'a>) -> Piece<'a> {
        let first = self.next;
        let mut source_bytes = 0;
        while let Some(next) = self.entries.get(self.next) {
            let bytes = self.places[self.next].source_bytes;
            if next.file() != entry.file() || bytes > SCRATCH_BYTES - source_bytes {
                break;
            }
            source_bytes += bytes;
            self.next += 1;
        }
        let last = self.places[self.next - 1];
        let target = self.take(self.places[first].offset..last.offset + last.nbytes);
        let how = match (self.next - first, self.places[first].cast) {
            (1, None) => How::Direct,
            (1, Some(cast)) => How::Cast(cast),
            _ => How::Spread,
        };
        let range = first..self.next;
        self.piece(entry, range, entry.offset(), source_bytes, target, how)
    }

    fn piece(
        &mut self,
        entry: WeightEntry<'a>,
        range: Range<usize>,
        offset: u64,
        source_bytes: usize,
        target: &'a mut [u8],
        how: How,
    ) -> Piece<'a> {
        let number = self.pieces;
        self.pieces += 1;
        Piece {
            number,
            entry,
            offset,
            source_bytes,
            target,
            places: &self.places[range],
            how,
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
        let entry = self.entries.get(self.next)?;
        if self.done > 0 || self.places[self.next].source_bytes > SCRATCH_BYTES {
            Some(self.part(entry))
        } else {
            Some(self.run(entry))
        }
    }
}

/// Is this a dtype that weights can be cast to?
pub(super) fn target(dtype: Option<DType>) -> Result<Option<Float>, WeightsError> {
    match dtype {
        None => Ok(None),
        Some(dtype) => Float::of(dtype)
            .map(Some)
            .ok_or(WeightsError::CastTarget { dtype }),
    }
}
