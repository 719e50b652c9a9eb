//! Models of every protocol that threads share, explored by loom.
//!
//! ```text
//!   cargo loom        RUSTFLAGS="--cfg loom", release, preemption bound 2
//! ```
//!
//! One file for each protocol, and in it one test for each way it could go wrong. The
//! models use the types of `src/` themselves. Each names the wrong code that makes it
//! fail; `mutants.rs` runs that wrong code and sees it fail.
//!
//! loom sees atomics, locks and its own `UnsafeCell`, but no bytes in memory. So
//! each model has a [`Gate`](harness::Gate), without which loom skips interleavings, and
//! canaries that stand for the bytes.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]
#![allow(
    clippy::disallowed_types,
    reason = "what counts the executions must not be modelled"
)]

mod arena;
mod biased;
mod budget;
mod guarded;
mod harness;
mod keep_alive;
mod kv;
mod kv_lab;
mod kv_memory;
mod kv_prefix;
mod magazines;
mod meter;
mod mutants;
mod pool;
mod seats;
mod slab;
mod state;
mod storage;
