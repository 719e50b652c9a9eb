//! Leaf value types: no memory, no locks.
//!
//! ```text
//!   DType     what one element is        Element   the Rust type of one
//!   Shape     how many, in rows          Strides   how far apart, in elements
//!   Device    where                      half      f32 <-> f16 / bf16, exactly
//! ```
//!
//! Everything here is `Copy`, a few words long and safe to send anywhere.

mod device;
mod dtype;
mod element;
mod error;
pub mod half;
#[cfg(feature = "serde")]
mod serde;
mod shape;

pub use self::device::Device;
pub use self::dtype::DType;
pub use self::element::{Bool8, Element, bf16, f16};
pub use self::error::TypeError;
pub use self::shape::{MAX_RANK, Shape, Strides, row_major_strides};
