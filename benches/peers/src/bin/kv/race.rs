//! Turns, rows, and what was promised.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long one turn lasts, if one operation does not take longer.
const TURN: Duration = Duration::from_millis(3);

/// What is measured, and who competes.
pub struct Cell<'a> {
    /// What the times are of.
    pub unit: &'static str,
    /// Ours first.
    pub contenders: Vec<Contender<'a>>,
    /// What was promised.
    pub claims: Vec<Claim>,
    /// What was counted before the race.
    pub facts: Vec<(String, f64)>,
}

/// `who` takes at most `ns`, and `times` the time of another.
pub struct Claim {
    pub who: &'static str,
    pub ns: f64,
    pub of: Option<(f64, &'static str)>,
}

/// One who competes.
pub struct Contender<'a> {
    name: &'static str,
    /// What took how long.
    turn: Box<dyn FnMut() -> (u64, Duration) + 'a>,
}

impl<'a> Contender<'a> {
    /// Each `operate` is so many units.
    pub fn new(name: &'static str, units: usize, mut operate: impl FnMut() + 'a) -> Self {
        let turn = move || {
            let (mut done, mut more) = (0, 1);
            let began = Instant::now();
            loop {
                for _ in 0..more {
                    operate();
                }
                done += more;
                let elapsed = began.elapsed();
                if elapsed >= TURN {
                    return (done * units as u64, elapsed);
                }
                // The clock costs as much as a short operation: it is looked at ever less.
                more = done;
            }
        };
        Self {
            name,
            turn: Box::new(turn),
        }
    }

    /// Goes through all that it will touch, before the race.
    pub fn warmed(mut self, operations: usize) -> Self {
        let mut done = 0;
        while done < operations as u64 {
            done += (self.turn)().0;
        }
        self
    }

    /// As [`new`](Self::new), with an `operate` that says what of itself counts.
    pub fn timed(
        name: &'static str,
        units: usize,
        mut operate: impl FnMut() -> Duration + 'a,
    ) -> Self {
        let turn = move || {
            let (mut done, mut took) = (0, Duration::ZERO);
            while took < TURN {
                took += operate();
                done += units as u64;
            }
            (done, took)
        };
        Self {
            name,
            turn: Box::new(turn),
        }
    }
}

/// Nanoseconds of a unit.
#[derive(Clone, Copy)]
struct Figures {
    name: &'static str,
    min: f64,
    median: f64,
}

/// The table, or the object, as it grows.
pub struct Run {
    filter: String,
    contenders: Vec<String>,
    rounds: usize,
    /// With `--json` only.
    cells: Option<Vec<Value>>,
    load_before: String,
}

impl Run {
    /// For the cells whose name has `filter` in it, and `contenders` with one of these parts
    /// in theirs, or all if there are none.
    pub fn begin(filter: String, contenders: Vec<String>, rounds: usize, json: bool) -> Self {
        let load_before = load();
        if !json {
            println!("load {load_before}");
            println!(
                "{:<26} {:<22} {:>11} {:>11}  {:<14} ours is faster by",
                "cell", "contender", "min ns", "median ns", "of"
            );
        }
        Self {
            filter,
            contenders,
            rounds: rounds.max(1),
            cells: json.then(Vec::new),
            load_before,
        }
    }

    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    /// Lets a cell's contenders take turns, if the cell is wanted.
    pub fn cell<'a>(&mut self, name: &str, cell: impl FnOnce() -> Cell<'a>) {
        if !self.wants(name) {
            return;
        }
        let Cell {
            unit,
            mut contenders,
            claims,
            facts,
        } = cell();
        contenders.retain(|contender| {
            let is_part = |part: &String| contender.name.contains(part);
            self.contenders.is_empty() || self.contenders.iter().any(is_part)
        });
        if contenders.is_empty() {
            return;
        }
        let all = contenders.len();
        let mut times = vec![Vec::with_capacity(self.rounds); all];
        for round in 0..=self.rounds {
            // Another one begins each round, and every second round goes the other way around:
            // whoever comes after one that leaves many lines to be written back pays for it.
            for turn in 0..all {
                let turn = if round % 2 == 0 { turn } else { all - turn };
                let at = (round + turn) % all;
                let (units, took) = (contenders[at].turn)();
                // The first round warms up.
                if round > 0 {
                    times[at].push(took.as_secs_f64() * 1e9 / units as f64);
                }
            }
        }
        let figures: Vec<Figures> = contenders
            .iter()
            .zip(&mut times)
            .map(|(contender, times)| {
                times.sort_by(f64::total_cmp);
                Figures {
                    name: contender.name,
                    min: times[0],
                    median: times[times.len() / 2],
                }
            })
            .collect();
        let verdicts = claims.iter().filter_map(|claim| verdict(claim, &figures));
        let outcome = Outcome {
            name,
            unit,
            verdicts: verdicts.collect(),
            figures,
            facts,
        };
        match &mut self.cells {
            Some(cells) => cells.push(outcome.object()),
            None => outcome.print(),
        }
    }

    pub fn end(self) {
        let load_after = load();
        match self.cells {
            Some(cells) => println!(
                "{}",
                json!({
                    "load_before": self.load_before,
                    "load_after": load_after,
                    "rounds": self.rounds,
                    "cells": cells,
                })
            ),
            None => println!("\nload {load_after}"),
        }
    }
}

