//! Views: the same bytes, seen otherwise. None of them allocates or copies.
//!
//! ```text
//!                 shape [3, 4]   strides [4, 1]   at element 0
//!   slice(1, 1, 3)      [3, 2]           [4, 1]              1
//!   reshape([2, 6])     [2, 6]           [6, 1]              0     contiguous only
//!   transpose(0, 1)     [4, 3]           [1, 4]              0
//!   select(0, 2)        [4]              [1]                 8
//! ```
//!
//! A view changes shape, strides and offset, and every element of it is an element of
//! the tensor it is of. That is all that makes raw access to its elements sound, so here
//! is where it is checked; `tests/views.rs` compares chains of views with a model that
//! knows no strides.

use super::handle::Layout;
use super::{Tensor, TensorError};
use crate::types::{DType, MAX_RANK, Shape, TypeError};

impl Tensor {
    /// The part `start..end` of dimension `dim`. Shares the bytes.
    ///
    /// A slice of the outermost dimension of a contiguous tensor is contiguous; one of
    /// an inner dimension is not. The strides stay, and the view begins
    /// `start * strides[dim]` elements further on (where it has no elements, it begins
    /// where this tensor does).
    ///
    /// ```
    /// # use tenslab::{DType, Tensor, memory};
    /// let matrix = Tensor::zeros([3, 4], DType::F32, memory::cpu())?;
    /// let rows = matrix.slice(0, 1, 3)?;
    /// assert_eq!((rows.shape().dims(), rows.byte_offset()), (&[2, 4][..], 16));
    /// assert!(rows.is_contiguous());
    /// assert!(!matrix.slice(1, 1, 3)?.is_contiguous());
    /// assert!(matrix.slice(0, 2, 4).is_err());
    /// # Ok::<(), tenslab::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// [`NoSuchDim`](TensorError::NoSuchDim), then [`BadRange`](TensorError::BadRange).
    #[inline]
    pub fn slice(&self, dim: usize, start: usize, end: usize) -> Result<Tensor, TensorError> {
        let size = self.size_of_dim(dim)?;
        if start > end || end > size {
            return Err(TensorError::BadRange {
                dim,
                start,
                end,
                size,
            });
        }
        Ok(self.part(dim, start, end))
    }

    /// The size of a dimension, if there is one of this number.
    #[inline]
    pub(super) fn size_of_dim(&self, dim: usize) -> Result<usize, TensorError> {
        let rank = self.rank();
        match self.shape().dims().get(dim) {
            Some(&size) => Ok(size),
            None => Err(TensorError::NoSuchDim { dim, rank }),
        }
    }

    /// The part `start..end` of dimension `dim`, which lies in it.
    #[inline]
    pub(super) fn part(&self, dim: usize, start: usize, end: usize) -> Tensor {
        debug_assert!(start <= end && end <= self.shape().dim(dim));
        let shape = self.shape().with_dim(dim, end - start);
        let byte_offset = self.byte_offset() + self.skipped(&shape, dim, start);
        let contiguous = self.strides().are_contiguous_for(&shape);
        self.seen_at(byte_offset, shape, contiguous)
    }

    /// Bytes from this tensor's first element to that of a view of `shape` that begins at
    /// `start` of dimension `dim`.
    ///
    /// A view without elements stays where it is: `start` may be one past the end, and so
    /// far past the storage that the offset would mean nothing.
    #[inline]
    fn skipped(&self, shape: &Shape, dim: usize, start: usize) -> usize {
        if shape.numel() == 0 {
            return 0;
        }
        start * self.strides().stride(dim) * self.dtype().bytes()
    }

