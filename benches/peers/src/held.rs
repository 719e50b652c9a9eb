//! `held/…`: how much memory a contender holds for what is out, when nobody trims.
//!
//! The script is played once and every page of each block is touched. What is reported is
//! by how much resident memory grew at its peak, and that over the most that was asked for
//! at one time; and what stays when everything is back, before and after the contender's
//! own call for giving memory back. How long it took is a moment's figure, but says who had to
//! ask the system for the same pages again and again.
//!
//! Below stand rules that are not to be had as crates, as models with addresses alone: what
//! they would have reserved.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::contender::{Contender, Shape};
use crate::pool_workloads::{Addresses, Event, PoolWorkload, Rule, fingerprint, peak_live_bytes};
use crate::solo::{Figures, Line, Task};
use crate::system;
use crate::workloads::{Script, steps};

/// What is played.
pub enum Load {
    /// Blocks that come and go one by one.
    Script(Script),
    /// Steps of heavy-tailed sizes: so many.
    Steps(usize),
}

/// Plays something once and looks at the process's memory.
pub struct Held {
    /// What the table calls it.
    pub name: &'static str,
    /// What is played.
    pub load: Load,
}

impl Task for Held {
    fn name(&self) -> String {
        format!("held/{}", self.name)
    }

    fn shape(&self) -> Shape {
        match &self.load {
            Load::Script(script) => script.shape(),
            Load::Steps(_) => Shape {
                bytes: system::PAGE_BYTES,
                blocks: 2,
            },
        }
    }

    fn measure<C: Contender>(&self, make: impl FnOnce() -> C) -> Figures {
        match &self.load {
            Load::Script(script) => {
                let mut places = script.places();
                measure(script.peak_bytes(), make, |hand| {
                    script.play::<C::Hand<'_>>(hand, &mut places, true);
                })
            }
            Load::Steps(count) => {
                let steps = steps::heavy_tailed(*count);
                let largest = steps.iter().map(|step| step.iter().sum()).max();
                let mut held = Vec::with_capacity(64);
                measure(largest.expect("there are steps"), make, |hand| {
                    steps::play::<C::Hand<'_>>(&steps, hand, &mut held, true);
                })
            }
        }
    }
}

fn measure<C: Contender>(
    peak_live_bytes: usize,
    make: impl FnOnce() -> C,
    play: impl FnOnce(&mut C::Hand<'_>),
) -> Figures {
    let before = system::settled_bytes();
    system::reset_peak();
    let contender = make();
    let mut hand = contender.hand();
    let began = Instant::now();
    play(&mut hand);
    let took = began.elapsed();
    let peak = system::peak_resident_bytes() - before;
    let left = system::resident_bytes() - before;
    contender.trim();
    let trimmed = system::resident_bytes() - before;
    Figures::from([
        ("peak_live_bytes".to_owned(), peak_live_bytes as f64),
        ("held_bytes".to_owned(), peak as f64),
        (
            "held_ratio".to_owned(),
            peak as f64 / peak_live_bytes as f64,
        ),
        ("left_bytes".to_owned(), left as f64),
        ("trimmed_bytes".to_owned(), trimmed as f64),
        ("played_ns".to_owned(), took.as_nanos() as f64),
    ])
}

/// What each rule would reserve.
pub fn simulated(name: &str, events: &[Event]) -> Vec<Line> {
    let peak = peak_live_bytes(events);
    let line = |rule: Rule| line(name, rule.name(), peak, reserved_bytes(rule, events));
    Rule::ALL.into_iter().map(line).collect()
}

/// A line of a model.
pub fn line(name: &str, model: &str, peak_live_bytes: usize, reserved_bytes: usize) -> Line {
    Line {
        cell: format!("held/{name}"),
        contender: format!("({model})"),
        figures: BTreeMap::from([
            ("peak_live_bytes".to_owned(), peak_live_bytes as f64),
            ("held_bytes".to_owned(), reserved_bytes as f64),
            (
                "held_ratio".to_owned(),
                reserved_bytes as f64 / peak_live_bytes as f64,
            ),
        ]),
    }
}

fn reserved_bytes(rule: Rule, events: &[Event]) -> usize {
    let mut addresses = Addresses::new(rule);
    let mut places = Vec::new();
    for event in events {
        match *event {
            Event::Take { bytes, .. } => places.push(addresses.take(bytes)),
            Event::GiveBack { id } => addresses.give_back(places[id]),
        }
    }
    addresses.reserved_bytes()
}

/// Asserts that the workload is the simulator's, and so are the rules' numbers.
pub fn check(workload: PoolWorkload, events: &[Event]) {
    let pins = workload.pins();
    let found = (events.len(), peak_live_bytes(events), fingerprint(events));
    let pinned = (pins.events, pins.peak_live_bytes, pins.fingerprint);
    assert_eq!(found, pinned, "{} is not sim.py's", workload.name());
    let reserved = Rule::ALL.map(|rule| reserved_bytes(rule, events));
    assert_eq!(reserved, pins.reserved_bytes, "{}", workload.name());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_the_simulators() {
        for workload in PoolWorkload::ALL {
            let events = workload.events();
            check(workload, &events);
            let takes = events
                .iter()
                .filter(|event| matches!(event, Event::Take { .. }));
            assert_eq!(takes.count(), workload.pins().blocks);
            let lines = simulated(workload.name(), &events);
            let ratios = lines
                .iter()
                .map(|line| format!("{:.2}", line.figures["held_ratio"]));
            // As `python3 sim.py` prints them: PyTorch's rule, BFC's, best fit in one
            // reservation that grows.
            let printed = match workload {
                PoolWorkload::Churn => ["1.48", "2.66", "1.21"],
                PoolWorkload::Random => ["1.19", "2.00", "1.12"],
                PoolWorkload::Prefill => ["1.77", "2.25", "1.13"],
                PoolWorkload::Drift => ["4.74", "1.12", "1.00"],
            };
            assert_eq!(ratios.collect::<Vec<_>>(), printed);
        }
    }
}
