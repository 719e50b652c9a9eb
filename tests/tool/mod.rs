//! `tenslab COMMAND FILE …` as a process, for the tests of the commands that read a trace.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A command of the program, such as `pool`.
pub(crate) struct Tool(pub(crate) &'static str);

impl Tool {
    pub(crate) fn command(&self, file: &Path, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenslab"));
        command.arg(self.0).arg(file).args(flags);
        command
    }

    pub(crate) fn output(&self, file: &Path, flags: &[&str]) -> Output {
        self.command(file, flags).output().unwrap()
    }

    /// What it prints where it succeeds.
    pub(crate) fn page(&self, file: &Path, flags: &[&str]) -> String {
        let output = self.output(file, flags);
        assert!(output.status.success(), "{output:?}");
        assert!(
            output.stderr.is_empty(),
            "stderr is no terminal: {output:?}"
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// The object that it prints with `--json`.
    pub(crate) fn answer(&self, file: &Path, flags: &[&str]) -> Value {
        let text = self.page(file, &[flags, &["--json"]].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// The one line on stderr where it fails, without the program's name.
    pub(crate) fn refusal(&self, file: &Path, flags: &[&str]) -> String {
        let output = self.output(file, flags);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        text.trim_end().strip_prefix("tenslab: ").unwrap().into()
    }

    /// A reader that goes away, as of `| head`, is no error.
    pub(crate) fn outlives_its_reader(&self, file: &Path, flags: &[&str]) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = (self.command(file, flags).stdout(writer))
            .stderr(Stdio::piped())
            .spawn()
            .and_then(Child::wait_with_output)
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}
