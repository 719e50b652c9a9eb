//! Long traces, and traces of more memory than there is.

use std::io::Read;
use std::process::Stdio;

use super::pty::{assert_counts_up, screen, terminal};
use super::{KIB, MIB, TOOL, churn, csv, recorded, written};

/// The answer, and the most that was resident in the process that gave it. The answer has to
/// be longer than a pipe: when the first of it is here, the work is done and the process waits.
fn answer_and_peak(trace: &std::path::Path) -> (serde_json::Value, u64) {
    let mut child = TOOL
        .command(trace, &["--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = vec![0];
    stdout.read_exact(&mut text).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = peak
        .and_then(|peak| peak.trim().strip_suffix(" kB"))
        .unwrap_or_else(|| panic!("it is gone, so its answer was short: {status}"))
        .parse()
        .unwrap();
    stdout.read_to_end(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    (serde_json::from_slice(&text).unwrap(), kib << 10)
}

#[test]
fn a_million_events_take_their_file_and_80_bytes_each_and_no_block_is_touched() {
    const EVENTS: usize = 1_000_000;
    let recording = recorded(EVENTS, |memory| {
        churn(memory, EVENTS, 33 * KIB..3 * MIB, 4_000);
    });
    assert!(recording.events().len() == EVENTS);
    // As if all of it had to be zero: whoever asked for that would touch gibibytes.
    let text = csv(&recording).replace(",false,", ",true,");
    drop(recording);
    let trace = written(&text);
    let file_bytes = text.len() as u64;
    drop(text);
    let (said, peak) = answer_and_peak(&trace.path);
    println!("{peak} bytes at most, for a file of {file_bytes}");
    assert_eq!(said["trace"]["events"], EVENTS);
    assert_eq!(said["series"].as_array().unwrap().len(), 400);
    assert!(said["peak_live_bytes"].as_u64().unwrap() > 512 << 20);
    assert!(
        peak < file_bytes + 80 * EVENTS as u64 + (16 << 20),
        "{peak}"
    );
}

#[test]
fn a_trace_of_more_memory_than_there_is_is_replayed() {
    let recording = recorded(4000, |memory| {
        let blocks: Vec<_> = (0..60)
            .map(|_| memory.allocate(2 << 30, 64).unwrap())
            .collect();
        drop(blocks);
        churn(memory, 2000, 33 * KIB..3 * MIB, 900);
    });
    let trace = written(csv(&recording).replace(",false,", ",true,"));
    let said = TOOL.answer(&trace.path, &[]);
    assert_eq!(said["peak_live_bytes"], 120_u64 << 30);
    assert_eq!(said["smallest_cap_bytes"], 120_u64 << 30);
    let text = TOOL.page(&trace.path, &[]);
    assert!(text.contains("\n      0.00 GiB  █"), "{text}");
    assert!(text.contains("█ used 120.00 GiB"), "{text}");
}

#[test]
fn progress_is_shown_on_a_terminal_and_cleared_and_stdout_is_the_answer_alone() {
    const EVENTS: usize = 60_000;
    let recording = recorded(EVENTS, |memory| {
        churn(memory, EVENTS, 33 * KIB..3 * MIB, 100);
    });
    let trace = written(csv(&recording));
    let (ours, theirs) = terminal();
    let child = TOOL
        .command(&trace.path, &["--json"])
        .env("TERM", "xterm")
        .stdout(Stdio::piped())
        .stderr(theirs)
        .spawn()
        .unwrap();
    // The answer is longer than a pipe, so both ends are read at one time.
    let reader = std::thread::spawn(move || child.wait_with_output().unwrap());
    let shown = screen(ours);
    let output = reader.join().unwrap();
    assert!(output.status.success());
    assert_counts_up(&shown, "events", EVENTS);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["trace"]["events"], EVENTS);
}
