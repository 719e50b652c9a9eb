//! Threads at one pool: an oracle that knows where every block lies, and a soak that weighs
//! the process.
//!
//! ```text
//!   thread 0   slots ─┐  allocate, grow, give back; small, cached, large, aligned
//!                     ├─▶ post ◀─┤  blocks go over and are given back by the other
//!   thread 1   slots ─┘
//!   thread 2   trims, flushes, reports, maps
//! ```
//!
//! With `TENSLAB_LONG` the storm is ten million calls and the soak a hundred million
//! (`.ci/long`).
// Where the heap stands in for pages nothing goes back, and there is no storm.
#![cfg(not(any(loom, tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(clippy::print_stdout, reason = "the soak says what it measured")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

#[path = "../probe/mod.rs"]
mod probe;

mod soak;
mod storm;

fn is_long() -> bool {
    std::env::var_os("TENSLAB_LONG").is_some()
}
