//! The bytes without a guard: for whoever has them alone, and for whoever answers for it.
//!
//! ```text
//!   get_mut         &mut self, the only handle   safe: nobody else can be there
//!   data, data_ptr  a raw pointer                safe to have, unsafe to use
//!   as_slice        &[T]                         unsafe: nobody writes meanwhile
//!   as_mut_slice    &mut [T]                     unsafe: nobody else is there meanwhile
//! ```

use std::ptr::NonNull;

use super::{Tensor, TensorError};
use crate::memory::BorrowError;
use crate::types::Element;

impl Tensor {
    /// The elements in row-major order, to write, where this is the only handle of its
    /// storage. Then nobody else can be at the bytes, so nothing is counted and nothing
    /// is given back: what `Arc::get_mut` is to `Arc`. A guard that was forgotten is in
    /// nobody's way.
    ///
    /// ```
    /// # use tenslab::{DType, Tensor, memory};
    /// let mut scratch = Tensor::zeros([64], DType::F32, memory::cpu())?;
    /// scratch.get_mut::<f32>()?[0] = 1.0;
    /// let view = scratch.slice(0, 0, 8)?;
    /// assert!(scratch.get_mut::<f32>().is_err());     // the view could be read meanwhile
    /// drop(view);
    /// assert_eq!(scratch.get_mut::<f32>()?[0], 1.0);
    /// # Ok::<(), tenslab::tensor::TensorError>(())
    /// ```
    ///
    /// Cost: two loads.
    ///
    /// # Errors
    /// As [`read`](Tensor::read) for dtype, layout and alignment; then
    /// [`Borrow`](TensorError::Borrow) where the storage is frozen or has other handles.
    #[inline]
    pub fn get_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        let mut elements = self.typed::<T>()?;
        self.sole_storage()?;
        // SAFETY: `typed` checked bounds, alignment and dtype; the bytes are initialised
        // (`Buffer`'s contract), and the handle keeps them. It is the storage's only one and
        // borrowed mutably, so no other can be made meanwhile, and no guard lives: a guard
        // borrows a handle. The storage is not frozen.
        Ok(unsafe { elements.as_mut() })
    }

    /// A raw pointer to the first element, whatever it is. Never null. Where there are no
    /// elements it may not be read through.
    ///
    /// It is valid while a tensor of this storage lives. Whoever reads or writes through it
    /// answers for data races, for guards that are out, and for never writing what is frozen
    /// or leaving uninitialised (padding) bytes behind.
    #[inline]
    #[must_use]
    pub fn data(&self) -> *mut u8 {
        self.first_byte().as_ptr()
    }

    /// As [`data`](Tensor::data), for kernels of one dtype. It may be misaligned for `T`
    /// where the tensor was placed so.
    ///
    /// # Panics
    /// If `T` is not the tensor's dtype.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn data_ptr<T: Element>(&self) -> *mut T {
        assert!(
            T::DTYPE == self.dtype(),
            "data_ptr::<{}> of a tensor that holds {}",
            T::DTYPE,
            self.dtype()
        );
        self.first_byte().cast().as_ptr()
    }

    /// The elements in row-major order, to read, without looking at who else is there: for
    /// kernels that own their phase.
    ///
    /// # Errors
    /// [`DTypeMismatch`](TensorError::DTypeMismatch),
    /// [`NotContiguous`](TensorError::NotContiguous) and
    /// [`Misaligned`](TensorError::Misaligned).
    ///
    /// # Safety
    /// While the slice lives, nobody writes to these elements: through a guard, a slice, a
    /// raw pointer, or this or another view.
    #[inline]
    pub unsafe fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        let elements = self.typed::<T>()?;
        // SAFETY: `typed` checked bounds, alignment and dtype; the bytes are initialised
        // (`Buffer`'s contract), this handle keeps them, and nobody writes (the caller's
        // promise).
        Ok(unsafe { elements.as_ref() })
    }

    /// The elements in row-major order, to write, without looking at who else is there: for
    /// kernels that own their phase, each thread its own part of a tensor.
    ///
    /// # Errors
    /// As [`as_slice`](Tensor::as_slice); then [`Borrow`](TensorError::Borrow) where the
    /// storage is frozen.
    ///
    /// # Safety
    /// While the slice lives, nobody else reads or writes these elements: through a guard, a
    /// slice, a raw pointer, or this or another view. Nobody freezes the storage either.
    #[inline]
    #[allow(
        clippy::mut_from_ref,
        reason = "that nobody else has them is the caller's promise"
    )]
    pub unsafe fn as_mut_slice<T: Element>(&self) -> Result<&mut [T], TensorError> {
        let mut elements = self.typed::<T>()?;
        if self.is_frozen() {
            let storage = self.storage_id();
            return Err(BorrowError::Frozen { storage }.into());
        }
        // SAFETY: `typed` checked bounds, alignment and dtype; the bytes are initialised
        // (`Buffer`'s contract), this handle keeps them, they are not frozen, and nobody else
        // has them (the caller's promise).
        Ok(unsafe { elements.as_mut() })
    }

    /// The elements as a slice that may be made a reference by whoever knows that nobody
    /// is in the way.
    #[inline]
    pub(super) fn typed<T: Element>(&self) -> Result<NonNull<[T]>, TensorError> {
        let first = self.first_byte().cast::<T>();
        let aligned = first.addr().get().is_multiple_of(align_of::<T>());
        if T::DTYPE == self.dtype() && self.is_contiguous() && aligned {
            return Ok(NonNull::slice_from_raw_parts(first, self.numel()));
        }
        self.not_typed::<T>()
    }

    /// Why the elements are no slice; the cases in their order.
    #[cold]
    fn not_typed<T: Element>(&self) -> Result<NonNull<[T]>, TensorError> {
        if T::DTYPE != self.dtype() {
            return Err(TensorError::DTypeMismatch {
                asked: T::DTYPE,
                found: self.dtype(),
            });
        }
        self.must_be_contiguous()?;
        if self.numel() == 0 {
            // No elements are nowhere, so they are aligned.
            return Ok(NonNull::slice_from_raw_parts(NonNull::dangling(), 0));
        }
        Err(TensorError::Misaligned {
            dtype: self.dtype(),
            align: align_of::<T>(),
            past: self.first_byte().addr().get() % align_of::<T>(),
        })
    }
}
