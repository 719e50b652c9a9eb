use std::fmt;
use std::ptr::NonNull;

use super::TensorError;
use crate::memory::{Buffer, SharedAllocator, Storage};
use crate::types::{DType, Device, Element, Shape, Strides, row_major_strides};

/// Tensors begin at multiples of this: a cache line, and enough for every SIMD width.
const TENSOR_ALIGN: usize = 64;

/// A view of shared storage: where it begins, its shape, strides and dtype.
///
/// A clone is shallow: it shares the bytes, and so does every view. There is no
/// difference between a tensor that owns and one that looks; the storage lives until
/// the last of them is gone. Two tensors are not comparable with `==`: it could mean
/// the same bytes or the same values.
///
/// ```
/// use tenslab::{DType, Tensor, memory};
///
/// let matrix = Tensor::zeros([2, 3], DType::F32, memory::cpu())?;
/// let column = matrix.slice(1, 2, 3)?;              // shares the bytes
/// matrix.write::<f32>()?[5] = 7.0;
/// assert_eq!(column.item::<f32>(&[1, 0]), 7.0);
/// assert_eq!(column.strides().values(), [3, 1]);    // not contiguous,
/// assert!(column.reshape([2]).is_err());            // and never copied behind your back
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// Cost: 176 bytes; a clone or a view is one atomic addition and copies the rest.
/// Different handles of one storage may be used from different threads at once.
#[derive(Clone)]
pub struct Tensor {
    storage: Storage,
    byte_offset: usize,
    shape: Shape,
    strides: Strides,
    dtype: DType,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Tensor>() == 176);

/// Bytes of `numel` elements, at most `i64::MAX`.
fn byte_len(numel: usize, dtype: DType) -> Result<usize, TensorError> {
    numel
        .checked_mul(dtype.bytes())
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or(TensorError::SizeOverflow { numel, dtype })
}

fn refuse_reserved(dtype: DType) -> Result<(), TensorError> {
    if dtype.is_reserved() {
        return Err(TensorError::Unimplemented { dtype });
    }
    Ok(())
}

