//! A picture of a pool's heap.

use std::fmt;

use serde::Serialize;

use super::heap::State;
use super::{CachingPool, PageSource};
use crate::memory::Allocator;

/// What the bytes of a [`MapSpan`] are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SpanKind {
    /// Somebody's.
    Used,
    /// Free, committed, and not touched since: zero.
    Clean,
    /// Free, in memory, with what the last owner left.
    Dirty,
    /// Free, and not committed: never, or no more.
    Absent,
}

impl SpanKind {
    /// Every kind.
    pub const ALL: [SpanKind; 4] = [
        SpanKind::Used,
        SpanKind::Clean,
        SpanKind::Dirty,
        SpanKind::Absent,
    ];

    /// What stands for it in a picture.
    #[must_use]
    pub const fn glyph(self) -> char {
        match self {
            SpanKind::Used => '█',
            SpanKind::Clean => '░',
            SpanKind::Dirty => '▒',
            SpanKind::Absent => '·',
        }
    }

    /// Its name: one word in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SpanKind::Used => "used",
            SpanKind::Clean => "clean",
            SpanKind::Dirty => "dirty",
            SpanKind::Absent => "absent",
        }
    }
}

/// What stands for bytes of which fewer are used than are something else.
const PARTLY_USED: char = '▄';

/// Neighbouring bytes of a heap that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MapSpan {
    /// Where it begins, from the start of the reservation.
    pub offset_bytes: usize,
    /// How long it is.
    pub bytes: usize,
    /// What it is.
    pub kind: SpanKind,
}

/// Who has what of a pool's heap, from its first byte to the last that was ever used.
///
/// `Display` draws it: each mark stands for as many bytes and shows what most of them are, and
/// where that is nothing used, whether something is. In front of a line stands where it begins,
/// behind the last one where the map ends, and two lines say what the marks mean. `{:100}`
/// makes lines of 100 marks, `{:.4}` at most 4 of them (64 and 16 without); in front of the
/// marks are 16 columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PoolMap {
    /// The spans, in order. Two used blocks side by side are two.
    pub spans: Vec<MapSpan>,
    /// Bytes of small sizes, which are not in the heap: out, and idle in memory.
    pub small_live_bytes: usize,
    /// See `small_live_bytes`.
    pub small_cached_bytes: usize,
}

impl<P: PageSource> CachingPool<P> {
    /// A picture of the heap at this moment. Caches are [emptied](CachingPool::flush) first, so
    /// that what is in them shows as free.
    ///
    /// Cost: a vector of 24 bytes for each block and free stretch, made outside the pool's lock;
    /// under it, a look at each.
    #[must_use]
    pub fn map(&self) -> PoolMap {
        let core = self.core();
        core.empty_caches();
        let mut spans = Vec::new();
        loop {
            let wanted = core.books().heap.records().1 as usize;
            spans.reserve(wanted + wanted / 8);
            let books = core.books();
            if books.heap.records().1 as usize > spans.capacity() {
                continue;
            }
            let all = books.heap.walk().map(|(pages, state)| MapSpan {
                offset_bytes: core.bytes(pages.start),
                bytes: core.bytes(pages.end - pages.start),
                kind: match state {
                    State::Used => SpanKind::Used,
                    State::Fresh => SpanKind::Clean,
                    State::Dirty => SpanKind::Dirty,
                    State::Gone | State::Virgin => SpanKind::Absent,
                },
            });
            spans.extend(all);
            break;
        }
        while spans
            .last()
            .is_some_and(|span| span.kind == SpanKind::Absent)
        {
            spans.pop();
        }
        let (mut live, mut cached) = (0, 0);
        for slab in core.slabs.iter() {
            let stats = slab.stats();
            live += stats.live_bytes;
            cached += stats.cached_bytes;
        }
        PoolMap {
            spans,
            small_live_bytes: live,
            small_cached_bytes: cached,
        }
    }
}

