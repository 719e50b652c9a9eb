//! How far the memory of a process rises while it does something: a test starts itself again,
//! and the child measures itself and says so.
#![allow(clippy::print_stdout, reason = "a child talks to its parent")]

use std::fs;
use std::process::Command;

/// What a child says in front of what it measured.
const SAYS: &str = "MEASURED ";

/// A number of a file in `/proc/self`, as it stands there.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn number(file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Where the high-water mark of this process stood.
pub(crate) struct Mark(u64);

impl Mark {
    /// Sets the mark back to what is resident now.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn reset() -> Self {
        fs::write("/proc/self/clear_refs", "5").unwrap();
        Self(number("status", "VmHWM:"))
    }

    /// Bytes that it rose since. The kernel counts pages in batches, so what stands still may
    /// seem to sink a little: that is 0.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn rise(&self) -> u64 {
        number("status", "VmHWM:").saturating_sub(self.0) << 10
    }
}

/// Says to the parent what was measured.
pub(crate) fn say(measured: &[u64]) {
    let words: Vec<String> = measured.iter().map(ToString::to_string).collect();
    println!("{SAYS}{}", words.join(" "));
}

/// Runs one test of this binary in a child, which finds its task in the variable and
/// [says](say) what it measured.
pub(crate) fn child<const N: usize>(test: &str, variable: &str, task: &str) -> [u64; N] {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, task)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once(SAYS));
    let line = line.unwrap_or_else(|| panic!("the child said nothing: {text}{errors}"));
    println!("{task}: {}", line.1);
    let numbers: Vec<u64> = line
        .1
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    numbers.try_into().unwrap()
}
