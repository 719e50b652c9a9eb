//! How others cut up memory, as models that have addresses and nothing behind them.
//!
//! ```text
//!   segment   | out | free      | out |      a request takes the smallest free range that
//!             0     4           10    12     the rule allows, and the rule says how much of
//!                                            it; what comes back joins its neighbours
//! ```
//!
//! No rule ever gives a segment back, so [`Addresses::reserved_bytes`] is "reserved without
//! trimming". Each approximates what the other project does, as `sim.py` does.

use std::collections::{BTreeMap, BTreeSet};

const MIB: usize = 1 << 20;

/// Segments lie this far apart, so that no two of them join.
const APART: usize = 1 << 40;

/// How segments grow and are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// PyTorch's caching allocator for devices: segments of 2 MiB for what is at most 1 MiB,
    /// of 20 MiB below 10 MiB, of whole 2 MiB above; what is left over is cut off where it is
    /// at least 512 bytes in small segments, or more than 1 MiB in large ones.
    PyTorch,
    /// TensorFlow's and ONNX Runtime's best fit with coalescing: each segment is twice the
    /// one before, and a range is cut where it is twice what was asked for or more.
    Bfc,
    /// Best fit in one reservation that grows by whole 2 MiB at its end, cut to 4 KiB: what
    /// our pool does, before it trims.
    Growing,
}

impl Rule {
    pub(crate) const ALL: [Self; 3] = [Self::PyTorch, Self::Bfc, Self::Growing];

    /// For tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PyTorch => "PyTorch's rule",
            Self::Bfc => "BFC's rule",
            Self::Growing => "best fit, growing",
        }
    }

    fn rounded(self, bytes: usize) -> usize {
        let grain = match self {
            Self::PyTorch => 512,
            Self::Bfc => 256,
            Self::Growing => 4096,
        };
        bytes.max(1).next_multiple_of(grain)
    }

    /// Is what is left of a free range cut off?
    fn cuts(self, range: usize, bytes: usize) -> bool {
        let rest = range - bytes;
        match self {
            Self::PyTorch if is_small(bytes) => rest >= 512,
            Self::PyTorch => rest > MIB,
            Self::Bfc => range >= 2 * bytes || rest >= 128 * MIB,
            Self::Growing => rest > 0,
        }
    }
}

/// PyTorch keeps segments for small requests apart from those for large ones.
fn is_small(bytes: usize) -> bool {
    bytes <= MIB
}

/// A range of addresses, free or out.
#[derive(Clone, Copy, Debug)]
struct Range {
    bytes: usize,
    is_free: bool,
    /// In a segment for small requests.
    is_small: bool,
}

/// Addresses under a rule.
#[derive(Debug)]
pub(crate) struct Addresses {
    rule: Rule,
    ranges: BTreeMap<usize, Range>,
    /// Of the free ones: whether for small requests, bytes, address.
    free: BTreeSet<(bool, usize, usize)>,
    /// One past the last segment.
    end: usize,
    /// The next segment under [`Rule::Bfc`].
    segment_bytes: usize,
    reserved_bytes: usize,
}

impl Addresses {
    pub(crate) fn new(rule: Rule) -> Self {
        Self {
            rule,
            ranges: BTreeMap::new(),
            free: BTreeSet::new(),
            end: 0,
            segment_bytes: 2 * MIB,
            reserved_bytes: 0,
        }
    }

    /// All segments so far.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Where a block of so many bytes lies.
    pub(crate) fn take(&mut self, bytes: usize) -> usize {
        let bytes = self.rule.rounded(bytes);
        let found = self.find(bytes);
        let (address, range) = found.unwrap_or_else(|| {
            self.extend(bytes);
            self.find(bytes).expect("a segment for it was added")
        });
        self.remove_free(address, range);
        let mut taken = Range {
            is_free: false,
            ..range
        };
        if self.rule.cuts(range.bytes, bytes) {
            taken.bytes = bytes;
            self.add_free(address + bytes, range.bytes - bytes, range.is_small);
        }
        self.ranges.insert(address, taken);
        address
    }

    /// Takes back what [`take`](Self::take) gave out.
    pub(crate) fn give_back(&mut self, address: usize) {
        let out = self.ranges.remove(&address).expect("a block that is out");
        assert!(!out.is_free, "{address} is given back twice");
        let (mut start, mut bytes) = (address, out.bytes);
        if let Some(&next) = self
            .ranges
            .get(&(start + bytes))
            .filter(|next| next.is_free)
        {
            self.remove_free(start + bytes, next);
            bytes += next.bytes;
        }
        if let Some((&before, &range)) = self.ranges.range(..start).next_back()
            && range.is_free
            && before + range.bytes == start
        {
            self.remove_free(before, range);
            start = before;
            bytes += range.bytes;
        }
        self.add_free(start, bytes, out.is_small);
    }

    /// The smallest free range that will do, the lowest of several.
    fn find(&self, bytes: usize) -> Option<(usize, Range)> {
        let is_small = self.is_for_small(bytes);
        let from = (is_small, bytes, 0);
        let &(found, _, address) = self.free.range(from..).next()?;
        (found == is_small).then(|| (address, self.ranges[&address]))
    }

    fn is_for_small(&self, bytes: usize) -> bool {
        self.rule == Rule::PyTorch && is_small(bytes)
    }

    fn extend(&mut self, bytes: usize) {
        let (start, grown) = match self.rule {
            Rule::PyTorch => {
                let segment = match bytes {
                    _ if is_small(bytes) => 2 * MIB,
                    _ if bytes < 10 * MIB => 20 * MIB,
                    _ => bytes.next_multiple_of(2 * MIB),
                };
                (self.end + APART, segment)
            }
            Rule::Bfc => {
                while self.segment_bytes < bytes {
                    self.segment_bytes *= 2;
                }
                let segment = self.segment_bytes;
                self.segment_bytes = (2 * segment).min(1024 * MIB);
                (self.end + APART, segment)
            }
            Rule::Growing => (self.end, self.growth(bytes)),
        };
        self.end = start + grown;
        self.reserved_bytes += grown;
        let (mut start, mut free) = (start, grown);
        if self.rule == Rule::Growing
            && let Some((&last, &range)) = self.ranges.last_key_value()
            && range.is_free
        {
            self.remove_free(last, range);
            start = last;
            free += range.bytes;
        }
        self.add_free(start, free, self.is_for_small(bytes));
    }

    /// What a reservation grows by: its free end counts.
    fn growth(&self, bytes: usize) -> usize {
        let last = self.ranges.last_key_value();
        let at_the_end = last.map_or(0, |(_, range)| if range.is_free { range.bytes } else { 0 });
        (bytes - at_the_end).next_multiple_of(2 * MIB)
    }

    fn add_free(&mut self, address: usize, bytes: usize, is_small: bool) {
        let range = Range {
            bytes,
            is_free: true,
            is_small,
        };
        self.ranges.insert(address, range);
        self.free.insert((is_small, bytes, address));
    }

    fn remove_free(&mut self, address: usize, range: Range) {
        self.ranges.remove(&address);
        let was_free = self.free.remove(&(range.is_small, range.bytes, address));
        assert!(was_free, "{address} was not free");
    }
}
