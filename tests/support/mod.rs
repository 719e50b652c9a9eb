//! What the tests of the `generate` example share.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod example;
pub(crate) mod oracle;
