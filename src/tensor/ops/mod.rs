//! Operations over tensors: named, eager, on the CPU.
//!
//! All of them go through guards, so a conflict is an `Err` and frozen storage is never
//! written. They work on strided views, by logical index.

mod cast;
mod copy;
mod display;
mod runs;

pub use self::cast::cast;
pub use self::copy::copy;
