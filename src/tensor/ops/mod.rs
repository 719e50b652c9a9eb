//! Operations over tensors: named, eager, on the CPU.
//!
//! ```text
//!   new tensors    zeros  ones  full  arange      cast  cat  stack
//!   in place       fill  fill_uniform  fill_normal
//!   between two    copy  gather_rows              allclose
//!   to look at     to_string  display
//! ```
//!
//! All of them borrow as guards do, so a conflict is an `Err` and frozen storage is never
//! written. They work on strided views, by logical index. Nothing is converted, broadcast
//! or copied that was not asked for by name.

mod cast;
mod cat;
mod compare;
mod copy;
mod create;
mod display;
mod fill;
mod gather;

mod loops;
mod number;
mod rows;
mod span;
#[cfg(feature = "rayon")]
mod threads;
mod turn;

pub use self::cast::cast;
pub use self::cat::{cat, stack};
pub use self::compare::{AllClose, Mismatch, Tolerance, allclose, default_allclose_tolerance};
pub use self::copy::copy;
pub use self::create::{arange, full, ones, zeros};
pub use self::display::{Displayed, PrintOptions, Scientific, display, to_string};
pub use self::fill::{fill, fill_normal, fill_uniform};
pub use self::gather::gather_rows;
pub use self::number::Number;
