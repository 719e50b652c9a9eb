//! The budget: one limit over all who share it, at every moment, and what happens at it.
//!
//! ```text
//!   limits      what fits, what counts, charges, peaks, a limit that moves
//!   pressure    who is asked, how often, and what a callback may do
//!   cgroup      made-up system directories, and what is read from them
//! ```
//!
//! The interleavings are in `loom_tests/budget.rs`, zero heap blocks in
//! `tests/dhat_budget.rs`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

#[path = "../probe/mod.rs"]
mod probe;

mod cgroup;
mod decommit;
mod limits;
mod pressure;
