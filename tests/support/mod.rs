//! What the tests of the `generate` example share.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod example;
pub(crate) mod oracle;

#[path = "../shared_data/mod.rs"]
mod shared_data;

pub(crate) use shared_data::shared;
