use std::fmt;
use std::ops::Index;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::ledger::TAGS;
use crate::memory::{ProcessMemory, Stats, Tag};

/// What is out under one tag, or in all.
///
/// `requested_bytes + waste_bytes == live_bytes`, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct TagStats {
    /// Allocations that are out, those of zero bytes included.
    pub allocations: usize,
    /// Bytes asked for by them.
    pub requested_bytes: usize,
    /// Bytes of the allocator that they take up.
    pub live_bytes: usize,
    /// Bytes taken up that nobody asked for: what rounding costs.
    pub waste_bytes: usize,
    /// The most that `live_bytes` has been, since the start or the last
    /// [`reset_peaks`](super::Meter::reset_peaks).
    pub peak_live_bytes: usize,
}

/// A [`Meter`](super::Meter)'s numbers, of one moment. Index them by [`Tag`].
///
/// All but the peaks of the tags add up to those of `total`. (Tags may peak at
/// different times, so the peak of all is at most the sum of theirs.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct MeterStats {
    /// All tags together.
    pub total: TagStats,
    #[serde(serialize_with = "by_tag")]
    pub(super) tags: [TagStats; TAGS],
}

impl Index<Tag> for MeterStats {
    type Output = TagStats;

    fn index(&self, tag: Tag) -> &TagStats {
        &self.tags[tag as usize]
    }
}

/// What happened under one tag, or in all, since a [`Scope`](super::Scope) was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct ScopeTagStats {
    /// Allocations made in the scope, whether or not they are out still.
    pub allocations: usize,
    /// Allocations that came back in the scope, whenever they were made.
    pub releases: usize,
    /// Bytes asked for by the allocations that were made.
    pub allocated_bytes: usize,
    /// Bytes that had been asked for by those that came back.
    pub released_bytes: usize,
    /// Bytes of the allocator that were taken up when the scope was opened.
    pub live_before_bytes: usize,
    /// Bytes of the allocator that are taken up now.
    pub live_bytes: usize,
    /// The most that was taken up at one time in the scope; at least
    /// `live_before_bytes`. `None` where too many scopes were open at a time
    /// ([`Meter::scope`](super::Meter::scope)).
    pub peak_live_bytes: Option<usize>,
}

impl ScopeTagStats {
    /// How much more was taken up at the scope's peak than at its beginning: what a
    /// repetition of it would need.
    #[must_use]
    pub fn peak_growth_bytes(&self) -> Option<usize> {
        Some(self.peak_live_bytes? - self.live_before_bytes)
    }
}

/// The numbers of a [`Scope`](super::Scope). Index them by [`Tag`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct ScopeStats {
    /// All tags together.
    pub total: ScopeTagStats,
    #[serde(serialize_with = "by_tag")]
    pub(super) tags: [ScopeTagStats; TAGS],
}

impl Index<Tag> for ScopeStats {
    type Output = ScopeTagStats;

    fn index(&self, tag: Tag) -> &ScopeTagStats {
        &self.tags[tag as usize]
    }
}

/// An object with a field for each tag.
fn by_tag<T: Serialize, S: Serializer>(tags: &[T; TAGS], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(TAGS))?;
    for (tag, stats) in Tag::ALL.iter().zip(tags) {
        map.serialize_entry(tag.name(), stats)?;
    }
    map.end()
}

/// Everything at one glance: what was counted, what the allocator below says it holds,
/// and what the kernel says the process has. For logs (`Display` is a small table) and
/// for programs (`Serialize`).
///
/// The three are taken one after the other; they are of one moment when no call is
/// under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MeterReport {
    /// What went through the meter.
    pub counted: MeterStats,
    /// What the allocator below holds. All zero where it does not count.
    pub upstream: Stats,
    /// What the kernel says. `None` where it cannot be asked.
    pub process: Option<ProcessMemory>,
}

/// A size as people read it.
struct Mib(usize);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Enough of a float for two digits behind the point.
        let mib = self.0 as f64 / f64::from(1 << 20);
        let width = f.width().unwrap_or(0).saturating_sub(4);
        write!(f, "{mib:width$.2} MiB")
    }
}

impl fmt::Display for MeterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [tag, blocks, requested, live, waste, peak] =
            ["tag", "blocks", "requested", "live", "waste", "peak"];
        writeln!(
            f,
            "{tag:<12}{blocks:>9}{requested:>14}{live:>14}{waste:>14}{peak:>14}"
        )?;
        let used = Tag::ALL
            .into_iter()
            .filter(|&tag| self.counted[tag] != TagStats::default());
        let rows = used.map(|tag| (tag.name(), &self.counted[tag]));
        for (name, row) in rows.chain([("total", &self.counted.total)]) {
            writeln!(
                f,
                "{name:<12}{:>9}{:>14}{:>14}{:>14}{:>14}",
                row.allocations,
                Mib(row.requested_bytes),
                Mib(row.live_bytes),
                Mib(row.waste_bytes),
                Mib(row.peak_live_bytes)
            )?;
        }
        if self.upstream != Stats::default() {
            writeln!(
                f,
                "reserved {} = live {} + cached {} + unused {} + metadata {}",
                Mib(self.upstream.reserved_bytes),
                Mib(self.upstream.live_bytes),
                Mib(self.upstream.cached_bytes),
                Mib(self.upstream.unused_bytes),
                Mib(self.upstream.metadata_bytes)
            )?;
        }
        if let Some(process) = self.process {
            writeln!(
                f,
                "process: resident {}, of that anonymous {}, lazily freed {}; swapped out {}",
                Mib(process.resident_bytes),
                Mib(process.anonymous_bytes),
                Mib(process.lazy_free_bytes),
                Mib(process.swapped_bytes)
            )?;
        }
        Ok(())
    }
}
