//! Views: the same bytes, seen otherwise. None of them allocates or copies.

use super::{Tensor, TensorError};
use crate::types::{DType, Shape, row_major_strides};

impl Tensor {
    /// The part `start..end` of dimension `dim`. Shares the bytes.
    ///
    /// A slice of the outermost dimension of a contiguous tensor is contiguous; one of
    /// an inner dimension is not.
    ///
    /// # Errors
    /// [`NoSuchDim`](TensorError::NoSuchDim) and [`BadRange`](TensorError::BadRange).
    pub fn slice(&self, dim: usize, start: usize, end: usize) -> Result<Tensor, TensorError> {
        let rank = self.rank();
        if dim >= rank {
            return Err(TensorError::NoSuchDim { dim, rank });
        }
        let size = self.shape().dim(dim);
        if start > end || end > size {
            return Err(TensorError::BadRange {
                dim,
                start,
                end,
                size,
            });
        }
        let mut dims = [0; crate::types::MAX_RANK];
        dims[..rank].copy_from_slice(self.shape().dims());
        dims[dim] = end - start;
        let shape = Shape::from_dims(&dims[..rank])?;
        // A view without elements stays where it is: `start` may be one past the end,
        // and so far past the storage that the offset would mean nothing.
        let skipped = if shape.numel() == 0 {
            0
        } else {
            start * self.strides().stride(dim) * self.dtype().bytes()
        };
        Ok(self.seen_as(
            self.byte_offset() + skipped,
            shape,
            *self.strides(),
            self.dtype(),
        ))
    }

    /// The same elements in row-major order under another shape. Shares the bytes, never
    /// copies.
    ///
    /// # Errors
    /// [`NotContiguous`](TensorError::NotContiguous): copy it first;
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
        let strides = row_major_strides(&shape);
        Ok(self.seen_as(self.byte_offset(), shape, strides, self.dtype()))
    }

    /// The same bits as elements of another dtype of the same width. Shares the bytes.
    ///
    /// # Errors
    /// [`Unimplemented`](TensorError::Unimplemented) for a reserved dtype,
    /// [`WidthMismatch`](TensorError::WidthMismatch).
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
        Ok(self.seen_as(self.byte_offset(), *self.shape(), *self.strides(), dtype))
    }

    pub(super) fn must_be_contiguous(&self) -> Result<(), TensorError> {
        if self.is_contiguous() {
            return Ok(());
        }
        Err(TensorError::NotContiguous {
            layout: Box::new((*self.shape(), *self.strides())),
        })
    }
}
