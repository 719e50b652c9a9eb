//! [`Tensor`]: a storage, and how to look at a part of it.

use std::fmt;
use std::ptr::NonNull;

use super::{TensorError, ops};
use crate::memory::{AllocError, Buffer, SharedAllocator, Storage, StorageId};
use crate::types::{DType, Device, Shape, Strides, row_major_strides};

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
/// There is always a tensor in a `Tensor`: where there may be none, there is
/// `Option<Tensor>`, which is no larger, and one that was moved from cannot be named:
///
/// ```compile_fail,E0382
/// # use tenslab::{DType, Tensor, memory};
/// let tensor = Tensor::zeros([2], DType::F32, memory::cpu()).unwrap();
/// let moved = tensor;
/// println!("{}", tensor.numel());
/// ```
///
/// Cost: 176 bytes; a clone or a view is one atomic addition and copies the rest, and
/// makes no heap block. Different handles of one storage may be used from different
/// threads at once.
#[derive(Clone)]
pub struct Tensor {
    storage: Storage,
    byte_offset: usize,
    shape: Shape,
    strides: Strides,
    dtype: DType,
    /// Do the strides pack the shape? Asked at each access, so answered once.
    contiguous: bool,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Tensor>() == 176);
const _: () = assert!(size_of::<Option<Tensor>>() == size_of::<Tensor>());

/// Bytes of `numel` elements, at most `i64::MAX`.
#[inline]
fn byte_len(numel: usize, dtype: DType) -> Result<usize, TensorError> {
    numel
        .checked_mul(dtype.bytes())
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or(TensorError::SizeOverflow { numel, dtype })
}

/// No safe call reads memory that is not the host's, because no tensor of it is made.
#[inline]
fn refuse_all_but_the_host(device: Device) -> Result<(), TensorError> {
    if !device.is_cpu() {
        return Err(AllocError::UnsupportedDevice { device }.into());
    }
    Ok(())
}

