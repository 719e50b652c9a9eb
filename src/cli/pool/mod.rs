//! `tenslab pool TRACE`: what a caching pool makes of allocations that were recorded.
//!
//! ```text
//!  read    -> Recording        an error names the line
//!  run     -> series, counts   a pool of its own, event for event, no byte of which is touched
//!          -> map              the same again, up to the event that is wanted
//!          -> dry run          the same again, exact: the smallest cap
//!  report  -> page | JSON
//! ```
//!
//! The same calls from one thread lead to the same layout, so a pool that plays the trace a
//! second time is at each event what the first one was. A picture of the first would have
//! emptied its caches, and changed what comes.
//!
//! Nothing is written anywhere but to the output, at the end: stopped halfway, it leaves
//! nothing behind.

mod read;
mod report;
mod run;

use std::io::Write;
use std::path::PathBuf;

use clap::value_parser;
use tenslab::memory::{PoolOptions, TrimPolicy};

use self::report::Report;
use super::Failure;
use super::size;
use super::table::COLUMNS;

/// What the help says behind the options.
const MORE: &str = "\
A trace is what Trace::snapshot gives and Recording::write_csv or write_json writes. It is played
in its order, on one thread, and no byte of a block is touched: a trace of 100 GB needs none of
them.

A trace that does not fit its cap is an answer, and the exit code is 0; \"fits\" in the JSON object
says which it was. The exit code is 2 where there is no answer.

Examples:
  tenslab pool run.csv
  tenslab pool run.csv --cap 2GiB --at 1500
  tenslab pool run.csv --cap 2GiB --json | jq --exit-status .fits";

#[derive(Debug, clap::Args)]
#[command(after_help = MORE)]
pub(super) struct Args {
    /// A recorded trace, CSV or JSON (/dev/stdin for a pipe)
    trace: PathBuf,
    /// The most that the pool may have: 4GiB, 512MiB, 8GB, or plain bytes. What it refuses is
    /// counted and listed
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = size::bytes)]
    cap: Option<usize>,
    /// Free memory that the pool may keep; what is more goes back to the system
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = size::bytes)]
    trim_keep: Option<usize>,
    /// Memory that was free for so many calls goes back to the system
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..))]
    idle_calls: Option<u32>,
    /// Show the map after this event [default: the one with the most committed]
    #[arg(long, value_name = "EVENT", allow_negative_numbers = true)]
    at: Option<u64>,
    /// Columns of the chart and of the map
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = COLUMNS as u16, value_parser = value_parser!(u16).range(60..=400))]
    width: u16,
    /// Print one JSON object instead of a page
    #[arg(long)]
    json: bool,
}

impl Args {
    fn options(&self) -> PoolOptions {
        let mut trim = TrimPolicy::new();
        if let Some(bytes) = self.trim_keep {
            trim = trim.keep_bytes(bytes);
        }
        if let Some(calls) = self.idle_calls {
            trim = trim.idle_calls(calls);
        }
        let options = PoolOptions::new().trim(trim);
        match self.cap {
            Some(bytes) => options.cap_bytes(bytes),
            None => options,
        }
    }
}

/// Replays a trace and prints what came of it.
pub(super) fn pool(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    let recording = read::read(&args.trace)?;
    let outcome = run::run(&recording, &args.options(), args.at).map_err(|trouble| {
        let path = args.trace.display();
        Failure::Said(format!("{path}: {trouble}"))
    })?;
    let report = Report::new(args, &recording, &outcome);
    if args.json {
        report.print_json(out)?;
    } else {
        report.print(usize::from(args.width), out)?;
    }
    Ok(())
}
