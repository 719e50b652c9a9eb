//! What a replay says: a page for people, one JSON object for programs.

use std::io::{self, Write};

use serde::Serialize;

use super::Settings;
use super::run::Tally;
use super::trace::Format;
use crate::cli::chart::{Chart, Fold};
use crate::cli::table::COLUMNS;
use crate::cli::text::binary_bytes;

/// All numbers of a replay. The names are those of the JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    format: Format,
    policy: &'static str,
    /// Blocks of the cache.
    capacity: usize,
    block_tokens: usize,
    /// Prompts at one time; none where the trace says how long they live.
    in_flight: Option<usize>,
    requests: usize,
    /// Of all requests: the denominator of the hit rate.
    blocks: u64,
    hits: u64,
    hit_rate: f64,
    allocations: u64,
    evictions: u64,
    bypassed: u64,
    finished_early: u64,
    peak_pinned: usize,
    peak_sequences: usize,
    /// Part of the token slots of finished sequences that stayed empty.
    waste: f64,
    /// Of the cache's region.
    region_bytes: usize,
    ns_per_block: f64,
    heap_blocks_per_request: f64,
    #[serde(skip)]
    tally: &'a Tally,
}

/// A part of a whole that may be 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

impl<'a> Report<'a> {
    pub(super) fn new(format: Format, settings: &Settings, tally: &'a Tally) -> Self {
        let nanoseconds = tally.cost.time.as_nanos() as f64;
        Self {
            format,
            policy: settings.size.eviction.name(),
            capacity: settings.size.blocks,
            block_tokens: settings.size.block_tokens,
            in_flight: (format == Format::Mooncake).then_some(settings.in_flight),
            requests: tally.requests,
            blocks: tally.blocks,
            hits: tally.hits,
            hit_rate: ratio(tally.hits as f64, tally.blocks as f64),
            allocations: tally.visited - tally.hits,
            evictions: tally.evictions,
            bypassed: tally.bypassed,
            finished_early: tally.finished_early,
            peak_pinned: tally.peak_pinned,
            peak_sequences: tally.peak_sequences,
            waste: ratio(tally.empty_slots as f64, tally.slots as f64),
            region_bytes: tally.region_bytes,
            ns_per_block: ratio(nanoseconds, tally.visited as f64),
            heap_blocks_per_request: ratio(tally.cost.heap_blocks as f64, tally.requests as f64),
            tally,
        }
    }

    pub(super) fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        writeln!(out)
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let percent = |part: f64| format!("{:.2} %", part * 100.0);
        let in_flight = match self.in_flight {
            Some(in_flight) => format!("{in_flight} in flight"),
            None => "requests live as long as they generate".into(),
        };
        writeln!(
            out,
            "cache: {} blocks of {} tokens, {}; {in_flight}",
            self.capacity, self.block_tokens, self.policy
        )?;
        writeln!(out)?;
        let mut row = |name: &str, value: String, more: &str| {
            let line = format!("{name:<22}{value:>14}  {more}");
            writeln!(out, "{}", line.trim_end())
        };
        row("requests", self.requests.to_string(), "")?;
        row(
            "bypassed",
            self.bypassed.to_string(),
            "larger than the cache",
        )?;
        row(
            "finished early",
            self.finished_early.to_string(),
            "to make room for the next one",
        )?;
        row("blocks", self.blocks.to_string(), "of all requests")?;
        row("hits", self.hits.to_string(), &percent(self.hit_rate))?;
        row("allocated", self.allocations.to_string(), "")?;
        row("evicted", self.evictions.to_string(), "")?;
        let part = ratio(self.peak_pinned as f64, self.capacity as f64);
        let at_peak = format!("{} of the cache", percent(part));
        row("peak in use", self.peak_pinned.to_string(), &at_peak)?;
        row("peak sequences", self.peak_sequences.to_string(), "")?;
        row("waste", percent(self.waste), "of the slots, in last blocks")?;
        row(
            "region",
            binary_bytes(self.region_bytes as u64),
            "a stand-in: 4 bytes a token, never written",
        )?;
        row(
            "time per block visit",
            format!("{:.1} ns", self.ns_per_block),
            "found or allocated, and given back",
        )?;
        row(
            "heap blocks",
            format!("{:.2}", self.heap_blocks_per_request),
            "per request, made by the cache",
        )?;
        writeln!(out)?;
        let chart = Chart {
            legend: "blocks: █ used  ░ idle, kept for their prefixes  (rest) free",
            top: (self.capacity as u64, self.capacity.to_string()),
            below: &format!("requests 1 to {}", self.tally.occupancy.len()),
            fold: Fold::Mean,
            columns: COLUMNS,
        };
        chart.draw(&self.tally.occupancy, out)
    }
}
