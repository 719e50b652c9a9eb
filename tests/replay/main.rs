//! `tenslab replay`, as a program, against the published traces and a naive simulator.

#![cfg(all(feature = "cli", not(loom)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod naive;
mod program;
mod published;
#[cfg(target_os = "linux")]
mod terminal;
mod tight;

#[path = "../shared_data/mod.rs"]
mod shared_data;

#[cfg(target_os = "linux")]
#[path = "../pty/mod.rs"]
mod pty;
#[path = "../tool/mod.rs"]
mod tool;

const TOOL: tool::Tool = tool::Tool("replay");
