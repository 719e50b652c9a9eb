//! tenslab beside the allocators and pools that a reader would use otherwise.
//!
//! ```text
//!   plan                 which workloads, sizes, threads: data
//!     │ each a cell, in a process of its own (run)
//!     ├──▶ Field ── roster    who competes: data
//!     │      │ race()         in turns, round after round
//!     │      ▼
//!     │    Row, Row, …        times
//!     ├──▶ Task ── roster     one contender in a process: held, spike, stall
//!     │      ▼
//!     │    Line, Line, …      memory, and what a trim does to others
//!     ▼
//!   bounds               what was promised, and what came of it
//! ```
//!
//! `README.md` says how to read it and how to add to it.

mod bounds;
mod contender;
mod heap;
mod held;
mod ours;
mod pace;
mod plan;
#[path = "../../../tests/pool_workloads/mod.rs"]
mod pool_workloads;
mod race;
mod recorded;
mod report;
mod roster;
mod run;
mod solo;
mod spike;
mod stall;
mod system;
mod theirs;
mod workloads;

use std::alloc::System;
use std::time::Instant;

use clap::Parser;

use crate::run::{Options, Run};

#[global_allocator]
static GLOBAL: heap::Counted<System> = heap::Counted(System);

fn main() {
    // A thread that panics would leave the others waiting at their barrier.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
    let began = Instant::now();
    let mut run = Run::new(Options::parse());
    let machine = system::machine();
    let talks = !run.options.json && !run.is_child();
    if talks {
        println!("{machine}");
        println!("one operation each; p50 and p99 of batch means; ratios are of the p50");
    }
    plan::all(&mut run);
    run.end(&machine);
    if talks {
        println!("\n{}, {} s", system::machine(), began.elapsed().as_secs());
    }
}
