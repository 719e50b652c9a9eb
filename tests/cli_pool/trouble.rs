//! What is no trace, what cannot be replayed, and who goes away.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tenslab::memory::{CpuAllocator, SharedAllocator, Trace, TraceLimits};

use super::{MIB, TOOL, by_hand, csv, recorded, written};

#[test]
fn a_bad_file_is_one_line_with_the_place_and_what_to_do() {
    let good = csv(&by_hand());
    let nth = |n: usize| good.lines().nth(n - 1).unwrap();
    let again = "correct the line, or write the recording again";
    let a_trace = "a trace is what Recording::write_csv or write_json writes";
    let cut: String = good
        .lines()
        .take(12)
        .map(|line| format!("{line}\n"))
        .collect();
    let cases: [(String, &str, &str); 11] = [
        (String::new(), "line 1: the file is empty; ", a_trace),
        (" \n\n".into(), "line 1: the file is empty; ", a_trace),
        (
            "TIMESTAMP,ContextTokens\n".into(),
            "line 1: expected `# tenslab-trace,1` or `2`; ",
            a_trace,
        ),
        ("\u{feff}x\n".into(), "line 1: expected ", a_trace),
        (
            "{\"hash_ids\": [1]}\n".into(),
            "line 1: unknown field `hash_ids`",
            a_trace,
        ),
        (
            "{\n\n\"format\": 7}".into(),
            "line 3: invalid type: integer `7`",
            a_trace,
        ),
        (good.replace("# events,7", "# events,x"), "line 5: ", again),
        (
            good.replace(nth(11), "1,0,allocate"),
            "line 11: 3 columns where 10 belong; ",
            again,
        ),
        (
            good.replace(nth(12), nth(11)),
            "line 12: number 1 where 2 belongs; ",
            again,
        ),
        (
            cut,
            "line 12: 3 events or live blocks where the header says 7; ",
            "write the recording again",
        ),
        (
            format!("{good}7,0,mark,,,,,,,\n"),
            "line 17: number 7 where 7 belongs; ",
            again,
        ),
    ];
    for (contents, place, what_to_do) in cases {
        let trace = written(&contents);
        let text = TOOL.refusal(&trace.path, &[]);
        let rest = text.strip_prefix(trace.path.to_str().unwrap()).unwrap();
        assert!(rest.contains(place), "{text}\nhas no\n{place}");
        assert!(text.contains(what_to_do), "{text}\nhas no\n{what_to_do}");
    }
    let trace = written([good.as_bytes(), b"\xff\xfe\n"].concat());
    let text = TOOL.refusal(&trace.path, &[]);
    assert!(text.contains("line 17: not UTF-8; "), "{text}");
}

