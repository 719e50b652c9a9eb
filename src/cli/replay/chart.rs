//! How full the cache was, over the requests, in a few rows of 80 columns.
//!
//! ```text
//!   2000 |        ░░░░░░░░░░░░░░░░
//!        |    ░░░░░░░░░░░░░░░░░░░░
//!        |  ░░░░░░▂▂░░░░░░░░▄▄░░░░     used from below, idle on it, free above
//!      0 |▃▃▃▃▃▃▃▃██▃▃▃▃▃▃▃▃██▃▃▃▃
//!        +------------------------
//!         requests 1 to 12031
//! ```
//!
//! A column is the mean of its requests. Used blocks are drawn in eighths of a row, so
//! that a few of very many can still be seen.

use std::io::{self, Write};

use crate::cli::table::COLUMNS;

const ROWS: usize = 10;

/// Nothing up to a full cell, in eighths.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Blocks by what they are, when a request had been let in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Occupancy {
    /// In the tables of sequences.
    pub(super) used: u32,
    /// Held by nobody, kept for their contents.
    pub(super) idle: u32,
}

/// Means of one column, as parts of the capacity.
#[derive(Clone, Copy)]
struct Column {
    used: f64,
    kept: f64,
}

impl Column {
    fn mean(samples: &[Occupancy], capacity: f64) -> Self {
        let parts = samples.len() as f64 * capacity;
        let sum = |part: fn(&Occupancy) -> u32| {
            let sum: u64 = samples.iter().map(|sample| u64::from(part(sample))).sum();
            sum as f64 / parts
        };
        let used = sum(|sample| sample.used);
        Self {
            used,
            kept: used + sum(|sample| sample.idle),
        }
    }

    /// The cell of row `row`, counted from below.
    fn cell(self, row: usize) -> char {
        let (floor, rows) = (row as f64, ROWS as f64);
        let eighths = ((self.used * rows - floor) * 8.0).ceil();
        if eighths > 0.0 {
            #[expect(clippy::cast_possible_truncation, reason = "a whole number up to 8")]
            let eighths = eighths.min(8.0) as usize;
            return EIGHTHS[eighths];
        }
        if self.kept * rows >= floor + 0.5 {
            '░'
        } else {
            ' '
        }
    }
}

/// Draws the chart of `samples`, one for each request, in at most 80 columns.
pub(super) fn draw(samples: &[Occupancy], capacity: usize, out: &mut impl Write) -> io::Result<()> {
    let top = capacity.to_string();
    let label = top.len() + 2;
    let width = samples.len().min(COLUMNS - label - 2);
    let columns: Vec<Column> = (0..width)
        .map(|column| {
            let edge = |column: usize| column * samples.len() / width;
            Column::mean(&samples[edge(column)..edge(column + 1)], capacity as f64)
        })
        .collect();
    writeln!(
        out,
        "blocks: █ used  ░ idle, kept for their prefixes  (rest) free"
    )?;
    for row in (0..ROWS).rev() {
        let name = match row {
            0 => "0",
            _ if row + 1 == ROWS => &top,
            _ => "",
        };
        let cells: String = columns.iter().map(|column| column.cell(row)).collect();
        writeln!(out, "{name:>label$} |{}", cells.trim_end())?;
    }
    writeln!(out, "{:label$} +{}", "", "-".repeat(width))?;
    writeln!(out, "{:label$}  requests 1 to {}", "", samples.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(samples: &[Occupancy], capacity: usize) -> Vec<String> {
        let mut out = Vec::new();
        draw(samples, capacity, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(String::from).collect()
    }

    #[test]
    fn used_stands_below_idle_and_a_few_blocks_are_seen() {
        let at = |used, idle| Occupancy { used, idle };
        let lines = drawn(&[at(0, 0), at(1, 0), at(50, 25), at(5, 95)], 100);
        let rows: Vec<&str> = lines[1..=ROWS]
            .iter()
            .map(|line| line.split_once('|').unwrap().1)
            .collect();
        assert_eq!(
            rows,
            [
                "   ░",
                "   ░",
                "  ░░",
                "  ░░",
                "  ░░",
                "  █░",
                "  █░",
                "  █░",
                "  █░",
                " ▁█▄",
            ]
        );
        assert!(lines[1].starts_with("  100 |"), "{lines:?}");
        assert!(lines[ROWS].starts_with("    0 |"), "{lines:?}");
    }

    #[test]
    fn a_column_is_the_mean_of_its_requests() {
        // Twice as many requests as columns: one empty, one full cache, and so on.
        let full = Occupancy {
            used: 1000,
            idle: 0,
        };
        let samples = [Occupancy::default(), full].repeat(COLUMNS - 8);
        let lines = drawn(&samples, 1000);
        assert_eq!(lines[5].matches('█').count(), 0);
        assert_eq!(lines[6].matches('█').count(), COLUMNS - 8);
    }

    #[test]
    fn every_capacity_fits_80_columns() {
        for capacity in [1, 2_000, u32::MAX as usize] {
            for requests in [1, 79, 80, 81, 12_031] {
                let used = u32::try_from(capacity).unwrap();
                for line in drawn(&vec![Occupancy { used, idle: 0 }; requests], capacity) {
                    assert!(line.chars().count() <= COLUMNS, "{line}");
                }
            }
        }
    }
}
