//! The parts of the `generate` example, compiled once more so that their own unit tests
//! run: kernels against f64, config, sampler, text, threads.
//!
//! `cargo test` builds an example but runs no test in it. These are its files, under the
//! names that they have there; `main.rs` alone stays outside.

#![cfg(not(any(loom, tenslab_asan)))]
#![allow(
    dead_code,
    unused_imports,
    reason = "main.rs, which uses the parts, is not among them"
)]
#![allow(
    clippy::disallowed_types,
    reason = "the library's door to std::sync is not for what stands outside it"
)]

#[path = "../examples/generate/args.rs"]
mod args;
#[path = "../examples/generate/attention.rs"]
mod attention;
#[path = "../examples/generate/config.rs"]
mod config;
#[path = "../examples/generate/counting.rs"]
mod counting;
#[path = "../examples/generate/embedded.rs"]
mod embedded;
#[path = "../examples/generate/kernels/mod.rs"]
mod kernels;
#[path = "../examples/generate/model.rs"]
mod model;
#[path = "../examples/generate/report.rs"]
mod report;
#[path = "../examples/generate/run.rs"]
mod run;
#[path = "../examples/generate/sampler.rs"]
mod sampler;
#[path = "../examples/generate/text.rs"]
mod text;
#[path = "../examples/generate/threads.rs"]
mod threads;
#[path = "../examples/generate/trouble.rs"]
mod trouble;
#[path = "../examples/generate/view.rs"]
mod view;
