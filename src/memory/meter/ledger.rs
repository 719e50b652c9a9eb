//! The books of a [`Meter`](super::Meter): plain code, run under its lock.
//!
//! ```text
//!   account of a tag    taken     blocks, requested, capacity     only ever grow
//!                       returned  blocks, requested, capacity     only ever grow
//!                       what is out = taken - returned
//!                       peak      the most capacity that was out
//!   all tags            live, peak
//!   scopes              for each that is open, a row of peaks of its own
//! ```
//!
//! Two sums that only grow instead of one that goes up and down: so a scope is a copy
//! of the sums at its beginning, and its numbers are differences. The sums wrap; a
//! difference is right as long as it fits.

use super::stats::{MeterStats, ScopeStats, ScopeTagStats, TagStats};
use crate::memory::{Block, Tag};

pub(super) const TAGS: usize = Tag::ALL.len();

/// The row of peaks has one place for each tag, and this one for all together.
const ALL_TAGS: usize = TAGS;

/// Scopes that may be open at a time and still know their peak.
pub(super) const SCOPES: usize = 16;

/// What went one way.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    blocks: usize,
    requested: usize,
    capacity: usize,
}

impl Flow {
    fn add(&mut self, (requested, capacity): (usize, usize)) {
        self.blocks = self.blocks.wrapping_add(1);
        self.requested = self.requested.wrapping_add(requested);
        self.capacity = self.capacity.wrapping_add(capacity);
    }

    /// What came on top of an earlier state of the same flow (or: what of this flow
    /// did not go the other way).
    fn minus(&self, other: &Flow) -> Flow {
        Flow {
            blocks: self.blocks.wrapping_sub(other.blocks),
            requested: self.requested.wrapping_sub(other.requested),
            capacity: self.capacity.wrapping_sub(other.capacity),
        }
    }

    fn plus(&self, other: &Flow) -> Flow {
        Flow {
            blocks: self.blocks.wrapping_add(other.blocks),
            requested: self.requested.wrapping_add(other.requested),
            capacity: self.capacity.wrapping_add(other.capacity),
        }
    }
}

/// Both ways.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flows {
    taken: Flow,
    returned: Flow,
}

impl Flows {
    fn out(&self) -> Flow {
        self.taken.minus(&self.returned)
    }

    fn plus(&self, other: &Flows) -> Flows {
        Flows {
            taken: self.taken.plus(&other.taken),
            returned: self.returned.plus(&other.returned),
        }
    }

    fn all(tags: &[Flows; TAGS]) -> Flows {
        tags.iter()
            .fold(Flows::default(), |sum, flows| sum.plus(flows))
    }

    fn stats(&self, peak: usize) -> TagStats {
        let out = self.out();
        TagStats {
            allocations: out.blocks,
            requested_bytes: out.requested,
            live_bytes: out.capacity,
            waste_bytes: out.capacity.wrapping_sub(out.requested),
            peak_live_bytes: peak,
        }
    }
}

/// One for each open scope, and one for the meter itself.
type Peaks = [usize; TAGS + 1];

/// What a block weighs: all that is counted of it.
pub(super) type Weight = (Tag, (usize, usize));

#[inline]
pub(super) fn weight(block: &Block) -> Weight {
    (block.tag(), block.size())
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    flows: [Flows; TAGS],
    live: usize,
    peaks: Peaks,
    /// A bit for each row of `scopes` that is in use.
    open: u32,
    scopes: [Peaks; SCOPES],
}

impl Ledger {
    /// Counts a block that went out. Raises no peak.
    pub(super) fn take(&mut self, (tag, bytes): Weight) {
        self.flows[tag as usize].taken.add(bytes);
        self.live = self.live.wrapping_add(bytes.1);
    }

    /// Counts a block that is about to go back.
    pub(super) fn give_back(&mut self, (tag, bytes): Weight) {
        self.flows[tag as usize].returned.add(bytes);
        self.live = self.live.wrapping_sub(bytes.1);
    }