impl PoolMap {
    /// From the first byte to the end of the last span.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let last = self.spans.last();
        last.map_or(0, |span| span.offset_bytes + span.bytes)
    }

    /// Bytes of a kind in [`bytes`](Self::bytes).
    #[must_use]
    pub fn bytes_of(&self, kind: SpanKind) -> usize {
        let of_kind = self.spans.iter().filter(|span| span.kind == kind);
        of_kind.map(|span| span.bytes).sum()
    }

    /// What stands for each of `cells` equal parts.
    fn cells(&self, cells: usize, cell_bytes: usize) -> Vec<char> {
        let mut sums = vec![[0_usize; SpanKind::ALL.len()]; cells];
        for span in &self.spans {
            let (mut at, end) = (span.offset_bytes, span.offset_bytes + span.bytes);
            while at < end {
                let cell = at / cell_bytes;
                let until = end.min((cell + 1) * cell_bytes);
                sums[cell][span.kind as usize] += until - at;
                at = until;
            }
        }
        let glyph = |sum: &[usize; SpanKind::ALL.len()]| {
            let most = SpanKind::ALL
                .into_iter()
                .max_by_key(|&kind| sum[kind as usize]);
            match most.unwrap_or(SpanKind::Absent) {
                SpanKind::Used => SpanKind::Used.glyph(),
                _ if sum[SpanKind::Used as usize] > 0 => PARTLY_USED,
                kind => kind.glyph(),
            }
        };
        sums.iter().map(glyph).collect()
    }
}

/// Sizes in one unit, that of the largest: numbers below each other compare.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    log2: u32,
    digits: usize,
}

impl Unit {
    fn of(most_bytes: usize) -> Self {
        let (name, log2, digits) = match most_bytes >> 30 {
            ..16 => ("MiB", 20, 1),
            16..16_384 => ("GiB", 30, 2),
            _ => ("TiB", 40, 3),
        };
        Self { name, log2, digits }
    }

    fn number(self, bytes: usize) -> String {
        let value = bytes as f64 / (1_u64 << self.log2) as f64;
        format!("{value:.*}", self.digits)
    }

    /// With the unit.
    fn size(self, bytes: usize) -> String {
        format!("{} {}", self.number(bytes), self.name)
    }
}

/// How many bytes a mark stands for: a multiple of 64 KiB, so it is exact in three digits.
fn mark_size(bytes: usize) -> String {
    match bytes {
        ..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

impl fmt::Display for PoolMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Nothing finer is drawn.
        const LEAST_CELL: usize = 64 << 10;
        let width = f.width().unwrap_or(64).max(8);
        let lines = f.precision().unwrap_or(16).max(1);
        let bytes = self.bytes();
        let unit = Unit::of(bytes);
        let cell_bytes = bytes.div_ceil(width * lines).max(LEAST_CELL);
        let cell_bytes = cell_bytes.next_multiple_of(LEAST_CELL);
        let cells = self.cells(bytes.div_ceil(cell_bytes), cell_bytes);
        let last = cells.len().div_ceil(width).saturating_sub(1);
        for (line, glyphs) in cells.chunks(width).enumerate() {
            let offset = unit.number(line * width * cell_bytes);
            write!(f, "{offset:>10} {}  ", unit.name)?;
            for glyph in glyphs {
                write!(f, "{glyph}")?;
            }
            // Where the line is full there may be no room for it; the legend adds up to it.
            let end = format!(" {}", unit.size(bytes));
            if line == last && glyphs.len() + end.len() <= width {
                write!(f, "{end}")?;
            }
            writeln!(f)?;
        }
        for (place, kind) in SpanKind::ALL.into_iter().enumerate() {
            let size = unit.size(self.bytes_of(kind));
            let gap = if place == 0 { "" } else { "  " };
            write!(f, "{gap}{} {} {size}", kind.glyph(), kind.name())?;
        }
        writeln!(f)?;
        let small = Unit::of(self.small_live_bytes + self.small_cached_bytes);
        write!(
            f,
            "{PARTLY_USED} partly used; a mark is {}; small sizes: {} used, {} free",
            mark_size(cell_bytes),
            small.size(self.small_live_bytes),
            small.size(self.small_cached_bytes),
        )
    }
}
