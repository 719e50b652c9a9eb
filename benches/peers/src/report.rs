//! The table for people, the objects for programs.

use std::fmt::Write;

use serde_json::json;

use crate::race::Row;
use crate::roster::BASELINES;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// `64 KiB`.
pub fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes >= MIB && bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        _ if bytes >= KIB && bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} B"),
    }
}

/// How often the median of `row` is that of the contender `name` in the same cell.
fn ratio(row: &Row, cell: &[Row], name: &str) -> Option<f64> {
    let other = cell.iter().find(|other| other.contender == name)?;
    Some(row.p50_ns / other.p50_ns)
}

/// Nanoseconds with three digits or so, in the unit that keeps them short.
fn time(ns: f64) -> String {
    match ns {
        _ if ns < 1e2 => format!("{ns:.1} ns"),
        _ if ns < 1e4 => format!("{ns:.0} ns"),
        _ if ns < 1e7 => format!("{:.1} us", ns / 1e3),
        _ => format!("{:.1} ms", ns / 1e6),
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
    let cell = first.cell;
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
            row.contender,
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

/// One cell as JSON objects, one a row.
pub fn objects(rows: &[Row]) -> Vec<serde_json::Value> {
    let object = |row: &Row| {
        let [mimalloc, glibc] = BASELINES.map(|name| ratio(row, rows, name));
        json!({
            "workload": row.cell.workload,
            "bytes": row.cell.bytes,
            "touched": row.cell.touched,
            "threads": row.cell.threads,
            "contender": row.contender,
            "min_ns": row.min_ns,
            "p50_ns": row.p50_ns,
            "p99_ns": row.p99_ns,
            "batches": row.batches,
            "faults_per_op": row.faults,
            "heap_blocks_per_op": row.heap_blocks,
            "kept_bytes": row.kept_bytes,
            "p50_vs_mimalloc": mimalloc,
            "p50_vs_glibc": glibc,
        })
    };
    rows.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::Cell;

    fn row(contender: &'static str, p50_ns: f64) -> Row {
        Row {
            cell: Cell {
                workload: "pair",
                bytes: 64 << 10,
                touched: false,
                threads: 1,
            },
            contender,
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
