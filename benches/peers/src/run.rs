//! Runs cells, each in a process of its own, and keeps what came out.
//!
//! ```text
//!   parent   plan ─▶ name ─▶ this program, --cell name [--solo contender] ─▶ JSON ─▶ tables
//!   child    plan ─▶ name? ─▶ race, or measure ─▶ JSON on its output
//! ```
//!
//! Both go through the same plan; the child does the one cell that it is told.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Parser;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::bounds::{BOUNDS, Verdict};
use crate::race::{Field, Row, Settings};
use crate::report;
use crate::roster::Group;
use crate::solo::{Line, Names, Only, Task};
use crate::system;
use crate::workloads::Workload;

/// tenslab beside its rivals, in one run.
#[derive(Parser, Debug)]
pub struct Options {
    /// One JSON object instead of the tables
    #[arg(long)]
    pub json: bool,
    /// A smoke run: two short rounds, nothing above 16 MiB, a part of each list of events.
    /// Its figures mean nothing
    #[arg(long)]
    pub quick: bool,
    /// Blocks of 256 MiB too, and three times the rounds
    #[arg(long, conflicts_with = "quick")]
    pub long: bool,
    /// Only cells whose name has all these words: pair/4KiB/untouched/1, held/random
    #[arg(long, value_delimiter = ',')]
    pub filter: Vec<String>,
    /// Only contenders whose name has one of these parts
    #[arg(long, value_delimiter = ',')]
    pub contender: Vec<String>,
    /// Alignment asked of the rival mallocs (tenslab's is 64)
    #[arg(long, default_value_t = 16)]
    pub align: usize,
    /// The threads' cores [default: the first that the process may use]
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// What is replayed: a CSV that a `Trace` wrote [default: a recording made here]
    #[arg(long)]
    pub trace: Option<PathBuf>,
    /// Run this one cell here, in this process
    #[arg(long, hide = true)]
    cell: Option<String>,
    /// Of a cell that measures one contender: whom
    #[arg(long, hide = true, requires = "cell")]
    solo: Option<String>,
}

/// What runs the cells, and where what comes out goes.
pub struct Run {
    /// For the races.
    pub settings: Settings,
    /// As given.
    pub options: Options,
    rows: Vec<Row>,
    lines: Vec<Line>,
}

impl Run {
    /// Nothing has run yet.
    pub fn new(options: Options) -> Self {
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
            lines: Vec::new(),
        }
    }

    /// Is this the process of one cell?
    pub fn is_child(&self) -> bool {
        self.options.cell.is_some()
    }

    /// Will the cell of this name run here, or be started from here?
    pub fn wants(&self, name: &str) -> bool {
        match &self.options.cell {
            Some(only) => only == name,
            // Between slashes: `touched` is a part of `untouched`, and `4KiB` of `64KiB`.
            None => {
                let is_part = |word: &String| format!("/{name}/").contains(&format!("/{word}/"));
                self.options.filter.iter().all(is_part)
            }
        }
    }

    /// Races the groups in the workload.
    pub fn race(&mut self, workload: &impl Workload, groups: &[Group]) {
        let name = workload.cell().name();
        if !self.wants(&name) {
            return;
        }
        if self.is_child() {
            let mut field = Field::new(workload, &self.settings);
            for group in groups {
                group.sign(&mut field, self.options.align);
            }
            print!("{}", json!(field.race()));
            return;
        }
        let rows: Vec<Row> = self.child(&["--cell", &name]);
        if !self.options.json {
            print!("{}", report::table(&rows));
        }
        self.rows.extend(rows);
    }

    /// Measures each of the groups. `beside` are lines that stand below.
    pub fn solo(&mut self, task: &impl Task, groups: &[Group], beside: impl FnOnce() -> Vec<Line>) {
        let (name, align) = (task.name(), self.options.align);
        if !self.wants(&name) {
            return;
        }
        if let Some(contender) = &self.options.solo {
            let mut only = Only {
                task,
                name: contender,
                line: None,
            };
            for group in groups {
                group.sign(&mut only, align);
            }
            print!(
                "{}",
                json!(only.line.expect("the parent knows who signed up"))
            );
            return;
        }
        let mut names = Names::default();
        for group in groups {
            group.sign(&mut names, align);
        }
        let mut lines = Vec::new();
        for contender in names.0 {
            if self.settings.wants(contender) {
                let line: Line = self.child(&["--cell", &name, "--solo", contender]);
                lines.push(line);
            }
        }
        lines.extend(beside());
        self.add(lines);
    }

    /// Adds a measurement that needs no process of its own for each contender.
    pub fn lines(&mut self, name: &str, measure: impl FnOnce(&Settings) -> Vec<Line>) {
        if !self.wants(name) {
            return;
        }
        if self.is_child() {
            print!("{}", json!(measure(&self.settings)));
            return;
        }
        let lines = self.child(&["--cell", name]);
        self.add(lines);
    }

    fn add(&mut self, lines: Vec<Line>) {
        if !self.options.json {
            print!("{}", report::lines(&lines));
        }
        self.lines.extend(lines);
    }

    /// Runs a cell in a process of its own, so that no heap remembers the cell before.
    fn child<T: DeserializeOwned>(&self, cell: &[&str]) -> T {
        let program = std::env::current_exe().expect("the path of this program");
        let child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .args(cell)
            .stderr(Stdio::inherit())
            .output()
            .expect("this program starts once more");
        assert!(child.status.success(), "{cell:?}: {}", child.status);
        serde_json::from_slice(&child.stdout).expect("what the child printed")
    }

    /// Says what was promised and what came of it, and with `--json` everything.
    pub fn end(&self, machine_before: &str) {
        if self.is_child() {
            return;
        }
        let verdict = |bound: &crate::bounds::Bound| bound.verdict(&self.rows, &self.lines);
        let verdicts: Vec<Verdict> = BOUNDS.iter().map(verdict).collect();
        if !self.options.json {
            // Who asks for a part does not want to hear of the rest.
            let all = self.options.filter.is_empty();
            let meant = verdicts
                .into_iter()
                .filter(|verdict| all || verdict.cells > 0);
            print!("{}", report::verdicts(&meant.collect::<Vec<_>>()));
            return;
        }
        let all = json!({
            "machine": machine_before,
            "machine_after": system::machine(),
            "rounds": self.settings.rounds,
            "slice_ms": self.settings.slice.as_secs_f64() * 1e3,
            "align": self.options.align,
            "rows": report::objects(&self.rows),
            "lines": self.lines,
            "bounds": verdicts,
        });
        println!("{all}");
    }
}
