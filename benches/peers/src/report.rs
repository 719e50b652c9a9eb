//! The table for people, the objects for programs.

use std::fmt::Write;

use serde_json::json;

use crate::bounds::{Verdict, Worst};
use crate::race::Row;
use crate::roster::BASELINES;
use crate::solo::Line;

/// Bytes.
pub const KIB: usize = 1 << 10;
/// Bytes.
pub const MIB: usize = 1 << 20;

/// `64 KiB`.
pub fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes >= MIB && bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        _ if bytes >= KIB && bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} B"),
    }
}

/// How often the median of `row` is that of the contender `name` in the same cell.
fn ratio(row: &Row, rows: &[Row], name: &str) -> Option<f64> {
    let is_it = |other: &&Row| other.contender == name && other.cell == row.cell;
    let other = rows.iter().find(is_it)?;
    Some(row.p50_ns / other.p50_ns)
}

/// Nanoseconds with three digits or so, in the unit that keeps them short.
fn time(ns: f64) -> String {
    match ns {
        _ if ns < 1e2 => format!("{ns:.1} ns"),
        _ if ns < 1e4 => format!("{ns:.0} ns"),
        _ if ns < 1e7 => format!("{:.1} us", ns / 1e3),
        _ if ns < 1e10 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.1} s", ns / 1e9),
    }
}

fn times(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(ratio) if ratio < 0.1 => format!("{ratio:.4}"),
        Some(ratio) if ratio < 10.0 => format!("{ratio:.2}"),
        Some(ratio) => format!("{ratio:.0}"),
    }
}

fn count(each: f64) -> String {
    match each {
        _ if each == 0.0 => "0".to_owned(),
        _ if each < 0.01 => "<0.01".to_owned(),
        _ if each < 100.0 => format!("{each:.2}"),
        _ => format!("{each:.0}"),
    }
}

fn mebibytes(bytes: i64) -> String {
    format!("{:.1}", bytes as f64 / MIB as f64)
}

/// One cell of the table, aligned.
pub fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let cell = &first.cell;
    let touched = if cell.touched {
        "every page touched"
    } else {
        "untouched"
    };
    let threads = if cell.threads == 1 {
        "thread"
    } else {
        "threads"
    };
    let mut text = format!(
        "\n{} · {} · {touched} · {} {threads}\n",
        cell.workload,
        size(cell.bytes),
        cell.threads
    );
    let mut line = |fields: [&str; 10]| {
        let [contender, rest @ ..] = fields;
        let _ = write!(text, "  {contender:<20}");
        for (field, width) in rest.iter().zip([10, 10, 10, 9, 9, 11, 11, 10, 9]) {
            let _ = write!(text, "{field:>width$}");
        }
        text.push('\n');
    };
    line([
        "contender",
        "min",
        "p50",
        "p99",
        "faults",
        "heap",
        "x mimalloc",
        "x glibc",
        "kept MiB",
        "batches",
    ]);
    for row in rows {
        let [mimalloc, glibc] = BASELINES.map(|name| times(ratio(row, rows, name)));
        line([
            &row.contender,
            &time(row.min_ns),
            &time(row.p50_ns),
            &time(row.p99_ns),
            &count(row.faults),
            &count(row.heap_blocks),
            &mimalloc,
            &glibc,
            &mebibytes(row.kept_bytes),
            &row.batches.to_string(),
        ]);
    }
    text
}

/// All rows as JSON objects, with their ratios.
pub fn objects(rows: &[Row]) -> Vec<serde_json::Value> {
    let object = |row: &Row| {
        let mut object = json!(row);
        let [mimalloc, glibc] = BASELINES.map(|name| ratio(row, rows, name));
        object["p50_vs_mimalloc"] = json!(mimalloc);
        object["p50_vs_glibc"] = json!(glibc);
        object
    };
    rows.iter().map(object).collect()
}

/// Figures in the order of their columns, each with its heading. The end of a name is its
/// unit.
const COLUMNS: [(&str, &str); 23] = [
    ("min_ns", "min"),
    ("operations", "operations"),
    ("mismatches", "mismatches"),
    ("live_bytes", "live MiB"),
    ("peak_live_bytes", "peak MiB"),
    ("held_bytes", "held MiB"),
    ("held_ratio", "held/peak"),
    ("left_bytes", "left MiB"),
    ("spike_bytes", "spike MiB"),
    ("back_bytes", "back MiB"),
    ("steps_bytes", "steps MiB"),
    ("trimmed_bytes", "trimmed MiB"),
    ("trimmed_ratio", "trimmed/live"),
    ("quiet_p50_ns", "quiet p50"),
    ("quiet_p99_ns", "quiet p99"),
    ("p50_ns", "p50"),
    ("p99_ns", "p99"),
    ("p99_ratio", "p99/p50"),
    ("max_ns", "max"),
    ("pairs", "pairs"),
    ("trim_ns", "trim took"),
    ("played_ns", "played in"),
    ("gone_bytes", "gone MiB"),
];