#[inline]
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
    /// In this order: [`Unimplemented`](TensorError::Unimplemented) for a reserved dtype,
    /// [`UnsupportedDevice`](AllocError::UnsupportedDevice) where the allocator's is not the
    /// host, [`SizeOverflow`](TensorError::SizeOverflow), and whatever the allocator says.
    ///
    /// # Panics
    /// If the shape is an array of more than 8 dimensions or too many elements. For shapes
    /// from data there is [`Shape::from_dims`].
    #[inline]
    #[track_caller]
    pub fn empty(
        shape: impl Into<Shape>,
        dtype: DType,
        allocator: &SharedAllocator,
    ) -> Result<Tensor, TensorError> {
        Self::fresh(shape.into(), dtype, allocator, false)
    }

    /// A contiguous tensor of zeros. Large ones are fresh pages that nobody touched.
    ///
    /// # Errors
    /// As [`empty`](Tensor::empty).
    ///
    /// # Panics
    /// If the shape is an array of more than 8 dimensions or too many elements. For shapes
    /// from data there is [`Shape::from_dims`].
    #[inline]
    #[track_caller]
    pub fn zeros(
        shape: impl Into<Shape>,
        dtype: DType,
        allocator: &SharedAllocator,
    ) -> Result<Tensor, TensorError> {
        Self::fresh(shape.into(), dtype, allocator, true)
    }

    fn fresh(
        shape: Shape,
        dtype: DType,
        allocator: &SharedAllocator,
        zeroed: bool,
    ) -> Result<Tensor, TensorError> {
        refuse_reserved(dtype)?;
        refuse_all_but_the_host(allocator.device())?;
        let bytes = byte_len(shape.numel(), dtype)?;
        let buffer = if zeroed {
            allocator.allocate_zeroed(bytes, TENSOR_ALIGN)?
        } else {
            allocator.allocate(bytes, TENSOR_ALIGN)?
        };
        Ok(Self::packed(Storage::from(buffer), 0, shape, dtype))
    }

    /// A contiguous tensor over part of a storage, which it shares: many tensors over
    /// one slab of weights, say.
    ///
    /// The offset may be any, but typed access needs the alignment of the elements.
    ///
    /// # Errors
    /// In this order: [`Unimplemented`](TensorError::Unimplemented) for a reserved dtype,
    /// [`UnsupportedDevice`](AllocError::UnsupportedDevice) where the storage is not on the
    /// host, [`SizeOverflow`](TensorError::SizeOverflow), and
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
        refuse_all_but_the_host(storage.device())?;
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

    /// The same elements, packed: this tensor again where it is contiguous already (it then
    /// shares the bytes, as a clone does), else a copy from `allocator`. Of the methods it is the only
    /// one that copies; the functions in [`ops`] say so by name.
    ///
    /// For bytes of its own whatever the layout, copy into a new tensor, of any dtype:
    ///
    /// ```
    /// # use tenslab::{DType, Tensor, memory, ops};
    /// let matrix = Tensor::zeros([3, 4], DType::F32, memory::cpu())?;
    /// let packed = matrix.transpose(0, 1)?.contiguous_in(memory::cpu())?;
    /// assert_eq!(packed.strides().values(), [3, 1]);
    /// assert_ne!(packed.storage_id(), matrix.storage_id());
    /// assert_eq!(packed.contiguous_in(memory::cpu())?.storage_id(), packed.storage_id());
    ///
    /// let own = Tensor::empty(*packed.shape(), packed.dtype(), memory::cpu())?;
    /// ops::copy(&own, &packed)?;
    /// assert_ne!(own.storage_id(), packed.storage_id());
    /// # Ok::<(), tenslab::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// The allocator's, and [`Borrow`](TensorError::Borrow) while somebody writes; none where
    /// it is contiguous already.
    pub fn contiguous_in(&self, allocator: &SharedAllocator) -> Result<Tensor, TensorError> {
        if self.contiguous {
            return Ok(self.clone());
        }
        let packed = Self::empty(self.shape, self.dtype, allocator)?;
        ops::copy(&packed, self)?;
        Ok(packed)
    }

    /// The caller has checked that the elements lie inside the storage.
    #[inline]
    pub(super) fn packed(
        storage: Storage,
        byte_offset: usize,
        shape: Shape,
        dtype: DType,
    ) -> Tensor {
        Tensor {
            storage,
            byte_offset,
            strides: row_major_strides(&shape),
            shape,
            dtype,
            contiguous: true,
        }
    }

    /// The same storage under the same strides: another part of it. Every element of the
    /// view has to be an element of this tensor, and the caller knows whether it is packed.
    #[inline]
    pub(super) fn seen_at(&self, byte_offset: usize, shape: Shape, contiguous: bool) -> Tensor {
        Tensor {
            storage: self.storage.clone(),
            byte_offset,
            shape,
            strides: self.strides,
            dtype: self.dtype,
            contiguous,
        }
    }

    /// The same storage, seen otherwise: a clone that `change` makes a view. Every element
    /// of the view has to be an element of this tensor.
    ///
    /// In place, because 176 bytes that were just written in parts are slow to copy once
    /// more (the processor has to wait for the parts).
    #[inline]
    pub(super) fn seen(&self, change: impl FnOnce(&mut Layout<'_>)) -> Tensor {
        let mut view = self.clone();
        change(&mut Layout {
            byte_offset: &mut view.byte_offset,
            shape: &mut view.shape,
            strides: &mut view.strides,
            dtype: &mut view.dtype,
        });
        view.contiguous = view.strides.are_contiguous_for(&view.shape);
        view
    }

    /// Its size along each dimension.
    #[inline]
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How far apart neighbours are along each dimension, in elements.
    #[inline]
    #[must_use]
    pub fn strides(&self) -> &Strides {
        &self.strides
    }

    /// What an element is.
    #[inline]
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
    #[inline]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The number of elements.
    #[inline]
    #[must_use]
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Bytes of all elements, gaps between them not counted.
    #[inline]
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.numel() * self.dtype.bytes()
    }

    /// Are the elements packed in row-major order?
    #[inline]
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.contiguous
    }

    /// Where in the storage the first element is.
    #[inline]
    #[must_use]
    pub fn byte_offset(&self) -> usize {
        self.byte_offset
    }

    /// The bytes it shares.
    #[inline]
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The name of the bytes it shares: the one that errors give.
    #[must_use]
    pub fn storage_id(&self) -> StorageId {
        self.storage.id()
    }

    /// Checks that nobody else can be at the bytes and that they are not frozen.
    #[inline]
    pub(super) fn sole_storage(&mut self) -> Result<(), TensorError> {
        Ok(self.storage.must_be_sole()?)
    }

    /// The first element's first byte.
    #[inline]
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

/// What a view may change of a tensor: all but the storage.
pub(super) struct Layout<'a> {
    pub(super) byte_offset: &'a mut usize,
    pub(super) shape: &'a mut Shape,
    pub(super) strides: &'a mut Strides,
    pub(super) dtype: &'a mut DType,
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
