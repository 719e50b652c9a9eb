//! What a terminal shows while a trace is replayed.

use std::io::Read;
use std::process::{Command, Stdio};

use super::program::{line, written};
use super::pty::{assert_counts_up, screen, terminal};

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

    assert_counts_up(&shown, "requests", 20_000);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["requests"], 20_000);
}
