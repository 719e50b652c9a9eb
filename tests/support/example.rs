//! Runs the `generate` example as a process of its own and sees to it that it
//! leaves nothing behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::oracle::{Found, highest, ids};

/// The built example: `cargo test` builds it beside the tests.
pub(crate) fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("target/PROFILE/deps/TEST");
    let binary = profile
        .join("examples")
        .join(format!("generate{}", std::env::consts::EXE_SUFFIX));
    assert!(
        binary.exists(),
        "{} is not there; `cargo test` or `cargo build --example generate` builds it",
        binary.display()
    );
    binary
}

/// A JSON file.
pub(crate) fn json(path: &Path) -> Value {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One call of the example, with a temporary folder of its own.
pub(crate) struct Example {
    /// The command, to add to.
    pub(crate) command: Command,
    /// What it sees as the system's temporary folder.
    pub(crate) temp: TempDir,
}

impl Example {
    /// A call with these arguments.
    pub(crate) fn new(args: &[&str]) -> Self {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(binary());
        command
            .args(args)
            .env("TMPDIR", temp.path())
            .stdin(Stdio::null());
        Self { command, temp }
    }

    /// Runs it to its end.
    pub(crate) fn output(mut self) -> Output {
        let output = self.command.output().expect("the example starts");
        assert_empty(self.temp.path());
        output
    }

    /// Runs it with `--json`, which must succeed.
    pub(crate) fn json(mut self) -> Value {
        self.command.arg("--json");
        let what = format!("{:?}", self.command);
        let output = self.output();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{what}: {:?}: {errors}",
            output.status
        );
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{what}: not one JSON object: {error}"))
    }
}

/// Nothing was left behind.
pub(crate) fn assert_empty(directory: &Path) {
    let left: Vec<_> = std::fs::read_dir(directory)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// The tokens and logits of a report.
pub(crate) fn found(report: &Value) -> Found {
    let lists = report["top5"].as_array().expect("top5");
    Found {
        tokens: ids(&report["tokens"]),
        highest: lists.iter().map(highest).collect(),
    }
}

/// `1,2,3`
pub(crate) fn comma(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
