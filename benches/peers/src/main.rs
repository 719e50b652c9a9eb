//! tenslab beside the allocators and pools that a reader would use otherwise.
//!
//! ```text
//!   plan (here)          which workloads, sizes, threads: data
//!     │ each a cell, in a process of its own
//!     ▼
//!   Field ── roster      who competes: data
//!     │ race()           in turns, round after round
//!     ▼
//!   Row, Row, …          one table, or JSON
//! ```
//!
//! `README.md` says how to read it and how to add to it.

mod contender;
mod heap;
mod ours;
mod pace;
mod race;
mod report;
mod roster;
mod system;
mod theirs;
mod workloads;

use std::alloc::System;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;

use crate::race::{Field, Settings};
use crate::workloads::{Larson, Mleak, Mstress, Pair, Rptest, Scratch, Workload, Xmalloc};

#[global_allocator]
static GLOBAL: heap::Counted<System> = heap::Counted(System);

/// tenslab beside its rivals, in one run.
#[derive(Parser, Debug)]
struct Options {
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// A smoke run: two short rounds, nothing above 16 MiB. Its figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Blocks of 256 MiB too, and three times the rounds
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// Only cells whose name has all these words: pair/4KiB/untouched/1
    #[arg(long, value_delimiter = ',')]
    filter: Vec<String>,
    /// Only contenders whose name has one of these parts
    #[arg(long, value_delimiter = ',')]
    contender: Vec<String>,
    /// Alignment asked of the rival mallocs (tenslab's is 64)
    #[arg(long, default_value_t = 16)]
    align: usize,
    /// The threads' cores [default: the first that the process may use]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Run this one cell here, in this process
    #[arg(long, hide = true)]
    cell: Option<String>,
}

/// What runs the cells, and where their rows go.
struct Run {
    settings: Settings,
    options: Options,
    /// With `--json` only.
    rows: Vec<serde_json::Value>,
}

impl Run {
    fn new(options: Options) -> Self {
        let (rounds, slice, warm_up) = match options {
            Options { quick: true, .. } => (2, 1, 1),
            Options { long: true, .. } => (60, 10, 2),
            _ => (20, 10, 2),
        };
        let cores = if options.cores.is_empty() {
            system::cores()
        } else {
            options.cores.clone()
        };
        let settings = Settings {
            rounds,
            slice: Duration::from_millis(slice),
            warm_up: Duration::from_millis(warm_up),
            cores,
            contenders: options.contender.clone(),
        };
        Self {
            settings,
            options,
            rows: Vec::new(),
        }
    }

    /// Races the workload, with the other heights of tenslab's stack if `heights`.
    fn cell(&mut self, workload: &impl Workload, heights: bool) {
        let cell = workload.cell();
        let name = format!(
            "{}/{}/{}/{}",
            cell.workload,
            report::size(cell.bytes).replace(' ', ""),
            if cell.touched { "touched" } else { "untouched" },
            cell.threads
        );
        let Some(only) = &self.options.cell else {
            // Between slashes: `touched` is a part of `untouched`, and `4KiB` of `64KiB`.
            let is_part = |word: &String| format!("/{name}/").contains(&format!("/{word}/"));
            if self.options.filter.iter().all(is_part) {
                self.child(&name);
            }
            return;
        };
        if *only != name {
            return;
        }
        let mut field = Field::new(workload, &self.settings);
        if heights {
            roster::heights(&mut field);
        }
        roster::allocators(&mut field, self.options.align);
        let rows = field.race();
        if self.options.json {
            self.rows.extend(report::objects(&rows));
        } else {
            print!("{}", report::table(&rows));
        }
    }

    /// Runs a cell in a process of its own, so that no heap remembers the cell before.
    fn child(&mut self, name: &str) {
        let program = std::env::current_exe().expect("the path of this program");
        let child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .args(["--cell", name])
            .stderr(Stdio::inherit())
            .output()
            .expect("this program starts once more");
        assert!(child.status.success(), "{name}: {}", child.status);
        if self.options.json {
            let rows: Vec<serde_json::Value> =
                serde_json::from_slice(&child.stdout).expect("what the child printed");
            self.rows.extend(rows);
        } else {
            print!("{}", String::from_utf8_lossy(&child.stdout));
        }
    }

    /// Every cell of the table. A new one is a line here.
    fn plan(&mut self) {
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        let sizes = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB];
        let sizes = match self.options {
            Options { quick: true, .. } => &sizes[..4],
            Options { long: true, .. } => &sizes[..],
            _ => &sizes[..5],
        };
        for &bytes in sizes {
            for touched in [false, true] {
                for threads in [1, 2] {
                    let pair = Pair {
                        bytes,
                        touched,
                        threads,
                    };
                    self.cell(&pair, true);
                }
            }
        }
        for threads in [1, 2] {
            self.cell(&Scratch { bytes: 8, threads }, false);
        }
        for bytes in [4 * KIB, 64 * KIB] {
            for threads in [1, 2] {
                self.cell(&Larson { bytes, threads }, false);
            }
            self.cell(&Xmalloc { bytes }, false);
            self.cell(&Rptest { bytes }, false);
            for threads in [1, 2] {
                self.cell(&Mstress { bytes, threads }, false);
            }
            self.cell(&Mleak { bytes }, false);
        }
    }
}

fn main() {
    // A thread that panics would leave the others waiting at their barrier.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
    let began = Instant::now();
    let mut run = Run::new(Options::parse());
    let is_child = run.options.cell.is_some();
    let machine = system::machine();
    if !run.options.json && !is_child {
        println!("{machine}");
        println!("one operation each; p50 and p99 of batch means; ratios are of the p50");
    }
    run.plan();
    if !run.options.json {
        if !is_child {
            println!("\n{}, {} s", system::machine(), began.elapsed().as_secs());
        }
    } else if is_child {
        println!("{}", serde_json::Value::from(run.rows));
    } else {
        let all = serde_json::json!({
            "machine": machine,
            "machine_after": system::machine(),
            "rounds": run.settings.rounds,
            "slice_ms": run.settings.slice.as_secs_f64() * 1e3,
            "align": run.options.align,
            "rows": run.rows,
        });
        println!("{all}");
    }
}
