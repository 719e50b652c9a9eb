//! What a terminal shows while a trace is replayed.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::program::{line, written};

const COLUMNS: u16 = 80;

/// The two ends of a terminal: what a person has, and what the program has.
fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: COLUMNS,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&ours, size).unwrap();
    let path = ptsname(&ours, Vec::new()).unwrap();
    let theirs = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path.to_str().unwrap())
        .unwrap();
    (File::from(ours), theirs)
}

/// All that came, once nobody has the other end any more, of which Linux makes an error.
fn screen(mut ours: File) -> String {
    let mut shown = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match ours.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => shown.extend(&piece[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8(shown).unwrap()
}

/// Requests that are through, and all of them, in the order in which they were shown.
fn counts(shown: &str) -> Vec<(usize, usize)> {
    let words: Vec<&str> = shown.split_whitespace().collect();
    let counts = words
        .windows(4)
        .filter(|four| four[1..] == ["of", four[2], "requests,"]);
    counts
        .map(|four| (four[0].parse().unwrap(), four[2].parse().unwrap()))
        .collect()
}

#[test]
fn progress_is_shown_on_a_terminal_and_cleared_and_stdout_is_the_answer_alone() {
    let trace = written(line(&[1, 2, 3]).repeat(20_000));
    let (ours, theirs) = terminal();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tenslab"))
        .args(["replay", "--blocks", "8", "--json"])
        .arg(&trace.path)
        .env("TERM", "xterm")
        .stdout(Stdio::piped())
        .stderr(theirs)
        .spawn()
        .unwrap();
    let shown = screen(ours);
    let mut answer = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut answer)
        .unwrap();
    assert!(child.wait().unwrap().success());

    let counts = counts(&shown);
    assert!(!counts.is_empty(), "{shown:?}");
    assert!(counts.is_sorted(), "{shown:?}");
    for (through, all) in counts {
        assert!(through <= all && all == 20_000, "{shown:?}");
    }
    // The line is gone in the end: cursor to its start, and the rest of it erased.
    let (_, last) = shown.rsplit_once('\r').unwrap();
    assert!(!last.contains("requests"), "{shown:?}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["requests"], 20_000);
}
