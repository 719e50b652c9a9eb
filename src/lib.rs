//! tenslab
mod error;
pub mod memory;
#[cfg_attr(not(loom), allow(unreachable_pub, reason = "the loom models see it"))]
mod mutant;
mod sync;
pub mod tensor;
pub mod types;

pub use self::error::Error;
pub use self::memory::{Allocator, Buffer, CpuAllocator, SharedAllocator, SlabAllocator, Storage};
pub use self::tensor::{Tensor, ops};
pub use self::types::{Bool8, DType, Device, Element, Shape, Strides, bf16, f16};

/// What the loom models need of the insides.
#[cfg(loom)]
pub mod internals {
    pub use crate::memory::{KeepAlive, StateWord};
    pub use crate::mutant::{Mutant, VARIABLE};
}