#[test]
fn a_trace_in_which_nothing_is_says_how_to_record_one() {
    let refused = |events, work: bool, live: bool| {
        let limits = TraceLimits {
            events,
            live_blocks: 10,
        };
        let trace = std::sync::Arc::new(Trace::with_limits(CpuAllocator::new(), limits));
        let memory = SharedAllocator::new(std::sync::Arc::clone(&trace));
        let _kept = work.then(|| memory.allocate(100, 64).unwrap());
        let recording = match live {
            true => trace.live_snapshot(),
            false => trace.snapshot(),
        };
        TOOL.refusal(&written(csv(&recording)).path, &[])
    };
    let text = refused(0, true, false);
    assert!(
        text.contains("no history was kept (line 2: history,off)"),
        "{text}"
    );
    assert!(
        text.contains("record with TraceLimits whose events are not 0"),
        "{text}"
    );
    let text = refused(10, true, true);
    assert!(
        text.contains("none of the 1 events that were seen"),
        "{text}"
    );
    assert!(text.contains("take Trace::snapshot"), "{text}");
    let text = refused(10, false, false);
    assert!(
        text.contains("nothing happened while it was recorded"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_read_or_asked_is_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let text = TOOL.refusal(&folder.path().join("nowhere"), &[]);
    assert!(
        text.contains("nowhere: cannot read: No such file"),
        "{text}"
    );
    let text = TOOL.refusal(folder.path(), &[]);
    assert!(text.contains("cannot read: Is a directory"), "{text}");

    let trace = written(csv(&by_hand()));
    let text = TOOL.refusal(&trace.path, &["--at", "7"]);
    assert!(
        text.ends_with("there is no event 7 to show a map after: give --at 0 to 6"),
        "{text}"
    );
    for flags in [
        ["--cap", "many"],
        ["--cap", "4G"],
        ["--cap", "-1"],
        ["--trim-keep", "1.GiB"],
        ["--idle-calls", "0"],
        ["--at", "-1"],
        ["--width", "10"],
    ] {
        let output = TOOL.output(&trace.path, &flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(flags[0]), "{text}");
    }
}

#[test]
fn a_cap_of_nothing_is_an_answer_too() {
    let trace = written(csv(&by_hand()));
    let said = TOOL.answer(&trace.path, &["--cap", "0"]);
    assert_eq!(said["fits"], false);
    assert_eq!(said["replay"]["refused_here"], 3);
    assert_eq!(said["committed_to_live"], serde_json::Value::Null);
    let text = TOOL.page(&trace.path, &["--cap", "0"]);
    assert!(text.contains("the trace does not fit"), "{text}");
    for line in text.lines().skip(1) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// A shell takes addresses from the program before it begins.
#[test]
fn a_process_with_few_addresses_says_so_instead_of_naming_a_cap() {
    let recording = recorded(100, |memory| {
        let blocks = [0; 5].map(|_| memory.allocate(600 * MIB, 64).unwrap());
        drop(blocks);
    });
    let trace = written(csv(&recording));
    let under = |kib: &str, flags: &[&str]| {
        Command::new("sh")
            .args(["-c", "ulimit -v $1 && shift && exec \"$@\"", "sh", kib])
            .args([env!("CARGO_BIN_EXE_tenslab"), "pool"])
            .arg(&trace.path)
            .args(flags)
            .output()
            .unwrap()
    };
    let output = under("2000000", &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let said = "-  the process has no room for it (ulimit -v)\n";
    assert!(
        text.contains(said) && text.contains("\nrefused here"),
        "{text}"
    );
    let output = under("2000000", &["--json"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["smallest_cap_bytes"], serde_json::Value::Null);
    assert_eq!(said["fits"], false);

    let output = under("60000", &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let said = "cannot make a pool to replay it into: out of memory";
    assert!(
        text.contains(said) && text.contains("(ulimit -v)"),
        "{text}"
    );
}

#[test]
fn the_help_says_what_the_exit_code_is_and_how_to_ask() {
    let text = TOOL.page(Path::new("--help"), &[]);
    for part in [
        "--cap <SIZE>",
        "--trim-keep <SIZE>",
        "--idle-calls <N>",
        "--at <EVENT>",
        "--width <N>",
        "--json",
        "the exit code is 0",
        "tenslab pool run.csv --cap 2GiB --at 1500",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let trace = written(csv(&by_hand()));
    for flags in [&[][..], &["--json"]] {
        TOOL.outlives_its_reader(&trace.path, flags);
    }
}

/// It dies of the signal, and no half of an answer is there. Not Ctrl-C's own: a shell has its
/// background jobs ignore that one, and children inherit it.
#[test]
fn stopped_halfway_it_has_said_nothing_and_a_pipe_is_read() {
    use std::os::unix::process::ExitStatusExt;

    let good = csv(&by_hand());
    let run = |stop: bool| {
        let mut child = TOOL
            .command(Path::new("/dev/stdin"), &["--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(good.as_bytes()).unwrap();
        if stop {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        }
        drop(stdin);
        child.wait_with_output().unwrap()
    };
    let output = run(true);
    assert_eq!(output.status.signal(), Some(Signal::TERM.as_raw()));
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{output:?}"
    );
    let output = run(false);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["trace"]["events"], 7);
}
