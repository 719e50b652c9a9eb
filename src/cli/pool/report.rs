//! What a replay says: a page for people, one JSON object for programs.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use tenslab::memory::{
    DryRun, EventKind, PoolMap, PoolReport, Recording, ReplayReport, RungCounts,
};

use super::Args;
use super::run::{Outcome, Point, Refusal};
use crate::cli::chart::{Chart, Fold, Level};
use crate::cli::table::COLUMNS;
use crate::cli::text::{binary_bytes, escaped, folded, wrapped};

/// Refusals that the page lists.
const LISTED: usize = 10;

/// Up to so many bytes a block comes from a pool's slabs.
const SMALL_BYTES: usize = 32 << 10;

/// What the trace is.
#[derive(Debug, Serialize)]
struct Facts {
    path: String,
    events: usize,
    /// Numbers of the first and the last event.
    first_event: u64,
    last_event: u64,
    /// In front of the first.
    dropped_events: u64,
    threads: usize,
    /// That were served when it was recorded.
    requests: usize,
    /// That were not.
    refused: usize,
    releases: usize,
    growths: usize,
    marks: usize,
    /// Of the requests that were served.
    sizes: Sizes,
}

/// Bytes asked for.
#[derive(Debug, Default, Serialize)]
struct Sizes {
    smallest_bytes: usize,
    median_bytes: usize,
    largest_bytes: usize,
    /// How many different ones there are.
    different: usize,
    /// Requests that a pool serves from its slabs.
    up_to_32_kib: usize,
}

impl Sizes {
    fn of(mut sizes: Vec<usize>) -> Self {
        sizes.sort_unstable();
        let at = |place: usize| sizes.get(place).copied().unwrap_or(0);
        Self {
            smallest_bytes: at(0),
            median_bytes: at(sizes.len() / 2),
            largest_bytes: sizes.last().copied().unwrap_or(0),
            different: sizes.chunk_by(|left, right| left == right).count(),
            up_to_32_kib: sizes.partition_point(|&bytes| bytes <= SMALL_BYTES),
        }
    }
}

impl Facts {
    fn of(path: &Path, recording: &Recording) -> Self {
        let events = recording.events();
        let number = |place: Option<&tenslab::memory::Event>| place.map_or(0, |event| event.number);
        let mut facts = Self {
            path: path.to_string_lossy().into(),
            events: events.len(),
            first_event: number(events.first()),
            last_event: number(events.last()),
            dropped_events: recording.header().dropped_events,
            threads: 0,
            requests: 0,
            refused: 0,
            releases: 0,
            growths: 0,
            marks: 0,
            sizes: Sizes::default(),
        };
        let (mut sizes, mut threads) = (Vec::new(), BTreeSet::new());
        for event in events {
            threads.insert(event.thread);
            match &event.kind {
                EventKind::Allocate(allocation) => sizes.push(allocation.request.bytes()),
                EventKind::Refuse(_) => facts.refused += 1,
                EventKind::Release { .. } => facts.releases += 1,
                EventKind::Grow { .. } => facts.growths += 1,
                EventKind::Mark(_) => facts.marks += 1,
            }
        }
        facts.threads = threads.len();
        facts.requests = sizes.len();
        facts.sizes = Sizes::of(sizes);
        facts
    }
}

/// As they were given; null where not.
#[derive(Debug, Serialize)]
struct Given {
    cap_bytes: Option<usize>,
    trim_keep_bytes: Option<usize>,
    idle_calls: Option<u32>,
}

/// `1 mark`, `2 marks`.
fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// All numbers of a replay. The names are those of the JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    trace: Facts,
    options: Given,
    /// Was every request served that had been served when it was recorded?
    fits: bool,
    peak_requested_bytes: usize,
    peak_live_bytes: usize,
    peak_committed_bytes: usize,
    /// After which event that was first.
    peak_event: u64,
    /// The most committed, as a multiple of the most live; null where nothing was.
    committed_to_live: Option<f64>,
    /// The smallest cap that serves it as it lies without one; null where not even a pool
    /// without a cap does.
    smallest_cap_bytes: Option<usize>,
    replay: &'a ReplayReport,
    dry_run: &'a DryRun,
    /// After the last event.
    pool: &'a PoolReport,
    /// The first of them.
    refusals: &'a [Refusal],
    series: &'a [Point],
    /// After which event the map is.
    map_event: u64,
    map: &'a PoolMap,
}