    /// Counts what a block that is out became longer. Raises no peak.
    pub(super) fn grow(&mut self, (tag, before): Weight, (_, after): Weight) {
        let taken = &mut self.flows[tag as usize].taken;
        taken.requested = taken.requested.wrapping_add(after.0 - before.0);
        taken.capacity = taken.capacity.wrapping_add(after.1 - before.1);
        self.live = self.live.wrapping_add(after.1 - before.1);
    }

    /// The bytes that are out, under `tag` and in all.
    pub(super) fn live(&self, tag: Tag) -> (usize, usize) {
        (self.flows[tag as usize].out().capacity, self.live)
    }

    /// The peaks of the bytes that are out, under `tag` and in all.
    pub(super) fn peaks(&self, tag: Tag) -> (usize, usize) {
        (self.peaks[tag as usize], self.peaks[ALL_TAGS])
    }

    pub(super) fn set_peaks(&mut self, tag: Tag, peaks: (usize, usize)) {
        (self.peaks[tag as usize], self.peaks[ALL_TAGS]) = peaks;
    }

    /// Raises the peaks to what is out now, where that is more.
    #[inline]
    pub(super) fn raise_peaks(&mut self, tag: Tag) {
        let live = self.live(tag);
        raise(&mut self.peaks, tag, live);
        if self.open != 0 {
            self.raise_scopes(tag, live);
        }
    }

    #[cold]
    fn raise_scopes(&mut self, tag: Tag, live: (usize, usize)) {
        for (row, peaks) in self.scopes.iter_mut().enumerate() {
            if self.open & (1 << row) != 0 {
                raise(peaks, tag, live);
            }
        }
    }

    /// What is out now, as a row of peaks that has seen nothing else.
    fn floor(&self) -> Peaks {
        let mut peaks = [self.live; TAGS + 1];
        for (peak, flows) in peaks.iter_mut().zip(&self.flows) {
            *peak = flows.out().capacity;
        }
        peaks
    }

    /// Forgets the peaks, and nothing else.
    pub(super) fn reset_peaks(&mut self) {
        self.peaks = self.floor();
    }

    pub(super) fn stats(&self) -> MeterStats {
        MeterStats {
            total: Flows::all(&self.flows).stats(self.peaks[ALL_TAGS]),
            tags: std::array::from_fn(|tag| self.flows[tag].stats(self.peaks[tag])),
        }
    }

    /// Opens a scope: the sums at its beginning, and its row of peaks if one is free.
    pub(super) fn open(&mut self) -> ([Flows; TAGS], Option<usize>) {
        let row = self.open.trailing_ones() as usize;
        let row = (row < SCOPES).then_some(row);
        if let Some(row) = row {
            self.open |= 1 << row;
            self.scopes[row] = self.floor();
        }
        (self.flows, row)
    }

    pub(super) fn close(&mut self, row: usize) {
        self.open &= !(1 << row);
    }

    /// The numbers since a scope was opened.
    pub(super) fn since(&self, start: &[Flows; TAGS], row: Option<usize>) -> ScopeStats {
        let peaks = row.map(|row| self.scopes[row]);
        let tag = |before: &Flows, now: &Flows, place: usize| {
            let taken = now.taken.minus(&before.taken);
            let returned = now.returned.minus(&before.returned);
            let (live_before, live) = (before.out().capacity, now.out().capacity);
            ScopeTagStats {
                allocations: taken.blocks,
                releases: returned.blocks,
                allocated_bytes: taken.requested,
                released_bytes: returned.requested,
                live_before_bytes: live_before,
                live_bytes: live,
                peak_live_bytes: peaks.map(|peaks| peaks[place]),
            }
        };
        ScopeStats {
            total: tag(&Flows::all(start), &Flows::all(&self.flows), ALL_TAGS),
            tags: std::array::from_fn(|place| tag(&start[place], &self.flows[place], place)),
        }
    }
}

#[inline]
fn raise(peaks: &mut Peaks, tag: Tag, (of_tag, of_all): (usize, usize)) {
    let peak = &mut peaks[tag as usize];
    *peak = (*peak).max(of_tag);
    peaks[ALL_TAGS] = peaks[ALL_TAGS].max(of_all);
}
