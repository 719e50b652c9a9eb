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
//! all, and the bytes live until the last handle is gone.
//!
//! # Views
//!
//! | call | gives |
//! |---|---|
//! | [`slice`](Tensor::slice), [`narrow`](Tensor::narrow) | a range of a dimension |
//! | [`select`](Tensor::select) | one index of a dimension, which goes |
//! | [`split`](Tensor::split), [`chunks`](Tensor::chunks) | a dimension in parts |
//! | [`reshape`](Tensor::reshape) | the same elements in another shape, if they are packed |
//! | [`permute`](Tensor::permute), [`transpose`](Tensor::transpose) | another order of the dimensions |
//! | [`squeeze`](Tensor::squeeze), [`unsqueeze`](Tensor::unsqueeze) | a dimension of 1 less or more |
//! | [`view_as_dtype`](Tensor::view_as_dtype) | the same bits as another dtype of the same width |
//!
//! # When something is copied
//!
//! By [`ops::copy`] and [`ops::cast`], by [`ops::cat`], [`ops::stack`] and [`ops::gather_rows`],
//! by [`contiguous_in`](Tensor::contiguous_in) where it has to, and by nothing else. What cannot be viewed is an error, not a copy.
//!
//! # Who may touch the bytes
//!
//! 1. Guards: [`read`](Tensor::read) and [`write`](Tensor::write) lend `[T]`, checked at run
//!    time: many readers or one writer for each storage, a conflict is an error and nothing
//!    waits. [`write_disjoint`](Tensor::write_disjoint) writes several parts at once,
//!    [`freeze`](Tensor::freeze) ends writing for ever, and [`get_mut`](Tensor::get_mut)
//!    needs no guard where there is one handle only.
//! 2. Slices that the caller answers for: [`as_slice`](Tensor::as_slice),
//!    [`as_mut_slice`](Tensor::as_mut_slice).
//! 3. Raw pointers: [`data`](Tensor::data), [`data_ptr`](Tensor::data_ptr).
//!
//! [`item`](Tensor::item) reads one element, for tests.
//!
//! ```
//! use tenslab::memory::{BorrowError, cpu};
//! use tenslab::tensor::TensorError;
//! use tenslab::{DType, Tensor};
//!
//! let scores = Tensor::zeros([2, 8], DType::F32, cpu())?;
//! let (head, all) = (scores.select(0, 1)?, scores.clone());
//!
//! let mut writer = head.write::<f32>()?;                   // one writes,
//! writer[3] = 1.0;
//! let refused = all.read::<f32>().unwrap_err();            // nobody else is there
//! let storage = all.storage_id();
//! assert_eq!(refused, TensorError::Borrow(BorrowError::Writing { storage }));
//! drop(writer);
//! assert_eq!(all.read::<f32>()?[8 + 3], 1.0);              // and it is seen through all
//! # Ok::<(), TensorError>(())
//! ```

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
