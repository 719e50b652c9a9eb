//! What was promised, and what came of it.
//!
//! ```text
//!   BOUNDS (here: data)   rows, lines ──▶ Verdict: the figure and where it was worst
//! ```
//!
//! A bound of times is judged twice, for the fastest batches and for the medians, and by
//! its worst cell. What was not measured in this run is said to be so.

use serde::Serialize;

use crate::race::Row;
use crate::report::{KIB, MIB};
use crate::solo::Line;
use crate::workloads::Cell;

/// A figure that must not be above a bound.
pub struct Bound {
    /// What is promised, for people.
    pub promise: &'static str,
    /// Of whom.
    pub contender: &'static str,
    /// What is looked at.
    pub measure: Measure,
    /// The bound.
    pub at_most: f64,
}

/// What a bound is about.
pub enum Measure {
    /// Its time as a multiple of that of a rival in the same cell, in cells like this.
    Rival(&'static str, fn(&Cell) -> bool),
    /// Its time in the first cell as a multiple of that in the second, by their names.
    Cells(&'static str, &'static str),
    /// A figure of a measurement that has a process of its own.
    Figure(&'static str, &'static str),
}

fn is_pair(cell: &Cell, touched: bool, sizes: std::ops::RangeInclusive<usize>) -> bool {
    cell.workload == "pair"
        && cell.touched == touched
        && cell.threads == 1
        && sizes.contains(&cell.bytes)
}

/// All of them. A new one is an entry here.
pub const BOUNDS: &[Bound] = &[
    Bound {
        promise: "pairs of 4 KiB to 1 MiB: time / mimalloc's",
        contender: "pool buffer",
        measure: Measure::Rival("mimalloc", |cell| is_pair(cell, false, 4 * KIB..=MIB)),
        at_most: 1.0,
    },
    Bound {
        promise: "pairs of 1 MiB to 32 MiB: time / mimalloc's",
        contender: "pool buffer",
        measure: Measure::Rival("mimalloc", |cell| is_pair(cell, false, MIB..=32 * MIB)),
        at_most: 1.0 / 3.0,
    },
    Bound {
        promise: "pairs above 32 MiB: time / glibc's",
        contender: "pool buffer",
        measure: Measure::Rival("glibc", |cell| {
            is_pair(cell, false, 32 * MIB + 1..=usize::MAX)
        }),
        at_most: 0.1,
    },
    Bound {
        promise: "pairs from 1 MiB, touched: time / fresh pages'",
        contender: "pool buffer",
        measure: Measure::Rival("fresh pages", |cell| is_pair(cell, true, MIB..=usize::MAX)),
        at_most: 0.05,
    },
    Bound {
        promise: "larson (B4), 1 and 2 threads: time / mimalloc's",
        contender: "pool buffer",
        measure: Measure::Rival("mimalloc", |cell| cell.workload == "larson"),
        at_most: 1.0,
    },
    Bound {
        promise: "xmalloc (B5), 1 and 2 threads: time / mimalloc's",
        contender: "pool buffer",
        measure: Measure::Rival("mimalloc", |cell| cell.workload == "xmalloc"),
        at_most: 1.0,
    },
    Bound {
        promise: "random (B2): held / peak live",
        contender: "pool buffer",
        measure: Measure::Figure("held/random", "held_ratio"),
        at_most: 1.15,
    },
    Bound {
        promise: "churn (B3): held / peak live",
        contender: "pool buffer",
        measure: Measure::Figure("held/churn", "held_ratio"),
        at_most: 1.25,
    },
    Bound {
        promise: "prefill and KV (B10): held / peak live",
        contender: "pool buffer",
        measure: Measure::Figure("held/prefill", "held_ratio"),
        at_most: 1.15,
    },
    Bound {
        promise: "batch drift (B10): held / peak live",
        contender: "pool buffer",
        measure: Measure::Figure("held/drift", "held_ratio"),
        at_most: 1.02,
    },
    Bound {
        promise: "after a spike of large blocks and a trim: resident / live",
        contender: "pool buffer",
        measure: Measure::Figure("spike/16MiB", "trimmed_ratio"),
        at_most: 1.2,
    },
    Bound {
        promise: "after a spike of small blocks and a trim: resident / live",
        contender: "pool buffer",
        measure: Measure::Figure("spike/16KiB", "trimmed_ratio"),
        at_most: 1.2,
    },
    Bound {
        promise: "small pairs while 1 GiB is trimmed: p99 / p50",
        contender: "pool buffer",
        measure: Measure::Figure("trim/64KiB", "p99_ratio"),
        at_most: 10.0,
    },
    Bound {
        promise: "large pairs while 1 GiB is trimmed: p99 / p50",
        contender: "pool buffer",
        measure: Measure::Figure("trim/4MiB", "p99_ratio"),
        at_most: 10.0,
    },
    Bound {
        promise: "arena: a block of 100,000 / a block of 1,000",
        contender: "arena buffer",
        measure: Measure::Cells("take@100000/64B/untouched/1", "take@1000/64B/untouched/1"),
        at_most: 2.0,
    },
    Bound {
        promise: "arena: end_step behind 100,000 blocks / behind 10",
        contender: "arena buffer",
        measure: Measure::Cells("end@100000/64B/untouched/1", "end@10/64B/untouched/1"),
        at_most: 2.0,
    },
];

/// A figure, where it was the worst, and whether that will do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// The figure.
    pub figure: f64,
    /// The cell.
    pub cell: String,
    /// Is it at most the bound?
    pub is_kept: bool,
}