impl Tensor {
    /// A contiguous tensor whose elements are initialised, but to anything.
    ///
    /// It begins at a multiple of 64 bytes. From a slab it makes no heap block (but one
    /// where it has no elements: such a block has no place in a slab).
    ///
    /// # Errors
    /// [`Unimplemented`](TensorError::Unimplemented) for a reserved dtype,
    /// [`SizeOverflow`](TensorError::SizeOverflow), and whatever the allocator says.
    ///
    /// # Panics
    /// If the shape is an array of more than 8 dimensions or too many elements. For shapes
    /// from data there is [`Shape::from_dims`].
    #[track_caller]
    pub fn empty(
        shape: impl Into<Shape>,
        dtype: DType,
        allocator: &SharedAllocator,
    ) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        refuse_reserved(dtype)?;
        let bytes = byte_len(shape.numel(), dtype)?;
        let storage = Storage::from(allocator.allocate(bytes, TENSOR_ALIGN)?);
        Ok(Self::packed(storage, 0, shape, dtype))
    }

    /// A contiguous tensor of zeros. Large ones are fresh pages that nobody touched.
    ///
    /// # Errors
    /// As [`empty`](Tensor::empty).
    ///
    /// # Panics
    /// If the shape is an array of more than 8 dimensions or too many elements. For shapes
    /// from data there is [`Shape::from_dims`].
    #[track_caller]
    pub fn zeros(
        shape: impl Into<Shape>,
        dtype: DType,
        allocator: &SharedAllocator,
    ) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        refuse_reserved(dtype)?;
        let bytes = byte_len(shape.numel(), dtype)?;
        let storage = Storage::from(allocator.allocate_zeroed(bytes, TENSOR_ALIGN)?);
        Ok(Self::packed(storage, 0, shape, dtype))
    }

    /// A contiguous tensor over part of a storage, which it shares: many tensors over
    /// one slab of weights, say.
    ///
    /// The offset may be any, but typed access needs the alignment of the elements.
    ///
    /// # Errors
    /// [`Unimplemented`](TensorError::Unimplemented) for a reserved dtype,
    /// [`SizeOverflow`](TensorError::SizeOverflow), and
    /// [`OutOfBounds`](TensorError::OutOfBounds) where it would not fit.
    ///
    /// # Panics
    /// If the shape is an array of more than 8 dimensions or too many elements. For shapes
    /// from data there is [`Shape::from_dims`].
    #[track_caller]
    pub fn from_storage(
        storage: &Storage,
        byte_offset: usize,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        refuse_reserved(dtype)?;
        let bytes = byte_len(shape.numel(), dtype)?;
        let fits = byte_offset
            .checked_add(bytes)
            .is_some_and(|end| end <= storage.len());
        if !fits {
            return Err(TensorError::OutOfBounds {
                storage: storage.id(),
                len: storage.len(),
                offset: byte_offset,
                bytes,
            });
        }
        Ok(Self::packed(storage.clone(), byte_offset, shape, dtype))
    }

    /// A contiguous tensor over part of a buffer, which it takes. The short form of
    /// [`from_storage`](Tensor::from_storage).
    ///
    /// # Errors
    /// As [`from_storage`](Tensor::from_storage); the buffer is then given back.
    ///
    /// # Panics
    /// If the shape is an array of more than 8 dimensions or too many elements. For shapes
    /// from data there is [`Shape::from_dims`].
    #[track_caller]
    pub fn from_buffer(
        buffer: Buffer,
        byte_offset: usize,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> Result<Tensor, TensorError> {
        Self::from_storage(&Storage::from(buffer), byte_offset, shape, dtype)
    }

    /// The caller has checked that the elements lie inside the storage.
    fn packed(storage: Storage, byte_offset: usize, shape: Shape, dtype: DType) -> Tensor {
        Tensor {
            storage,
            byte_offset,
            strides: row_major_strides(&shape),
            shape,
            dtype,
        }
    }

    /// The same storage, seen otherwise. The caller has checked that every element of
    /// the new view is an element of this one.
    pub(super) fn seen_as(
        &self,
        byte_offset: usize,
        shape: Shape,
        strides: Strides,
        dtype: DType,
    ) -> Tensor {
        Tensor {
            storage: self.storage.clone(),
            byte_offset,
            shape,
            strides,
            dtype,
        }
    }

    /// Its size along each dimension.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How far apart neighbours are along each dimension, in elements.
    #[must_use]
    pub fn strides(&self) -> &Strides {
        &self.strides
    }

    /// What an element is.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where the bytes are.
    #[must_use]
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// The number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The number of elements.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Bytes of all elements, gaps between them not counted.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.numel() * self.dtype.bytes()
    }

    /// Are the elements packed in row-major order?
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.strides.are_contiguous_for(&self.shape)
    }

    /// Where in the storage the first element is.
    #[must_use]
    pub fn byte_offset(&self) -> usize {
        self.byte_offset
    }

    /// The bytes it shares.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// A raw pointer to the first element, for kernels. Never null. For a tensor
    /// without elements it may not be read through.
    ///
    /// The pointer is valid while a tensor of this storage lives. Whoever reads or writes
    /// through it answers for data races and for guards that are out; it may be
    /// misaligned for `T` where the tensor was placed so.
    ///
    /// # Panics
    /// If `T` is not the tensor's dtype.
    #[must_use]
    #[track_caller]
    pub fn data_ptr<T: Element>(&self) -> *mut T {
        assert!(
            T::DTYPE == self.dtype,
            "data_ptr::<{}> of a tensor that holds {}",
            T::DTYPE,
            self.dtype
        );
        self.first_byte().cast().as_ptr()
    }

    /// The first element's first byte.
    pub(super) fn first_byte(&self) -> NonNull<u8> {
        // SAFETY: in bounds or one past the end: every constructor and view checked
        // that `byte_offset` is at most the storage's length.
        unsafe { self.storage.base().add(self.byte_offset) }
    }

    /// Bytes from the first element's first to the last one's last; 0 without elements.
    pub(super) fn span_bytes(&self) -> usize {
        if self.numel() == 0 {
            return 0;
        }
        let last: usize = self
            .shape
            .dims()
            .iter()
            .zip(self.strides.values())
            .map(|(&dim, &stride)| (dim - 1) * stride)
            .sum();
        (last + 1) * self.dtype.bytes()
    }

    /// Forbids writing to the storage, for ever, through every tensor that shares it.
    ///
    /// # Errors
    /// [`Borrow`](TensorError::Borrow) while somebody writes.
    pub fn freeze(&self) -> Result<(), TensorError> {
        Ok(self.storage.freeze()?)
    }

    /// Is writing to the storage forbidden for ever?
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.storage.is_frozen()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("shape", &self.shape)
            .field("strides", &self.strides)
            .field("dtype", &self.dtype)
            .field("byte_offset", &self.byte_offset)
            .field("storage", &self.storage)
            .finish()
    }
}
