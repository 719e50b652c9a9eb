//! The KV cache beside what a reader would use otherwise.
//!
//! ```text
//!   cells (here)            what is measured, and what was promised of it: data
//!     │ visit, take         bookkeeping: ours, kvbm-logical, a pool written by hand
//!     │ payload      keys and values: ours, memcpy, candle's KvCache
//!     ▼
//!   race                    in turns, round after round
//!     ▼
//!   one table, or JSON
//! ```
//!
//! `README.md` says how to read it.

#[cfg(feature = "candle")]
mod candle;
mod chains;
mod keeper;
#[cfg(feature = "kvbm")]
mod kvbm;
mod ours;
mod payload;
mod pool;
mod race;
mod take;
mod trace;
mod visit;

use std::path::PathBuf;

use clap::Parser;

use crate::race::Run;

/// The KV cache beside its rivals.
#[derive(Parser, Debug)]
struct Options {
    /// Only cells whose name has this in it
    #[arg(long, default_value = "")]
    filter: String,
    /// Only contenders whose name has one of these parts
    #[arg(long, value_delimiter = ',')]
    contender: Vec<String>,
    /// Rounds for each cell, behind one that warms up
    #[arg(long, default_value_t = 25)]
    rounds: usize,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// The Mooncake trace [default: the shared folder's]
    #[arg(long)]
    trace: Option<PathBuf>,
}

fn main() {
    let options = Options::parse();
    let mut run = Run::begin(
        options.filter,
        options.contender,
        options.rounds,
        options.json,
    );

    // Blocks, and the hits of the trace in them, one request at a time.
    let visits = [(2_000, 15_944), (16_000, 77_277)];
    let visits = visits.map(|(blocks, hits)| (format!("visit/{blocks}"), blocks, hits));
    if visits.iter().any(|(name, ..)| run.wants(name)) {
        let path = options.trace.unwrap_or_else(trace::shared);
        match trace::read(&path) {
            Err(error) => eprintln!("no visits: {}: {error}", path.display()),
            Ok(prompts) => {
                for (name, blocks, hits) in &visits {
                    run.cell(name, || visit::race(&prompts, *blocks, *hits));
                }
            }
        }
    }
    for (blocks, ns) in [(1, 20.0), (16, 8.0), (500, 20_000.0 / 500.0)] {
        run.cell(&format!("take/{blocks} free"), || take::free(blocks, ns));
    }
    for (idle, ns) in [(16_000, 150_000.0 / 500.0), (1_000_000, 600.0)] {
        run.cell(&format!("take/500 of {idle} idle"), || {
            take::evicting(idle, ns)
        });
    }
    run.cell("append/32 layers", payload::append);
    run.cell("read/4096 tokens", payload::read);
    run.cell("fork/4090 tokens", payload::fork);
    run.end();
}
