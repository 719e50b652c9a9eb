//! Guards: checked access to a tensor's elements.
//!
//! ```text
//!                     somebody reads     somebody writes     frozen
//!   read              yes                Err                 yes, and costs a load
//!   write             Err                Err                 Err
//! ```
//!
//! The state belongs to the storage, so tensors that share one exclude each other even
//! where their elements do not overlap; [`Tensor::write_disjoint`] is for that case.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{Tensor, TensorError};
use crate::memory::{Exclusive, Shared};
use crate::types::Element;

/// Elements that nobody writes while the guard lives.
pub struct ReadGuard<'a, T> {
    elements: NonNull<[T]>,
    _held: Shared<'a>,
    _lends: PhantomData<&'a [T]>,
}

/// Elements that nobody else reads or writes while the guard lives.
pub struct WriteGuard<'a, T> {
    elements: NonNull<[T]>,
    _held: Exclusive<'a>,
    _lends: PhantomData<&'a mut [T]>,
}

/// Elements of several tensors of one storage, none of them shared.
pub struct DisjointGuard<'a, T, const N: usize> {
    elements: [NonNull<[T]>; N],
    _held: Exclusive<'a>,
    _lends: PhantomData<&'a mut [T]>,
}

// SAFETY: it lends `&[T]` and ends its borrow with an atomic subtraction, from any thread.
unsafe impl<T: Sync> Send for ReadGuard<'_, T> {}
// SAFETY: `&ReadGuard` lends `&[T]` only.
unsafe impl<T: Sync> Sync for ReadGuard<'_, T> {}
// SAFETY: it lends `&mut [T]` and ends its borrow with an atomic operation, from any thread.
unsafe impl<T: Send> Send for WriteGuard<'_, T> {}
// SAFETY: `&WriteGuard` lends `&[T]` only.
unsafe impl<T: Sync> Sync for WriteGuard<'_, T> {}
// SAFETY: it lends `&mut [T]`s and ends its borrow with an atomic operation, from any thread.
unsafe impl<T: Send, const N: usize> Send for DisjointGuard<'_, T, N> {}
// SAFETY: `&DisjointGuard` lends nothing.
unsafe impl<T: Sync, const N: usize> Sync for DisjointGuard<'_, T, N> {}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `typed` checked bounds, alignment and dtype; the bytes are
        // initialised (`Buffer`'s contract), the tensor that the guard borrows keeps
        // them, and while `_held` lives nobody writes.
        unsafe { self.elements.as_ref() }
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `typed` checked bounds, alignment and dtype; the bytes are initialised
        // (`Buffer`'s contract), the tensor that the guard borrows keeps them, and while
        // `_held` lives nobody else touches them.
        unsafe { self.elements.as_ref() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `typed` checked bounds, alignment and dtype; the bytes are initialised
        // (`Buffer`'s contract), the tensor that the guard borrows keeps them; while
        // `_held` lives nobody else touches them, and `&mut self` keeps other borrows of
        // this guard away.
        unsafe { self.elements.as_mut() }
    }
}

impl<T, const N: usize> DisjointGuard<'_, T, N> {
    /// The elements of each tensor, in the order they were named.
    #[must_use]
    pub fn slices(&mut self) -> [&mut [T]; N] {
        self.elements.map(|mut elements| {
            // SAFETY: `typed` checked bounds, alignment and dtype of each; the bytes are
            // initialised (`Buffer`'s contract), the tensors that the guard borrows keep
            // them; while `_held` lives nobody else touches them, `write_disjoint` checked
            // that no two share a byte, and `&mut self` lends each of them once at a time.
            unsafe { elements.as_mut() }
        })
    }
}

impl<T: fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: fmt::Debug> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T, const N: usize> fmt::Debug for DisjointGuard<'_, T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DisjointGuard")
            .field("elements", &self.elements.map(|elements| elements.len()))
            .finish_non_exhaustive()
    }
}

