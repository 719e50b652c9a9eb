//! The bytes of a strided view as one slice: from its first element to its last, what
//! lies between its elements included.
//!
//! Guards lend contiguous views only. Here the borrow of the whole storage lets a slice
//! reach over the gaps too, so the loops over it are safe code, and a wrong step is a
//! panic and not a wild write.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::memory::{Exclusive, Shared};
use crate::tensor::{Tensor, TensorError};
use crate::types::Element;

/// What a span may be cut into.
///
/// # Safety
/// Every pattern of its bytes is a value, and it has no padding.
pub(super) unsafe trait Word: Copy + Send + Sync {}

// SAFETY: `Element` promises both.
unsafe impl<T: Element> Word for T {}
// SAFETY: bytes.
unsafe impl<const N: usize> Word for [u8; N] {}
// SAFETY: as `T`, which `Element` promises it for; packing adds none.
unsafe impl<T: Element> Word for Packed<T> {}

/// An element that may lie anywhere.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(super) struct Packed<T>(pub(super) T);

/// The span of a view, not yet borrowed: empty for a view without elements, `None` where
/// it is misaligned for `W`.
///
/// # Panics
/// If `W` is not as wide as an element.
pub(super) fn span<W: Word>(tensor: &Tensor) -> Option<NonNull<[W]>> {
    assert_eq!(
        size_of::<W>(),
        tensor.dtype().bytes(),
        "width of an element"
    );
    let len = tensor.span_bytes() / size_of::<W>();
    if len == 0 {
        return Some(NonNull::slice_from_raw_parts(NonNull::dangling(), 0));
    }
    let first = tensor.first_byte().cast::<W>();
    first
        .is_aligned()
        .then(|| NonNull::slice_from_raw_parts(first, len))
}

/// A view that nobody writes while this lives.
pub(super) struct Reading<'a> {
    tensor: &'a Tensor,
    _held: Shared<'a>,
}

impl<'a> Reading<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Result<Self, TensorError> {
        Ok(Reading {
            tensor,
            _held: tensor.storage().share()?,
        })
    }

    /// `None` where the view is misaligned for `W`.
    pub(super) fn aligned<W: Word>(&self) -> Option<&[W]> {
        let span = span::<W>(self.tensor)?;
        // SAFETY: `span` checked alignment and width; the elements lie inside the storage
        // (views were checked), which the tensor keeps; its bytes are initialised
        // (`Buffer`'s contract), every pattern is a `W` (`Word`'s), and nobody writes
        // to the storage while `_held` lives.
        Some(unsafe { span.as_ref() })
    }

    /// The view as elements that may lie anywhere.
    pub(super) fn packed<T: Element>(&self) -> &[Packed<T>] {
        self.aligned().unwrap_or(&[])
    }
}

/// Two spans of one storage that share no byte: to write and to read.
pub(super) type Beside<'a, const N: usize> = (&'a mut [[u8; N]], &'a [[u8; N]]);

/// A view that nobody else touches while this lives.
pub(super) struct Writing<'a> {
    tensor: &'a Tensor,
    _held: Exclusive<'a>,
    _lends: PhantomData<&'a mut [u8]>,
}

impl<'a> Writing<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Result<Self, TensorError> {
        Ok(Writing {
            tensor,
            _held: tensor.storage().exclude()?,
            _lends: PhantomData,
        })
    }

    /// `None` where the view is misaligned for `W`.
    pub(super) fn aligned<W: Word>(&mut self) -> Option<&mut [W]> {
        let mut span = span::<W>(self.tensor)?;
        // SAFETY: `span` checked alignment and width; the elements lie inside the storage
        // (views were checked), which the tensor keeps; its bytes are initialised
        // (`Buffer`'s contract), every pattern is a `W` (`Word`'s), nobody else touches
        // the storage while `_held` lives, and `&mut self` lends the span once at a time.
        Some(unsafe { span.as_mut() })
    }

    /// The view as elements that may lie anywhere.
    pub(super) fn packed<T: Element>(&mut self) -> &mut [Packed<T>] {
        self.aligned().unwrap_or(&mut [])
    }

    /// This view and one of the same storage, to read. `None` where their bytes meet.
    pub(super) fn beside<const N: usize>(&mut self, other: &Tensor) -> Option<Beside<'_, N>> {
        let one_storage = self.tensor.storage().is_same(other.storage());
        if !one_storage || self.tensor.overlaps(other) {
            return None;
        }
        let from = span::<[u8; N]>(other)?;
        let to = self.aligned::<[u8; N]>()?;
        // SAFETY: in bounds, initialised and bytes, as in `aligned`; it is of the storage
        // that `_held` keeps everybody else away from, and shares no byte with `to`.
        let from = unsafe { from.as_ref() };
        Some((to, from))
    }
}
