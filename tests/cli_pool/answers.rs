//! What the page and the object say.

use tenslab::memory::{CachingPool, PoolOptions, SharedAllocator};

use super::{KIB, MIB, TOOL, by_hand, churn, csv, recorded, written};

#[test]
fn the_numbers_of_a_trace_that_can_be_followed_by_hand() {
    let trace = written(csv(&by_hand()));
    let said = TOOL.answer(&trace.path, &[]);
    for (name, number) in [
        ("events", 7),
        ("last_event", 6),
        ("threads", 1),
        ("requests", 3),
        ("releases", 3),
        ("growths", 0),
        ("refused", 0),
        ("marks", 1),
    ] {
        assert_eq!(said["trace"][name], number, "{name} of {said}");
    }
    let sizes = &said["trace"]["sizes"];
    assert_eq!(sizes["smallest_bytes"], 2 * MIB);
    assert_eq!(sizes["median_bytes"], 3 * MIB);
    assert_eq!(sizes["largest_bytes"], 5 * MIB);
    assert_eq!(sizes["different"], 3);
    for name in [
        "peak_requested_bytes",
        "peak_live_bytes",
        "smallest_cap_bytes",
    ] {
        assert_eq!(said[name], 8 * MIB, "{name} of {said}");
    }
    assert_eq!(said["fits"], true);
    // 3 MiB are committed as 4, 2 MiB at a time; all of it is there with the second block.
    assert_eq!(said["peak_committed_bytes"], 8 * MIB, "{said}");
    assert_eq!(said["peak_event"], 1);
    assert_eq!(said["committed_to_live"], 1.0);
    assert_eq!(said["pool"]["rungs"]["committed"], 2);
    // The first block was in a cache, of which the third takes a part.
    assert_eq!(said["pool"]["rungs"]["emptied"], 1);
    // An event each: requested, live, committed.
    let series: Vec<[u64; 2]> = said["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| [&point["event"], &point["live_bytes"]].map(|n| n.as_u64().unwrap()))
        .map(|[event, live]| [event, live / MIB as u64])
        .collect();
    assert_eq!(
        series,
        [[0, 3], [1, 8], [2, 5], [3, 7], [4, 7], [5, 2], [6, 0]]
    );
    assert_eq!(said["map_event"], 1);
    assert_eq!(spans(&said), [(0, 3, "used"), (3, 5, "used")]);
    let later = TOOL.answer(&trace.path, &["--at", "3"]);
    assert_eq!(later["map_event"], 3);
    assert_eq!(
        spans(&later),
        [(0, 2, "used"), (2, 1, "dirty"), (3, 5, "used")]
    );
}

/// Offset and length in MiB, and the kind.
fn spans(said: &serde_json::Value) -> Vec<(u64, u64, &str)> {
    let mib = |value: &serde_json::Value| value.as_u64().unwrap() / MIB as u64;
    let spans = said["map"]["spans"].as_array().unwrap();
    spans
        .iter()
        .map(|span| {
            (
                mib(&span["offset_bytes"]),
                mib(&span["bytes"]),
                span["kind"].as_str().unwrap(),
            )
        })
        .collect()
}

#[test]
fn both_kinds_of_files_give_the_same_answer_and_each_time() {
    let recording = recorded(4000, |memory| churn(memory, 3000, 1..3 * MIB, 60));
    let mut json = Vec::new();
    recording.write_json(&mut json).unwrap();
    let (csv, json) = (written(csv(&recording)), written(json));
    let without_path = |path| {
        let mut said = TOOL.answer(path, &[]);
        said["trace"]["path"].take();
        said
    };
    let said = without_path(&csv.path);
    assert_eq!(said, without_path(&json.path));
    assert_eq!(said, without_path(&csv.path));
}

#[test]
fn the_numbers_are_those_of_a_pool_that_does_the_same() {
    let work = |memory: &SharedAllocator| churn(memory, 3000, 1..3 * MIB, 60);
    let recording = recorded(4000, work);
    let trace = written(csv(&recording));
    let said = TOOL.answer(&trace.path, &[]);
    let pool = CachingPool::new().unwrap();
    work(&SharedAllocator::new(pool.clone()));
    let report = pool.report();
    assert_eq!(said["peak_committed_bytes"], report.peak_committed_bytes);
    let rungs = serde_json::to_value(report.rungs).unwrap();
    assert_eq!(said["pool"]["rungs"], rungs);
    let need = PoolOptions::new().dry_run(&recording).unwrap();
    assert_eq!(said["smallest_cap_bytes"], need.cap_bytes);
    let need = serde_json::to_value(&need).unwrap();
    assert_eq!(said["dry_run"], need);
    // The series has every peak, the map is where most was committed.
    let most = |name: &str| {
        let points = said["series"].as_array().unwrap().iter();
        points.map(|point| point[name].as_u64().unwrap()).max()
    };
    assert_eq!(said["series"].as_array().unwrap().len(), 400);
    for name in ["requested_bytes", "live_bytes", "committed_bytes"] {
        let peak = said[format!("peak_{name}")].as_u64();
        assert_eq!(most(name), peak, "{name}");
    }
    assert_eq!(said["map_event"], said["peak_event"]);
    let in_map: u64 = said["map"]["spans"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|span| span["kind"] != "absent")
        .map(|span| span["bytes"].as_u64().unwrap())
        .sum();
    let committed = report.peak_committed_bytes as u64;
    assert!(
        in_map <= committed && in_map > committed / 2,
        "{in_map} of {committed}"
    );
}

#[test]
fn the_smallest_cap_fits_and_less_than_what_is_live_does_not() {
    let recording = recorded(4000, |memory| churn(memory, 3000, 33 * KIB..3 * MIB, 60));
    let trace = written(csv(&recording));
    let free = TOOL.answer(&trace.path, &[]);
    let cap = free["smallest_cap_bytes"].to_string();
    let said = TOOL.answer(&trace.path, &["--cap", &cap]);
    assert_eq!(said["fits"], true);
    assert_eq!(said["replay"]["refused_here"], 0);
    assert_eq!(said["refusals"].as_array().unwrap().len(), 0);
    assert_eq!(said["pool"]["rungs"]["trimmed"], 0);
    assert_eq!(said["peak_committed_bytes"], free["smallest_cap_bytes"]);
    let page_of = TOOL.page(&trace.path, &["--cap", &cap]);
    assert!(page_of.contains("the trace fits\n"), "{page_of}");

    let half = (free["peak_live_bytes"].as_u64().unwrap() / 2).to_string();
    let said = TOOL.answer(&trace.path, &["--cap", &half]);
    assert_eq!(said["fits"], false);
    let refused = said["replay"]["refused_here"].as_u64().unwrap();
    assert!(refused > 100, "{refused}");
    assert_eq!(said["pool"]["rungs"]["refused"], refused);
    let listed = said["refusals"].as_array().unwrap();
    assert_eq!(listed.len(), 100);
    assert_eq!(listed[0]["tag"], "kv");
    assert_eq!(said["replay"]["first_mismatch"], listed[0]["event"]);
    let error = listed[0]["error"].as_str().unwrap();
    let start = format!(
        "{} bytes do not fit the pool: it may have {half}",
        listed[0]["bytes"]
    );
    assert!(error.starts_with(&start), "{error}");

    let text = TOOL.page(&trace.path, &["--cap", &half]);
    assert!(text.contains("the trace does not fit\n"), "{text}");
    assert_eq!(text.matches("\n  event ").count(), 10, "{text}");
    assert!(
        text.contains(&format!("\n  and {} more\n", refused - 10)),
        "{text}"
    );
}

#[test]
fn trimming_keeps_less_committed() {
    let recording = recorded(4000, |memory| {
        drop(memory.allocate(256 * MIB, 64).unwrap());
        churn(memory, 3000, 33 * KIB..2 * MIB, 10);
    });
    let trace = written(csv(&recording));
    let committed = |flags: &[&str]| {
        let said = TOOL.answer(&trace.path, flags);
        assert_eq!(said["peak_committed_bytes"], 256 * MIB, "{said}");
        said["pool"]["committed_bytes"].as_u64().unwrap() / MIB as u64
    };
    assert_eq!(committed(&[]), 256);
    assert!(committed(&["--trim-keep", "32MiB"]) < 64);
    assert!(committed(&["--idle-calls", "500"]) < 64);
}

#[test]
fn the_page_has_the_numbers_a_chart_and_the_map_in_80_columns() {
    let recording = recorded(4000, |memory| churn(memory, 3000, 1..3 * MIB, 60));
    let trace = written(csv(&recording));
    let text = TOOL.page(&trace.path, &[]);
    println!("{text}");
    let has = |row: &str| {
        let words: Vec<&str> = row.split(' ').collect();
        let found = text.lines().any(|line| {
            let line: Vec<&str> = line.split_whitespace().collect();
            line.starts_with(&words)
        });
        assert!(found, "no {row:?} in\n{text}");
    };
    let said = TOOL.answer(&trace.path, &[]);
    let requests = &said["trace"]["requests"];
    has(&format!("events 0 to {}", said["trace"]["last_event"]));
    assert!(text.contains(&format!("{requests} requests, ")), "{text}");
    let size = |name: &str| format!("{:.2} MiB", said[name].as_f64().unwrap() / MIB as f64);
    has(&format!("peak requested {}", size("peak_requested_bytes")));
    has(&format!(
        "peak live {} with rounding",
        size("peak_live_bytes")
    ));
    has(&format!(
        "peak committed {} after event {}",
        size("peak_committed_bytes"),
        said["peak_event"]
    ));
    let ratio = said["committed_to_live"].as_f64().unwrap();
    has(&format!("committed / live {ratio:.3} each at its peak"));
    has(&format!(
        "smallest cap {} --cap {}",
        size("smallest_cap_bytes"),
        said["smallest_cap_bytes"]
    ));
    for rung in [
        "cached",
        "fitted",
        "emptied",
        "committed",
        "trimmed",
        "slabs",
        "refused",
    ] {
        has(&format!("{rung} {}", said["pool"]["rungs"][rung]));
    }
    has(&format!(
        "the heap after event {}, with the most committed",
        said["peak_event"]
    ));
    assert!(text.contains("\n       0.0 MiB  █"), "{text}");
    has("█ used");
    has(&format!("{} |", size("peak_committed_bytes")));
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
    assert!(widest(&text) <= Some(80), "{text}");
    let wide = TOOL.page(&trace.path, &["--width", "132"]);
    assert_eq!(widest(&wide), Some(132), "{wide}");
    let narrow = TOOL.page(&trace.path, &["--width", "60"]);
    let map = narrow.split("the heap after").nth(1).unwrap();
    let lines = map.lines().skip(1).filter(|line| line.contains("MiB  "));
    assert!(lines.clone().count() > 4, "{narrow}");
    for line in lines.filter(|line| line.starts_with(' ')) {
        assert!(line.chars().count() <= 60, "{line}");
    }
}

#[test]
fn what_the_trace_overwrote_is_said() {
    let recording = recorded(100, |memory| churn(memory, 3000, 1..3 * MIB, 60));
    let trace = written(csv(&recording));
    let said = TOOL.answer(&trace.path, &[]);
    assert_eq!(said["trace"]["events"], 100);
    let first = said["trace"]["first_event"].as_u64().unwrap();
    assert_eq!(said["trace"]["dropped_events"], first);
    let skipped = said["replay"]["skipped_releases"].as_u64().unwrap();
    assert!(first > 2900 && skipped > 0, "{said}");
    assert!(said["map_event"].as_u64().unwrap() >= first);
    let text = TOOL.page(&trace.path, &[]).replace('\n', " ");
    let note = format!("{first} events in front of these were overwritten");
    assert!(text.contains(&note), "{text}");
    assert!(
        text.contains(&format!("{skipped} events of them are left out")),
        "{text}"
    );
}