impl<'a> Report<'a> {
    pub(super) fn new(args: &Args, recording: &Recording, outcome: &'a Outcome) -> Self {
        let (replay, need) = (&outcome.replay, &outcome.need);
        let live = replay.peak_live_bytes;
        let committed = outcome.peak.committed_bytes;
        Self {
            trace: Facts::of(&args.trace, recording),
            options: Given {
                cap_bytes: args.cap,
                trim_keep_bytes: args.trim_keep,
                idle_calls: args.idle_calls,
            },
            fits: replay.refused_here == 0,
            peak_requested_bytes: replay.peak_requested_bytes,
            peak_live_bytes: live,
            peak_committed_bytes: committed,
            peak_event: outcome.peak.event,
            committed_to_live: (live > 0).then(|| committed as f64 / live as f64),
            smallest_cap_bytes: (need.replay.refused_here == 0).then_some(need.cap_bytes),
            replay,
            dry_run: need,
            pool: &outcome.pool,
            refusals: &outcome.refusals,
            series: &outcome.series,
            map_event: outcome.at,
            map: &outcome.map,
        }
    }

    pub(super) fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        writeln!(out)
    }

    /// `width`: columns of the chart and the map.
    pub(super) fn print(&self, width: usize, out: &mut impl Write) -> io::Result<()> {
        self.print_trace(out)?;
        writeln!(out)?;
        self.print_chart(width, out)?;
        writeln!(out)?;
        self.print_numbers(out)?;
        self.print_rungs(out)?;
        self.print_refusals(out)?;
        writeln!(out)?;
        let most = if self.map_event == self.peak_event {
            ", with the most committed"
        } else {
            ""
        };
        writeln!(out, "the heap after event {}{most}", self.map_event)?;
        let marks = width.saturating_sub(16);
        writeln!(out, "{:marks$}", self.map)
    }

    fn print_trace(&self, out: &mut impl Write) -> io::Result<()> {
        let Facts {
            events,
            first_event,
            last_event,
            dropped_events,
            threads,
            requests,
            refused,
            releases,
            growths,
            marks,
            ..
        } = self.trace;
        for line in wrapped(&escaped(&self.trace.path), COLUMNS) {
            writeln!(out, "{line}")?;
        }
        let size = |bytes: usize| binary_bytes(bytes as u64);
        let sizes = &self.trace.sizes;
        let counts = [
            (threads, "thread"),
            (requests, "request"),
            (releases, "give-back"),
            (growths, "growth"),
            (refused, "refusal"),
            (marks, "mark"),
        ];
        let counts = counts.map(|(count, what)| counted(count, what)).join(", ");
        let mut said = vec![
            format!("events {first_event} to {last_event} ({events}): {counts}"),
            format!(
                "sizes {} to {}, median {}, {} different; {} of at most 32 KiB",
                size(sizes.smallest_bytes),
                size(sizes.largest_bytes),
                size(sizes.median_bytes),
                sizes.different,
                counted(sizes.up_to_32_kib, "request"),
            ),
        ];
        if dropped_events > 0 {
            let left_out = self.replay.skipped_releases + self.replay.skipped_growths;
            said.push(format!(
                "{dropped_events} events in front of these were overwritten: blocks that went \
                 out then are not here, and {left_out} events of them are left out"
            ));
        }
        for text in said {
            for line in folded(&text, COLUMNS) {
                writeln!(out, "{line}")?;
            }
        }
        Ok(())
    }

    fn print_chart(&self, width: usize, out: &mut impl Write) -> io::Result<()> {
        let levels: Vec<Level> = (self.series.iter())
            .map(|point| Level {
                used: point.live_bytes as u64,
                idle: point.committed_bytes.saturating_sub(point.live_bytes) as u64,
            })
            .collect();
        let top = self.peak_committed_bytes as u64;
        let chart = Chart {
            legend: "█ live  ░ committed and free  (the most in the events of a column)",
            top: (top, binary_bytes(top)),
            below: &format!(
                "events {} to {}",
                self.trace.first_event, self.trace.last_event
            ),
            fold: Fold::Most,
            columns: width,
        };
        chart.draw(&levels, out)
    }

    fn print_numbers(&self, out: &mut impl Write) -> io::Result<()> {
        let size = |bytes: usize| binary_bytes(bytes as u64);
        let mut row = |name: &str, value: String, more: &str| {
            let line = format!("{name:<20}{value:>14}  {more}");
            writeln!(out, "{}", line.trim_end())
        };
        row("peak requested", size(self.peak_requested_bytes), "")?;
        row("peak live", size(self.peak_live_bytes), "with rounding")?;
        let after = format!("after event {}", self.peak_event);
        row("peak committed", size(self.peak_committed_bytes), &after)?;
        let ratio = self.committed_to_live;
        let ratio = ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.3}"));
        row("committed / live", ratio, "each at its peak")?;
        let (cap, what) = match self.smallest_cap_bytes {
            Some(cap) => (size(cap), format!("--cap {cap} refuses nothing")),
            None => (
                "-".into(),
                "the process has no room for it (ulimit -v)".into(),
            ),
        };
        row("smallest cap", cap, &what)?;
        if let Some(cap) = self.options.cap_bytes {
            let fits = match self.fits {
                true => "the trace fits",
                false => "the trace does not fit",
            };
            row("cap", size(cap), fits)?;
        }
        let counts = [
            (
                "refused here",
                self.replay.refused_here,
                format!("of {} requests that were served", self.trace.requests),
            ),
            (
                "could not grow here",
                self.replay.growths_refused_here,
                format!("of {} growths", self.trace.growths),
            ),
            (
                "served here",
                self.replay.served_here,
                format!("of {} requests that were refused", self.trace.refused),
            ),
            ("left over", self.replay.left_over, "out at the end".into()),
        ];
        for (name, count, what) in counts {
            if count > 0 {
                row(name, count.to_string(), &what)?;
            }
        }
        Ok(())
    }

    fn print_rungs(&self, out: &mut impl Write) -> io::Result<()> {
        let RungCounts {
            cached,
            fitted,
            emptied,
            committed,
            trimmed,
            slabs,
            refused,
            ..
        } = self.pool.rungs;
        writeln!(out)?;
        writeln!(out, "requests of more than 32 KiB were served by")?;
        for (name, count, what) in [
            ("cached", cached, "a block of as many pages, at hand"),
            ("fitted", fitted, "the best fit of what was in memory"),
            ("emptied", emptied, "the same, once the caches were empty"),
            ("committed", committed, "pages of the system"),
            ("trimmed", trimmed, "the same, once free ones had gone back"),
            ("slabs", slabs, "the same, once idle small ones had, too"),
            ("refused", refused, "nothing"),
        ] {
            writeln!(out, "  {name:<18}{count:>14}  {what}")?;
        }
        Ok(())
    }

    fn print_refusals(&self, out: &mut impl Write) -> io::Result<()> {
        if self.refusals.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        writeln!(out, "refused here")?;
        for refusal in self.refusals.iter().take(LISTED) {
            let Refusal {
                event, tag, error, ..
            } = refusal;
            let text = format!("event {event} ({tag}): {error}");
            for (at, line) in folded(&text, COLUMNS - 4).iter().enumerate() {
                let indent = if at == 0 { "  " } else { "    " };
                writeln!(out, "{indent}{line}")?;
            }
        }
        let all = self.replay.refused_here + self.replay.growths_refused_here;
        let more = all.saturating_sub(LISTED as u64);
        if more > 0 {
            writeln!(out, "  and {more} more")?;
        }
        Ok(())
    }
}