/// What came of a bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What was promised.
    pub promise: &'static str,
    /// Of whom.
    pub contender: &'static str,
    /// The bound.
    pub at_most: f64,
    /// Cells that were looked at.
    pub cells: usize,
    /// By the fastest batches, or the one figure that there is.
    pub min: Option<Worst>,
    /// By the medians. None where there is one figure only.
    pub p50: Option<Worst>,
}

impl Bound {
    /// What came of it in these rows and lines.
    pub fn verdict(&self, rows: &[Row], lines: &[Line]) -> Verdict {
        let (min, p50) = match self.measure {
            Measure::Rival(rival, is_meant) => of_rival(rows, self.contender, rival, is_meant),
            Measure::Cells(first, second) => of_cells(rows, self.contender, first, second),
            Measure::Figure(cell, figure) => {
                let is_meant = |line: &&Line| line.cell == cell && line.contender == self.contender;
                let line = lines.iter().find(is_meant);
                let found = line.and_then(|line| line.figures.get(figure));
                let figures = found.map(|figure| (*figure, cell.to_owned()));
                (Vec::from_iter(figures), Vec::new())
            }
        };
        Verdict {
            promise: self.promise,
            contender: self.contender,
            at_most: self.at_most,
            cells: min.len(),
            min: self.worst(min),
            p50: self.worst(p50),
        }
    }

    fn worst(&self, figures: Vec<(f64, String)>) -> Option<Worst> {
        let worst = figures
            .into_iter()
            .max_by(|(one, _), (other, _)| one.total_cmp(other));
        worst.map(|(figure, cell)| Worst {
            figure,
            cell,
            is_kept: figure <= self.at_most,
        })
    }
}

/// A figure for each cell: of the fastest batches, and of the medians.
type Both = (Vec<(f64, String)>, Vec<(f64, String)>);

fn of_rival(rows: &[Row], contender: &str, rival: &str, is_meant: fn(&Cell) -> bool) -> Both {
    let meant = rows
        .iter()
        .filter(|row| row.contender == contender && is_meant(&row.cell));
    let pairs = meant.filter_map(|row| {
        let is_rival = |other: &&Row| other.contender == rival && other.cell == row.cell;
        Some((row, rows.iter().find(is_rival)?))
    });
    let figures = pairs.map(|(row, rival)| {
        let name = row.cell.name();
        (
            (row.min_ns / rival.min_ns, name.clone()),
            (row.p50_ns / rival.p50_ns, name),
        )
    });
    figures.unzip()
}

