//! The memory layer of a CPU-first LLM inference engine: who owns the bytes, who may
//! touch them, and how weights, KV cache and scratch share one budget.
//!
//! ```text
//!   cli        inspect, plan, replay                               the tool
//!   weights    checkpoint file ──▶ one slab ──▶ frozen tensors     kv   paged keys and values
//!   tensor     Tensor: a view of shared storage; guards; ops
//!   memory     SharedAllocator ──▶ Buffer ──▶ Storage; CPU, slab, arena, budget, meter, trace
//!   types      DType, Shape, Strides, Device, Element, exact half conversions
//! ```
//!
//! Layers go one way, downwards; `weights` and `kv` do not know each other.
//!
//! # In a minute
//!
//! An [`Allocator`] hands out memory. Allocators stack: a [`Meter`](memory::Meter) over a
//! [`SlabAllocator`] is one allocator. Users hold a [`SharedAllocator`], and what they
//! make keeps the whole stack alive:
//!
//! ```
//! use tenslab::memory::{Meter, Tag};
//! use tenslab::{DType, SharedAllocator, SlabAllocator, Tensor, ops};
//!
//! let scratch = SharedAllocator::new(Meter::new(SlabAllocator::new(64 << 10, 16)?))
//!     .with_tag(Tag::Scratch);
//!
//! let hidden = Tensor::zeros([4, 576], DType::F32, &scratch)?;
//! let row = hidden.slice(0, 2, 3)?;                   // a view: shares the bytes
//! row.write::<f32>()?.fill(1.5);                      // a guard: one writer, or an error
//! drop(scratch);                                      // the tensors do not mind
//!
//! let half = ops::cast(&hidden, DType::BF16, tenslab::memory::cpu())?;
//! assert_eq!(half.item::<tenslab::bf16>(&[2, 575]).to_bits(), 0x3fc0);
//! # Ok::<(), tenslab::Error>(())
//! ```
//!
//! # What it promises
//!
//! - **No undefined behaviour from safe code.** Memory is always initialised; who may
//!   touch it is checked by guards, at run time and without waiting.
//! - **Memory comes back exactly once**, from any thread, in any order of dropping.
//! - **Data never panics.** Sizes, files and requests give an [`Error`] with the numbers.
//! - **The hot path allocates nothing.** A tensor from a used slab, its views, its guards
//!   and a decode step's keys and values make no heap block.
//!
//! Concurrency is in a few small protocols, each explored by loom (`loom_tests/`), heap
//! use is counted with dhat, and pools poison what they hold under AddressSanitizer.

mod error;
pub mod kv;
pub mod memory;
#[cfg_attr(not(loom), allow(unreachable_pub, reason = "the loom models see it"))]
mod mutant;
mod sync;
pub mod tensor;
pub mod types;
pub mod weights;

pub use self::error::Error;
pub use self::kv::{KvCache, KvDims, KvError, KvLimits, KvSpec};
pub use self::memory::{
    Allocator, Buffer, CachingPool, CpuAllocator, SharedAllocator, SlabAllocator, StepArena,
    Storage,
};
pub use self::tensor::{Tensor, ops};
pub use self::types::{Bool8, DType, Device, Element, Shape, Strides, bf16, f16};

/// What the loom models and the tests of mutants need of the insides.
#[cfg(any(loom, tenslab_mutants))]
pub mod internals {
    #[cfg(loom)]
    pub use crate::memory::{Biased, KeepAlive, Seats, StateWord};
    pub use crate::mutant::{Mutant, VARIABLE};
    #[cfg(loom)]
    pub use crate::sync::set_worker;
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// And so are those of the chapter on the KV cache.
#[cfg(doctest)]
#[doc = include_str!("../docs/kv.md")]
mod kv_chapter {}

/// And that of the chapter on weights, which is about memory that Linux has.
#[cfg(all(doctest, target_os = "linux", not(tenslab_portable)))]
#[doc = include_str!("../docs/weights.md")]
mod weights_chapter {}
