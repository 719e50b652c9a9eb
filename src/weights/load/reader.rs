//! [`Reader`]: what one thread needs to fill pieces, and how it does it.
//!
//! ```text
//!   as it is      file ──read──▶ place
//!   neighbours    file ──one vectored read──▶ place, place, place
//!   cast          file ──▶ scratch, in the cache ──convert──▶ place
//!   rows          gap ≤ 4 KiB: many rows ──one read──▶ scratch ──▶ place
//!                 else: each row as one of the first two
//! ```
//!
//! The scratch is small enough to stay in the second-level cache, so a cast costs the memory
//! bus no more than the bytes that it reads and those that it writes.

use std::io::IoSliceMut;

use super::cast::{SCRATCH_BYTES, Scratch};
use super::check;
use super::options::NonFinite;
use super::pieces::{Extent, Piece};
use super::plan::Place;
use crate::weights::source::Source;
use crate::weights::{Checkpoint, WeightsError};

/// Gaps between rows up to here are read along: the page cache hands out these bytes in less
/// time than another call takes, and a disk reads whole pages anyway.
const GAP_BYTES: usize = 4 << 10;

/// What was asked of the files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reads {
    pub(super) calls: u64,
    pub(super) bytes: u64,
}

impl Reads {
    pub(super) fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.bytes += other.bytes;
    }

    fn read(
        &mut self,
        source: &Source,
        bytes: &mut [u8],
        offset: u64,
        name: &str,
    ) -> Result<(), WeightsError> {
        self.calls += source.read_exact_at(bytes, offset, name)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Values of one tensor that are no finite numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// The number of its place.
    pub(super) place: usize,
    pub(super) count: u64,
    /// The number of the first of them.
    pub(super) first: usize,
}

/// What one thread keeps between pieces. Pieces come in the order of the files,
/// so it has one of them open at a time.
pub(super) struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    non_finite: NonFinite,
    open: Option<(usize, Source)>,
    scratch: Scratch,
    /// The number of the latest piece.
    pub(super) last: usize,
    pub(super) reads: Reads,
    pub(super) found: Vec<Found>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, non_finite: NonFinite) -> Self {
        Self {
            checkpoint,
            non_finite,
            open: None,
            scratch: Scratch::default(),
            last: 0,
            reads: Reads::default(),
            found: Vec::new(),
        }
    }

    /// Reads one piece, and looks at it if that was asked for.
    pub(super) fn read(&mut self, mut piece: Piece<'_>) -> Result<(), WeightsError> {
        let wanted = piece.entry.file();
        self.last = piece.number;
        let source = match self.open.take() {
            Some((file, source)) if file == wanted => source,
            other => {
                self.open = other;
                self.close()?;
                let file = &self.checkpoint.files()[wanted];
                Source::reopen(file.path(), &file.identity)?
            }
        };
        let (_, source) = self.open.insert((wanted, source));
        let mut filling = Filling {
            source,
            scratch: &mut self.scratch,
            reads: &mut self.reads,
        };
        if let Err(mut error) = filling.fill(&mut piece) {
            if let WeightsError::ShortRead { tensor, at, .. } = &mut error
                && let Some(name) = self.at(&piece, *at)
            {
                *tensor = name;
            }
            return Err(error);
        }
        if self.non_finite != NonFinite::Ignore {
            self.look(&piece);
        }
        Ok(())
    }

    /// Closes the open file, if it is still what it was.
    pub(super) fn close(&mut self) -> Result<(), WeightsError> {
        match self.open.take() {
            Some((_, source)) => source.recheck(),
            None => Ok(()),
        }
    }

    /// Whose byte of the file that is.
    fn at(&self, piece: &Piece<'_>, at: u64) -> Option<String> {
        let entries = self.checkpoint.entries();
        let mut entries = piece.places.iter().filter_map(|p| entries.get(p.entry()));
        let found = entries.find(|entry| at < entry.offset() + entry.nbytes())?;
        Some(found.name().into())
    }

    /// Counts what is no finite number.
    fn look(&mut self, piece: &Piece<'_>) {
        let entries = self.checkpoint.entries();
        let origin = piece.places[0].offset + piece.done_bytes;
        for (number, place) in (piece.first..).zip(piece.places) {
            let Some(dtype) = entries
                .get(place.entry())
                .and_then(|entry| place.dtype(entry))
            else {
                continue;
            };
            // A piece of one tensor ends somewhere within it, one of several at an end.
            let begin = place.offset.max(origin) - origin;
            let end = (place.offset + place.nbytes - origin).min(piece.target.len());
            let Some((count, first)) = check::non_finite(dtype, &piece.target[begin..end]) else {
                continue;
            };
            let before = (origin + begin - place.offset) / dtype.bytes();
            self.found.push(Found {
                place: number,
                count,
                first: before + first,
            });
        }
    }
}

