//! Views over shared storage.
//!
//! ```text
//!   Storage   | 0  1  2  3  4  5  6  7  8  9 10 11 |   bytes, refcounted, one state word
//!   Tensor      offset 0   shape [3, 4]   strides [4, 1]
//!   .slice(1, 1, 3)        shape [3, 2]   strides [4, 1]   offset 1 element
//! ```
//!
//! A [`Tensor`] is a handle: storage, byte offset, shape, strides, dtype. A clone or a
//! view shares the storage and allocates nothing; a write through one is seen through
//! all. Nothing is ever copied unless you call [`ops::copy`] or [`ops::cast`].
//!
//! The views so far are [`slice`](Tensor::slice), [`reshape`](Tensor::reshape) and
//! [`view_as_dtype`](Tensor::view_as_dtype); transposing and the like come later.
//!
//! There are three ways to the bytes. [`read`](Tensor::read) and
//! [`write`](Tensor::write) give guards, checked at run time: many readers or one
//! writer for each storage, a conflict is an error and nothing waits.
//! [`data_ptr`](Tensor::data_ptr) gives a raw pointer, for kernels that know better.
//! [`item`](Tensor::item) reads one element, for tests.

mod access;
mod direct;
mod error;
mod handle;
pub mod ops;
mod parts;
mod view;

pub use self::access::{DisjointGuard, ReadGuard, WriteGuard};
pub use self::error::TensorError;
pub use self::handle::Tensor;
pub use self::parts::Chunks;