impl Tensor {
    /// The elements in row-major order, to read.
    ///
    /// Several readers may be there at once. Frozen storage is read without counting:
    /// no write that threads would have to share.
    ///
    /// # Errors
    /// In this order: [`DTypeMismatch`](TensorError::DTypeMismatch),
    /// [`NotContiguous`](TensorError::NotContiguous),
    /// [`Misaligned`](TensorError::Misaligned), and
    /// [`Borrow`](TensorError::Borrow) while somebody writes, or where half a billion
    /// guards are out
    /// ([`TooManyReaders`](crate::memory::BorrowError::TooManyReaders)).
    #[inline]
    pub fn read<T: Element>(&self) -> Result<ReadGuard<'_, T>, TensorError> {
        let elements = self.typed::<T>()?;
        Ok(ReadGuard {
            elements,
            _held: self.storage().share()?,
            _lends: PhantomData,
        })
    }

    /// The elements in row-major order, to write.
    ///
    /// # Errors
    /// As [`read`](Tensor::read), and [`Borrow`](TensorError::Borrow) also while
    /// somebody reads, or where the storage is frozen.
    #[inline]
    pub fn write<T: Element>(&self) -> Result<WriteGuard<'_, T>, TensorError> {
        let elements = self.typed::<T>()?;
        Ok(WriteGuard {
            elements,
            _held: self.storage().exclude()?,
            _lends: PhantomData,
        })
    }

    /// The bytes of all elements in row-major order, whatever they are, to read.
    ///
    /// # Errors
    /// [`NotContiguous`](TensorError::NotContiguous), and
    /// [`Borrow`](TensorError::Borrow) as in [`read`](Tensor::read).
    #[inline]
    pub fn read_bytes(&self) -> Result<ReadGuard<'_, u8>, TensorError> {
        self.must_be_contiguous()?;
        Ok(ReadGuard {
            elements: NonNull::slice_from_raw_parts(self.first_byte(), self.nbytes()),
            _held: self.storage().share()?,
            _lends: PhantomData,
        })
    }

    /// The bytes of all elements in row-major order, whatever they are, to write: from a
    /// file or a socket, say. Every pattern of bits is an element.
    ///
    /// # Errors
    /// As [`read_bytes`](Tensor::read_bytes), and [`Borrow`](TensorError::Borrow) also while
    /// somebody reads, or where the storage is frozen.
    #[inline]
    pub fn write_bytes(&self) -> Result<WriteGuard<'_, u8>, TensorError> {
        self.must_be_contiguous()?;
        Ok(WriteGuard {
            elements: NonNull::slice_from_raw_parts(self.first_byte(), self.nbytes()),
            _held: self.storage().exclude()?,
            _lends: PhantomData,
        })
    }

    /// The elements of several tensors of one storage, to write, all at once: the q, k
    /// and v of a fused buffer, say. They may not share a byte.
    ///
    /// ```
    /// use tenslab::{DType, Tensor, memory};
    ///
    /// let qkv = Tensor::zeros([3, 64], DType::F32, memory::cpu())?;
    /// let (q, k) = (qkv.slice(0, 0, 1)?, qkv.slice(0, 1, 2)?);
    /// assert!(q.write::<f32>().is_ok_and(|_q| k.write::<f32>().is_err()));
    ///
    /// let mut both = Tensor::write_disjoint::<f32, 2>([&q, &k])?;
    /// let [q, k] = both.slices();
    /// q[0] = 1.0;
    /// k.copy_from_slice(q);
    /// # Ok::<(), tenslab::tensor::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// As [`write`](Tensor::write), and [`NotOneStorage`](TensorError::NotOneStorage) or
    /// [`Overlap`](TensorError::Overlap) with the positions of the tensors.
    ///
    /// # Panics
    /// If no tensor is named.
    #[track_caller]
    pub fn write_disjoint<'a, T: Element, const N: usize>(
        tensors: [&'a Tensor; N],
    ) -> Result<DisjointGuard<'a, T, N>, TensorError> {
        assert!(N > 0, "write_disjoint of no tensor");
        let storage = tensors[0].storage();
        let mut elements = [NonNull::slice_from_raw_parts(NonNull::dangling(), 0); N];
        for (position, tensor) in tensors.iter().enumerate() {
            if !tensor.storage().is_same(storage) {
                return Err(TensorError::NotOneStorage {
                    expected: storage.id(),
                    found: tensor.storage().id(),
                    position,
                });
            }
            elements[position] = tensor.typed::<T>()?;
            if let Some(first) = (0..position).find(|&first| tensors[first].overlaps(tensor)) {
                return Err(TensorError::Overlap {
                    storage: storage.id(),
                    first,
                    second: position,
                });
            }
        }
        Ok(DisjointGuard {
            elements,
            _held: storage.exclude()?,
            _lends: PhantomData,
        })
    }

    /// One element, for tests and for looking at. Follows the strides, so it works on
    /// every view. Too slow for anything else.
    ///
    /// # Panics
    /// If `T` is not the tensor's dtype, if there are more or fewer indices than
    /// dimensions, if one is out of range, or where [`read`](Tensor::read) would be refused
    /// the borrow: while somebody writes.
    #[must_use]
    #[track_caller]
    pub fn item<T: Element>(&self, indices: &[usize]) -> T {
        let first = self.data_ptr::<T>();
        assert_eq!(
            indices.len(),
            self.rank(),
            "{} indices into a tensor of rank {}",
            indices.len(),
            self.rank()
        );
        let mut element = 0;
        for (dim, &index) in indices.iter().enumerate() {
            let size = self.shape().dim(dim);
            assert!(
                index < size,
                "index {index} of dimension {dim}, which has {size}"
            );
            element += index * self.strides().stride(dim);
        }
        let _held = match self.storage().share() {
            Ok(held) => held,
            Err(error) => panic!("item: {error}"),
        };
        // SAFETY: every index is inside its dimension, so this is an element of the
        // view, and views were checked to lie inside their storage.
        let place = unsafe { first.add(element) };
        // SAFETY: an element of the view, so readable; initialised (`Buffer`'s contract),
        // every pattern is a `T` (`Element`'s), and nobody writes while `_held` lives.
        // Unaligned, because a view may begin anywhere.
        unsafe { place.read_unaligned() }
    }

    /// Do the ranges of bytes from first to last element meet? (Both of one storage.)
    pub(super) fn overlaps(&self, other: &Tensor) -> bool {
        let (mine, theirs) = (self.span_bytes(), other.span_bytes());
        mine > 0
            && theirs > 0
            && self.byte_offset() < other.byte_offset() + theirs
            && other.byte_offset() < self.byte_offset() + mine
    }
}