/// What filling one piece takes.
struct Filling<'a> {
    source: &'a Source,
    scratch: &'a mut Scratch,
    reads: &'a mut Reads,
}

impl Filling<'_> {
    fn fill(&mut self, piece: &mut Piece<'_>) -> Result<(), WeightsError> {
        let name = piece.entry.name();
        let place = &piece.places[0];
        match piece.extent {
            Extent::Run => self.run(place, piece.offset, piece.target, name),
            Extent::Rows { rows } => self.rows(place, piece.offset, rows, piece.target, name),
            Extent::Neighbours if place.cast.is_some() => self.cast_neighbours(piece),
            Extent::Neighbours => self.neighbours(piece),
        }
    }

    /// One run of the file.
    fn run(
        &mut self,
        place: &Place,
        offset: u64,
        target: &mut [u8],
        name: &str,
    ) -> Result<(), WeightsError> {
        let Some(cast) = place.cast else {
            return self.reads.read(self.source, target, offset, name);
        };
        let elements = SCRATCH_BYTES / cast.from.bytes();
        let mut at = offset;
        for target in target.chunks_mut(elements * cast.to.bytes()) {
            let bytes = target.len() / cast.to.bytes() * cast.from.bytes();
            let read = self.scratch.take(bytes, self.source)?;
            self.reads.read(self.source, read, at, name)?;
            cast.convert(read, target, place.nbytes);
            at += bytes as u64;
        }
        Ok(())
    }

    /// Runs of the file that are a stride apart.
    fn rows(
        &mut self,
        place: &Place,
        offset: u64,
        rows: usize,
        target: &mut [u8],
        name: &str,
    ) -> Result<(), WeightsError> {
        let Some(part) = &place.part else {
            return self.run(place, offset, target, name);
        };
        let (run, stride) = (part.run, part.stride);
        let row_bytes = place.target_bytes(run);
        // How many fit the scratch, with the gaps between them and none behind the last.
        let together = (SCRATCH_BYTES.saturating_sub(run) / stride + 1).min(rows);
        if stride - run > GAP_BYTES || run > SCRATCH_BYTES || together < 2 {
            for (row, target) in target.chunks_mut(row_bytes).enumerate() {
                self.run(place, offset + (row * stride) as u64, target, name)?;
            }
            return Ok(());
        }
        let mut at = offset;
        for target in target.chunks_mut(row_bytes * together) {
            let rows = target.len() / row_bytes;
            let read = self.scratch.take((rows - 1) * stride + run, self.source)?;
            self.reads.read(self.source, read, at, name)?;
            for (from, to) in read.chunks(stride).zip(target.chunks_mut(row_bytes)) {
                match place.cast {
                    Some(cast) => cast.convert(&from[..run], to, place.nbytes),
                    None => to.copy_from_slice(&from[..run]),
                }
            }
            at += (rows * stride) as u64;
        }
        Ok(())
    }

    /// Several tensors, each to its own place. The padding between them is not touched.
    fn neighbours(&mut self, piece: &mut Piece<'_>) -> Result<(), WeightsError> {
        let mut slices = Vec::with_capacity(piece.places.len());
        let (mut rest, mut at) = (&mut *piece.target, piece.places[0].offset);
        for place in piece.places {
            let (_padding, behind) = rest.split_at_mut(place.offset - at);
            let (bytes, behind) = behind.split_at_mut(place.nbytes);
            slices.push(IoSliceMut::new(bytes));
            (rest, at) = (behind, place.offset + place.nbytes);
        }
        let name = piece.entry.name();
        self.reads.bytes += piece.source_bytes as u64;
        self.reads.calls += self
            .source
            .read_exact_vectored_at(&mut slices, piece.offset, name)?;
        Ok(())
    }

    /// Several tensors through the scratch, each converted to its own place.
    fn cast_neighbours(&mut self, piece: &mut Piece<'_>) -> Result<(), WeightsError> {
        let read = self.scratch.take(piece.source_bytes, self.source)?;
        self.reads
            .read(self.source, read, piece.offset, piece.entry.name())?;
        let origin = piece.places[0].offset;
        let mut rest = &*read;
        for place in piece.places {
            let (from, behind) = rest.split_at(place.source_bytes);
            rest = behind;
            let to = &mut piece.target[place.offset - origin..][..place.nbytes];
            match place.cast {
                Some(cast) => cast.convert(from, to, place.nbytes),
                None => to.copy_from_slice(from),
            }
        }
        Ok(())
    }
}
