//! How full something was over time, in a few rows.
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
//! Used is drawn in eighths of a row, so that a little of very much can still be seen.

use std::io::{self, Write};

use super::text::width;

const ROWS: usize = 10;

/// Nothing up to a full cell, in eighths.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How much there was of what, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Level {
    /// Somebody's.
    pub(super) used: u64,
    /// Nobody's, and kept.
    pub(super) idle: u64,
}

/// What a column says of the moments that fall into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fold {
    /// Their mean: what is usual.
    Mean,
    /// The most that was used, and the most that was used and idle: no peak is lost.
    Most,
}

/// A chart, but for what it shows.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    /// A line that says what the marks are.
    pub(super) legend: &'a str,
    /// What the upper edge stands for, and how that is written.
    pub(super) top: (u64, String),
    /// What the columns are.
    pub(super) below: &'a str,
    pub(super) fold: Fold,
    /// The whole may have so many columns.
    pub(super) columns: usize,
}

/// One column, as parts of the upper edge.
#[derive(Clone, Copy)]
struct Column {
    used: f64,
    kept: f64,
}

impl Column {
    fn of(levels: &[Level], fold: Fold, top: f64) -> Self {
        let values = |value: fn(&Level) -> u64| levels.iter().map(value);
        let folded = |value: fn(&Level) -> u64| match fold {
            Fold::Mean => values(value).sum::<u64>() as f64 / levels.len() as f64,
            Fold::Most => values(value).max().unwrap_or(0) as f64,
        };
        Self {
            used: folded(|level| level.used) / top,
            kept: folded(|level| level.used + level.idle) / top,
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

impl Chart<'_> {
    /// Draws `levels`, in their order. Every part of them that is a column wide is one.
    pub(super) fn draw(&self, levels: &[Level], out: &mut impl Write) -> io::Result<()> {
        let (top, name_of_top) = (self.top.0.max(1) as f64, &self.top.1);
        let label = width(name_of_top) + 2;
        let wide = levels.len().min(self.columns.saturating_sub(label + 2));
        let columns: Vec<Column> = (0..wide)
            .map(|column| {
                let edge = |column: usize| column * levels.len() / wide;
                Column::of(&levels[edge(column)..edge(column + 1)], self.fold, top)
            })
            .collect();
        writeln!(out, "{}", self.legend)?;
        for row in (0..ROWS).rev() {
            let name = match row {
                0 => "0",
                _ if row + 1 == ROWS => name_of_top,
                _ => "",
            };
            let cells: String = columns.iter().map(|column| column.cell(row)).collect();
            writeln!(out, "{name:>label$} |{}", cells.trim_end())?;
        }
        writeln!(out, "{:label$} +{}", "", "-".repeat(wide))?;
        writeln!(out, "{:label$}  {}", "", self.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = 80;

    fn drawn(levels: &[Level], capacity: u64, fold: Fold) -> Vec<String> {
        let chart = Chart {
            legend: "█ used  ░ idle",
            top: (capacity, capacity.to_string()),
            below: "requests",
            fold,
            columns: COLUMNS,
        };
        let mut out = Vec::new();
        chart.draw(levels, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(String::from).collect()
    }

    #[test]
    fn used_stands_below_idle_and_a_few_blocks_are_seen() {
        let at = |used, idle| Level { used, idle };
        let lines = drawn(
            &[at(0, 0), at(1, 0), at(50, 25), at(5, 95)],
            100,
            Fold::Mean,
        );
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
    fn a_column_is_the_mean_of_its_requests_or_the_most() {
        // Twice as many requests as columns: one empty, one full cache, and so on.
        let full = Level {
            used: 1000,
            idle: 0,
        };
        let levels = [Level::default(), full].repeat(COLUMNS - 8);
        let lines = drawn(&levels, 1000, Fold::Mean);
        assert_eq!(lines[5].matches('█').count(), 0);
        assert_eq!(lines[6].matches('█').count(), COLUMNS - 8);
        let lines = drawn(&levels, 1000, Fold::Most);
        assert_eq!(lines[1].matches('█').count(), COLUMNS - 8);
    }

    #[test]
    fn every_capacity_fits_80_columns() {
        for capacity in [1, 2_000, u64::from(u32::MAX)] {
            for requests in [1, 79, 80, 81, 12_031] {
                let full = Level {
                    used: capacity,
                    idle: 0,
                };
                for line in drawn(&vec![full; requests], capacity, Fold::Mean) {
                    assert!(line.chars().count() <= COLUMNS, "{line}");
                }
            }
        }
    }
}