fn of_cells(rows: &[Row], contender: &str, first: &str, second: &str) -> Both {
    let named = |name: &str| {
        let is_meant = |row: &&Row| row.contender == contender && row.cell.name() == name;
        rows.iter().find(is_meant)
    };
    let both = named(first).zip(named(second));
    let figures = both.map(|(one, other)| {
        (
            (one.min_ns / other.min_ns, first.to_owned()),
            (one.p50_ns / other.p50_ns, first.to_owned()),
        )
    });
    figures.into_iter().unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(workload: &'static str, bytes: usize, contender: &str, min_ns: f64, p50_ns: f64) -> Row {
        Row {
            cell: Cell {
                workload: workload.into(),
                bytes,
                touched: false,
                threads: 1,
            },
            contender: contender.to_owned(),
            min_ns,
            p50_ns,
            p99_ns: p50_ns,
            batches: 1,
            faults: 0.0,
            heap_blocks: 0.0,
            kept_bytes: 0,
        }
    }

    #[test]
    fn a_bound_is_judged_by_its_worst_cell_for_the_min_and_for_the_median() {
        let bound = Bound {
            promise: "",
            contender: "ours",
            measure: Measure::Rival("theirs", |cell| cell.workload == "pair"),
            at_most: 1.0,
        };
        let rows = [
            row("pair", 4096, "ours", 5.0, 30.0),
            row("pair", 4096, "theirs", 10.0, 20.0),
            row("pair", 8192, "ours", 9.0, 9.0),
            row("pair", 8192, "theirs", 10.0, 10.0),
            row("larson", 8192, "ours", 90.0, 90.0),
            row("larson", 8192, "theirs", 10.0, 10.0),
            row("pair", 16384, "ours", 90.0, 90.0),
        ];
        let verdict = bound.verdict(&rows, &[]);
        assert_eq!(verdict.cells, 2, "a cell without the rival says nothing");
        let (min, p50) = (verdict.min.unwrap(), verdict.p50.unwrap());
        assert_eq!((min.figure, min.is_kept), (0.9, true));
        assert_eq!((p50.figure, p50.is_kept), (1.5, false));
        assert_eq!(min.cell, "pair/8KiB/untouched/1");
        assert_eq!(p50.cell, "pair/4KiB/untouched/1");
    }

    #[test]
    fn what_was_not_measured_is_neither_kept_nor_missed() {
        for bound in BOUNDS {
            let verdict = bound.verdict(&[], &[]);
            assert_eq!((verdict.cells, verdict.min, verdict.p50), (0, None, None));
        }
    }

    #[test]
    fn two_cells_of_one_contender_and_one_figure_are_compared_too() {
        let cells = Bound {
            promise: "",
            contender: "arena buffer",
            measure: Measure::Cells("end@1000/64B/untouched/1", "end@10/64B/untouched/1"),
            at_most: 2.0,
        };
        let rows = [
            row("end@1000", 64, "arena buffer", 30.0, 33.0),
            row("end@10", 64, "arena buffer", 10.0, 22.0),
        ];
        let verdict = cells.verdict(&rows, &[]);
        assert_eq!(verdict.min.unwrap().figure, 3.0);
        assert_eq!(verdict.p50.unwrap().figure, 1.5);

        let figure = Bound {
            promise: "",
            contender: "pool buffer",
            measure: Measure::Figure("held/drift", "held_ratio"),
            at_most: 1.25,
        };
        let line = |contender: &str, ratio| Line {
            cell: "held/drift".to_owned(),
            contender: contender.to_owned(),
            figures: [("held_ratio".to_owned(), ratio)].into(),
        };
        let verdict = figure.verdict(&[], &[line("mimalloc", 9.0), line("pool buffer", 1.25)]);
        assert!(verdict.min.unwrap().is_kept);
        assert_eq!(verdict.p50, None);
    }
}