    /// The same elements in row-major order under another shape. Shares the bytes, never
    /// copies: what is not contiguous is refused, not copied behind your back.
    ///
    /// # Errors
    /// [`NotContiguous`](TensorError::NotContiguous), whose way out is
    /// [`contiguous_in`](Tensor::contiguous_in), then
    /// [`NumelMismatch`](TensorError::NumelMismatch).
    ///
    /// # Panics
    /// If the shape is an array of more than 8 dimensions or too many elements. For shapes
    /// from data there is [`Shape::from_dims`].
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        self.must_be_contiguous()?;
        if shape.numel() != self.numel() {
            return Err(TensorError::NumelMismatch {
                from: self.numel(),
                to: shape.numel(),
            });
        }
        let storage = self.storage().clone();
        Ok(Self::packed(
            storage,
            self.byte_offset(),
            shape,
            self.dtype(),
        ))
    }

    /// The same bits as elements of another dtype of the same width. Shares the bytes,
    /// shape and strides stay.
    ///
    /// # Errors
    /// [`Unimplemented`](TensorError::Unimplemented) for a reserved dtype, also where the
    /// width would do; then [`WidthMismatch`](TensorError::WidthMismatch).
    pub fn view_as_dtype(&self, dtype: DType) -> Result<Tensor, TensorError> {
        if dtype.is_reserved() {
            return Err(TensorError::Unimplemented { dtype });
        }
        if dtype.bits() != self.dtype().bits() {
            return Err(TensorError::WidthMismatch {
                from: self.dtype(),
                to: dtype,
            });
        }
        Ok(self.seen(|layout| *layout.dtype = dtype))
    }

    /// The dimensions in another order: dimension `i` of the view is dimension
    /// `order[i]` of this tensor. Shares the bytes; the view is as a rule not contiguous.
    ///
    /// ```
    /// # use tenslab::{DType, Tensor, memory};
    /// let heads = Tensor::zeros([7, 4, 64], DType::F32, memory::cpu())?;  // [tokens, heads, dim]
    /// let by_head = heads.permute(&[1, 0, 2])?;
    /// assert_eq!(by_head.shape().dims(), [4, 7, 64]);
    /// assert_eq!(by_head.strides().values(), [64, 256, 1]);
    /// # Ok::<(), tenslab::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// [`BadOrder`](TensorError::BadOrder) where it does not name as many dimensions as
    /// there are; then for the first number that is wrong
    /// [`NoSuchDim`](TensorError::NoSuchDim) or [`DimTwice`](TensorError::DimTwice).
    pub fn permute(&self, order: &[usize]) -> Result<Tensor, TensorError> {
        let rank = self.rank();
        if order.len() != rank {
            return Err(TensorError::BadOrder {
                named: order.len(),
                rank,
            });
        }
        let mut seen = [false; MAX_RANK];
        for &dim in order {
            self.size_of_dim(dim)?;
            if std::mem::replace(&mut seen[dim], true) {
                return Err(TensorError::DimTwice { dim });
            }
        }
        Ok(self.seen(|layout| {
            layout.shape.reorder(order);
            layout.strides.reorder(order);
        }))
    }

    /// Two dimensions in each other's place. Shares the bytes.
    ///
    /// # Errors
    /// [`NoSuchDim`](TensorError::NoSuchDim).
    pub fn transpose(&self, first: usize, second: usize) -> Result<Tensor, TensorError> {
        self.size_of_dim(first)?;
        self.size_of_dim(second)?;
        Ok(self.seen(|layout| {
            layout.shape.swap_dims(first, second);
            layout.strides.swap_dims(first, second);
        }))
    }

    /// Without dimension `dim`, which has to be of size 1. Shares the bytes.
    ///
    /// # Errors
    /// [`NoSuchDim`](TensorError::NoSuchDim), then [`NotOne`](TensorError::NotOne).
    pub fn squeeze(&self, dim: usize) -> Result<Tensor, TensorError> {
        let size = self.size_of_dim(dim)?;
        if size != 1 {
            return Err(TensorError::NotOne { dim, size });
        }
        Ok(self.seen(|layout| leave_out(layout, dim)))
    }

    /// With a new dimension of size 1 before dimension `dim`, or behind the last one
    /// where `dim` is the rank. Shares the bytes.
    ///
    /// # Errors
    /// [`NoSuchDim`](TensorError::NoSuchDim) where `dim` is more than the rank, then
    /// [`RankTooHigh`](TypeError::RankTooHigh) where there are 8 dimensions already.
    pub fn unsqueeze(&self, dim: usize) -> Result<Tensor, TensorError> {
        let rank = self.rank();
        if dim > rank {
            return Err(TensorError::NoSuchDim { dim, rank });
        }
        if rank == MAX_RANK {
            let (rank, max) = (rank + 1, MAX_RANK);
            return Err(TypeError::RankTooHigh { rank, max }.into());
        }
        // Never stepped; what the dimensions behind it span, as in a packed tensor. No
        // overflow: no stride times its size is more than the elements of the storage (or
        // than the non-zero dimensions of a tensor without elements).
        let stride = if dim == rank {
            1
        } else {
            self.strides().stride(dim) * self.shape().dim(dim).max(1)
        };
        Ok(self.seen(|layout| {
            layout.shape.insert_dim(dim);
            layout.strides.insert_dim(dim, stride);
        }))
    }

    /// What is at `index` of dimension `dim`: a view of one dimension less. A
    /// [`slice`](Tensor::slice) of one index, and that dimension left out.
    ///
    /// # Errors
    /// [`NoSuchDim`](TensorError::NoSuchDim), then [`BadIndex`](TensorError::BadIndex).
    pub fn select(&self, dim: usize, index: usize) -> Result<Tensor, TensorError> {
        let size = self.size_of_dim(dim)?;
        if index >= size {
            return Err(TensorError::BadIndex { dim, index, size });
        }
        let shape = self.shape().with_dim(dim, 1);
        let skipped = self.skipped(&shape, dim, index);
        Ok(self.seen(|layout| {
            *layout.shape = shape;
            *layout.byte_offset += skipped;
            leave_out(layout, dim);
        }))
    }

    #[inline]
    pub(super) fn must_be_contiguous(&self) -> Result<(), TensorError> {
        if self.is_contiguous() {
            return Ok(());
        }
        Err(self.first_gap())
    }

    /// The innermost dimension that is not packed, as an error. There is one.
    #[cold]
    pub(super) fn first_gap(&self) -> TensorError {
        let mut packed = 1;
        let dims = self.shape().dims().iter().zip(self.strides().values());
        for (dim, (&size, &stride)) in dims.enumerate().rev() {
            if size != 1 && stride != packed {
                return TensorError::NotContiguous {
                    dim,
                    stride,
                    packed,
                };
            }
            packed *= size;
        }
        unreachable!("the tensor is contiguous")
    }
}

/// Leaves out dimension `dim`, which is of size 1.
fn leave_out(layout: &mut Layout<'_>, dim: usize) {
    layout.shape.remove_dim(dim);
    layout.strides.remove_dim(dim);
}
