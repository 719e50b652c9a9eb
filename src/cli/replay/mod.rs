//! `tenslab replay TRACE`: what a KV cache of some size makes of real requests.
//!
//! ```text
//!  trace  -> requests      read whole, an error names the line
//!  run    -> tally         the crate's own cache, driven one request after the other
//!  report -> page | JSON   with the chart of occupancy
//! ```
//!
//! Nothing is written anywhere but to the output, at the end: stopped halfway, it leaves
//! nothing behind.

mod report;
mod run;
pub(super) mod trace;

use std::io::Write;
use std::path::PathBuf;

use tenslab::kv::Eviction;

use self::report::Report;
use self::run::Size;
use self::trace::{Format, Trace};
use super::Failure;
use super::progress::Progress;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A Mooncake trace (.jsonl) or an Azure LLM inference trace (.csv)
    trace: PathBuf,
    /// Blocks of the cache
    #[arg(long)]
    blocks: usize,
    /// Tokens of a block; one hash id of a Mooncake trace is one block
    #[arg(long, default_value_t = 16)]
    block_tokens: usize,
    /// Requests at one time, first in, first out [default: 1]. Mooncake traces only: in
    /// an Azure trace a request lives 20 ms for each generated token
    #[arg(long)]
    in_flight: Option<usize>,
    /// What is evicted first
    #[arg(long, value_enum, default_value_t = Policy::Lru)]
    policy: Policy,
    /// How the trace is written, if its first line does not tell
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Print one JSON object instead of a page
    #[arg(long)]
    json: bool,
}

/// Which idle block is evicted first.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Policy {
    /// The least recently used one
    Lru,
}

impl From<Policy> for Eviction {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Lru => Self::Lru,
        }
    }
}

/// What is to be replayed, checked.
#[derive(Debug)]
struct Settings {
    size: Size,
    in_flight: usize,
}

/// Replays a trace and prints what came of it.
pub(super) fn replay(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    let settings = Settings {
        size: Size {
            blocks: args.blocks,
            block_tokens: args.block_tokens,
            eviction: args.policy.into(),
        },
        in_flight: args.in_flight.unwrap_or(1),
    };
    if settings.in_flight == 0 {
        return Err(Failure::Said("--in-flight must be at least 1".into()));
    }
    let trace = trace::read(&args.trace, args.format)?;
    let (format, tally) = match &trace {
        Trace::Prompts(prompts) => {
            let id = prompts.largest_id();
            if settings.size.block_tokens == 1 && id > u64::from(u32::MAX) {
                return Err(Failure::Said(format!(
                    "hash id {id} needs --block-tokens of at least 2: one token tells only 2^32 ids apart"
                )));
            }
            let progress = Progress::new(prompts.len(), "requests");
            let tally = run::prompts(prompts, settings.size, settings.in_flight, |number| {
                progress.at(number);
            })?;
            (Format::Mooncake, tally)
        }
        Trace::Arrivals(_) if args.in_flight.is_some() => {
            let text = "--in-flight is not for an Azure trace, which says how long requests live";
            return Err(Failure::Said(text.into()));
        }
        Trace::Arrivals(arrivals) => {
            let progress = Progress::new(arrivals.len(), "requests");
            let tally = run::arrivals(arrivals, settings.size, |number| progress.at(number))?;
            (Format::Azure, tally)
        }
    };
    let report = Report::new(format, &settings, &tally);
    if args.json {
        report.print_json(out)?;
    } else {
        report.print(out)?;
    }
    Ok(())
}