fn figure(name: &str, value: f64) -> String {
    match name.rsplit('_').next() {
        Some("ns") => time(value),
        Some("bytes") => format!("{:.1}", value / MIB as f64),
        Some("ratio") => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// The lines of one measurement, aligned.
pub fn lines(lines: &[Line]) -> String {
    let Some(first) = lines.first() else {
        return String::new();
    };
    let has = |name: &str| lines.iter().any(|line| line.figures.contains_key(name));
    let names = lines.iter().flat_map(|line| line.figures.keys());
    for name in names {
        let is_known = COLUMNS.iter().any(|(known, _)| known == name);
        assert!(is_known, "{name} has no column");
    }
    let columns: Vec<_> = COLUMNS.iter().filter(|(name, _)| has(name)).collect();
    let mut text = format!(
        "\n{}\n  {:<20}",
        first.cell.replace('/', " · "),
        "contender"
    );
    for (_, heading) in &columns {
        let _ = write!(text, "{heading:>13}");
    }
    text.push('\n');
    for line in lines {
        let _ = write!(text, "  {:<20}", line.contender);
        for (name, _) in &columns {
            let value = line.figures.get(*name);
            let cell = value.map_or("-".to_owned(), |value| figure(name, *value));
            let _ = write!(text, "{cell:>13}");
        }
        text.push('\n');
    }
    text
}

/// What was promised and what came of it, aligned.
pub fn verdicts(verdicts: &[Verdict]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n{:<60}{:<14}{:>8}{:>7}{:>16}{:>16}  worst\n",
        "promised", "of", "at most", "cells", "min", "p50"
    );
    let judged = |worst: &Worst| {
        let word = if worst.is_kept { "ok" } else { "missed" };
        format!("{} {word}", times(Some(worst.figure)))
    };
    for verdict in verdicts {
        let _ = write!(
            text,
            "{:<60}{:<14}{:>8.2}{:>7}",
            verdict.promise, verdict.contender, verdict.at_most, verdict.cells
        );
        let Some(min) = &verdict.min else {
            text.push_str("    not measured\n");
            continue;
        };
        let p50 = verdict.p50.as_ref();
        let worst = p50.unwrap_or(min);
        let p50 = p50.map_or("-".to_owned(), judged);
        let _ = writeln!(text, "{:>16}{p50:>16}  {}", judged(min), worst.cell);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::Cell;

    fn row(contender: &'static str, p50_ns: f64) -> Row {
        Row {
            cell: Cell {
                workload: "pair".into(),
                bytes: 64 << 10,
                touched: false,
                threads: 1,
            },
            contender: contender.to_owned(),
            min_ns: p50_ns,
            p50_ns,
            p99_ns: p50_ns,
            batches: 7,
            faults: 0.0,
            heap_blocks: 1.0,
            kept_bytes: -(1 << 20),
        }
    }

    #[test]
    fn ratios_are_of_the_same_cell_and_absent_without_their_baseline() {
        let rows = [row("slab buffer", 5.0), row("mimalloc", 20.0)];
        let objects = objects(&rows);
        assert_eq!(objects[0]["p50_vs_mimalloc"], 0.25);
        assert!(objects[0]["p50_vs_glibc"].is_null());
    }

    #[test]
    fn lines_have_the_columns_that_any_of_them_has_in_their_units() {
        let line = |contender: &str, figures: &[(&str, f64)]| Line {
            cell: "held/drift".to_owned(),
            contender: contender.to_owned(),
            figures: figures
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
        };
        let text = lines(&[
            line(
                "pool buffer",
                &[("held_bytes", 3.5e6), ("played_ns", 2.5e10)],
            ),
            line(
                "(BFC's rule)",
                &[("held_bytes", 7e6), ("held_ratio", 1.125)],
            ),
        ]);
        let words: Vec<Vec<&str>> = text
            .lines()
            .skip(2)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            words,
            [
                vec!["contender", "held", "MiB", "held/peak", "played", "in"],
                vec!["pool", "buffer", "3.3", "-", "25.0", "s"],
                vec!["(BFC's", "rule)", "6.7", "1.12", "-"],
            ],
            "{text}"
        );
        let widths: Vec<_> = text.lines().skip(2).map(str::len).collect();
        assert!(widths.iter().all(|&width| width == widths[0]), "{text}");
    }

    #[test]
    fn a_verdict_says_ok_missed_or_not_measured() {
        let worst = |figure, is_kept| Worst {
            figure,
            cell: "pair/4KiB/untouched/1".to_owned(),
            is_kept,
        };
        let verdict = |min, p50| Verdict {
            promise: "pairs",
            contender: "pool buffer",
            at_most: 1.0,
            cells: 1,
            min,
            p50,
        };
        let text = verdicts(&[
            verdict(Some(worst(0.5, true)), Some(worst(1.5, false))),
            verdict(Some(worst(0.25, true)), None),
            verdict(None, None),
        ]);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert!(
            lines[0].ends_with("0.50 ok     1.50 missed  pair/4KiB/untouched/1"),
            "{text}"
        );
        assert!(lines[1].contains("0.25 ok"), "{text}");
        assert!(lines[2].ends_with("not measured"), "{text}");
        assert_eq!(verdicts(&[]), "");
    }

    #[test]
    fn the_table_is_aligned() {
        let text = table(&[
            row("slab buffer", 5.0),
            row("metered slab buffer", 123_456.7),
        ]);
        let widths: Vec<_> = text
            .lines()
            .skip(2)
            .map(|line| line.chars().count())
            .collect();
        assert_eq!(widths.len(), 3);
        assert!(widths.iter().all(|&width| width == widths[0]), "{text}");
        assert!(
            text.contains("pair · 64 KiB · untouched · 1 thread\n"),
            "{text}"
        );
        assert!(text.contains("123.5 us"), "{text}");
        assert!(text.contains("-1.0"), "{text}");
    }
}