/// A claim and what came of it.
struct Verdict {
    text: String,
    /// What is allowed, and what was measured: the mins, the medians.
    min: (f64, f64),
    median: (f64, f64),
}

impl Verdict {
    fn word(&self) -> &'static str {
        match (self.min.1 <= self.min.0, self.median.1 <= self.median.0) {
            (true, true) => "holds",
            (true, false) => "holds for the min only",
            (false, true) => "holds for the median only",
            (false, false) => "FAILS",
        }
    }
}

/// `None` if one of the two did not compete.
fn verdict(claim: &Claim, figures: &[Figures]) -> Option<Verdict> {
    let find = |name: &str| figures.iter().find(|figures| figures.name == name).copied();
    let who = find(claim.who)?;
    let other = match claim.of {
        Some((_, name)) => Some(find(name)?),
        None => None,
    };
    let times = claim.of.map_or(0.0, |(times, _)| times);
    let limit = |of: fn(Figures) -> f64| claim.ns + times * other.map_or(0.0, of);
    let mut parts = Vec::new();
    if claim.ns > 0.0 {
        parts.push(format!("{} ns", claim.ns));
    }
    if let Some((times, name)) = claim.of {
        parts.push(format!("{times:.3} x {name}"));
    }
    Some(Verdict {
        text: format!("{} <= {}", claim.who, parts.join(" + ")),
        min: (limit(|figures| figures.min), who.min),
        median: (limit(|figures| figures.median), who.median),
    })
}

/// What came of a cell.
struct Outcome<'a> {
    name: &'a str,
    unit: &'static str,
    figures: Vec<Figures>,
    facts: Vec<(String, f64)>,
    verdicts: Vec<Verdict>,
}

impl Outcome<'_> {
    fn print(&self) {
        println!();
        let (cell, ours) = (self.name, self.figures[0]);
        for Figures { name, min, median } in &self.figures {
            println!(
                "{cell:<26} {name:<22} {min:>11.1} {median:>11.1}  {:<14} x{:>7.2} x{:>7.2}",
                self.unit,
                min / ours.min,
                median / ours.median
            );
        }
        for (name, count) in &self.facts {
            println!("{cell:<26} counted: {name}: {count}");
        }
        for verdict in &self.verdicts {
            let (min, median) = (verdict.min, verdict.median);
            println!(
                "{cell:<26} {}: {:.1} of {:.1}, {:.1} of {:.1}: {}",
                verdict.text,
                min.1,
                min.0,
                median.1,
                median.0,
                verdict.word()
            );
        }
    }

    fn object(&self) -> Value {
        let ours = self.figures[0];
        let row = |figures: &Figures| {
            json!({
                "contender": figures.name,
                "min_ns": figures.min,
                "median_ns": figures.median,
                "min_vs_ours": figures.min / ours.min,
                "median_vs_ours": figures.median / ours.median,
            })
        };
        let claim = |verdict: &Verdict| {
            json!({
                "claim": verdict.text,
                "min_allowed_ns": verdict.min.0,
                "min_ns": verdict.min.1,
                "median_allowed_ns": verdict.median.0,
                "median_ns": verdict.median.1,
                "verdict": verdict.word(),
            })
        };
        let facts = self.facts.iter().cloned();
        let facts = facts.map(|(name, count)| (name, json!(count)));
        json!({
            "cell": self.name,
            "of": self.unit,
            "rows": self.figures.iter().map(row).collect::<Vec<_>>(),
            "counted": facts.collect::<serde_json::Map<_, _>>(),
            "claims": self.verdicts.iter().map(claim).collect::<Vec<_>>(),
        })
    }
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &'static str, min: f64, median: f64) -> Figures {
        Figures { name, min, median }
    }

    #[test]
    fn a_claim_is_judged_by_min_and_median_and_not_without_its_other() {
        let claim = Claim {
            who: "ours",
            ns: 5.0,
            of: Some((1.2, "memcpy")),
        };
        let ours = figures("ours", 16.9, 17.1);
        let memcpy = figures("memcpy", 10.0, 10.0);
        let verdict = verdict(&claim, &[ours, memcpy]).expect("both are there");
        assert_eq!(verdict.min.0, 17.0);
        assert_eq!(verdict.word(), "holds for the min only");
        assert!(super::verdict(&claim, &[ours]).is_none());
    }
}
