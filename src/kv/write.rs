//! Writing a step's new slots: whole layers with [`LayerMut::write`], or piece by
//! piece, in place, with [`LayerMut::runs`].

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;

use crate::types::half::{narrow_bf16, narrow_f16};
use crate::types::{DType, Element, bf16, f16};

use super::layout::Part;
use super::{KvError, LayerSet, Sequence};

/// The new slots of one layer, from [`Step::layer_mut`](super::Step::layer_mut).
///
/// Borrows the step mutably: while one lives nothing of the step can be read, and
/// there is no other.
pub struct LayerMut<'s> {
    /// Shared only in type: the step behind it is borrowed mutably for `'s`, and this
    /// module does not read planes.
    sequence: &'s Sequence,
    written: &'s mut LayerSet,
    layer: usize,
    tokens: usize,
}

impl<'s> LayerMut<'s> {
    /// To be called with two parts of one `&'s mut Step`, and an existing layer.
    pub(super) fn new(
        sequence: &'s Sequence,
        written: &'s mut LayerSet,
        layer: usize,
        tokens: usize,
    ) -> Self {
        Self {
            sequence,
            written,
            layer,
            tokens,
        }
    }

    /// Writes all new slots: token-major `keys` of `[tokens, heads, key_dim]` and
    /// `values` of `[tokens, heads, value_dim]`, scattered into the cache's layout. For a
    /// cache of one component `values` is empty.
    ///
    /// `T` is the cache's dtype, or `f32`, which is then narrowed exactly as
    /// [`types::half`](crate::types::half) does (to nearest, ties to even).
    ///
    /// # Errors
    /// [`KvError::ShapeMismatch`] with the numbers if a slice has another length, and
    /// [`KvError::DTypeMismatch`] for any other `T`. Nothing is written then.
    pub fn write<T: Element>(&mut self, keys: &[T], values: &[T]) -> Result<(), KvError> {
        self.check_shape(Part::Keys, keys.len())?;
        self.check_shape(Part::Values, values.len())?;
        let cache = self.sequence.shared().spec.dtype();
        if T::DTYPE == cache {
            return self.scatter(keys, values, |from: &[T], to: &mut [T]| {
                to.copy_from_slice(from)
            });
        }
        match (cache, as_f32(keys), as_f32(values)) {
            (DType::F16, Some(keys), Some(values)) => {
                self.scatter::<f32, f16>(keys, values, narrow_f16)
            }
            (DType::BF16, Some(keys), Some(values)) => {
                self.scatter::<f32, bf16>(keys, values, narrow_bf16)
            }
            _ => Err(KvError::DTypeMismatch {
                cache,
                asked: T::DTYPE,
            }),
        }
    }

    /// The new slots themselves, for kernels that write in place: contiguous pieces
    /// that together are all new keys and values of the layer, block by block. A cache of
    /// one component has no values, and no piece of them.
    ///
    /// Pieces hold old bytes. The layer counts as written once the last piece was
    /// lent, so the iterator must be driven to its end.
    ///
    /// # Errors
    /// [`KvError::DTypeMismatch`] if `T` is not the cache's dtype.
    pub fn runs<T: Element>(self) -> Result<Runs<'s, T>, KvError> {
        let spec = &self.sequence.shared().spec;
        if T::DTYPE != spec.dtype() {
            return Err(KvError::DTypeMismatch {
                cache: spec.dtype(),
                asked: T::DTYPE,
            });
        }
        let start = self.sequence.len();
        let block = start / spec.block_tokens();
        Ok(Runs {
            sequence: self.sequence,
            written: self.written,
            layer: self.layer,
            start,
            end: start + self.tokens,
            next: Some(Cursor {
                block,
                part: Part::Keys,
                head: 0,
            }),
            lends: PhantomData,
        })
    }

    fn check_shape(&self, part: Part, got: usize) -> Result<(), KvError> {
        let shape = self.sequence.shared().spec.block_layout().part(part);
        let (tokens, heads, dim) = (self.tokens, shape.heads, shape.dim);
        // A product too large to exist as a slice is a mismatch as well.
        let expected = (heads * dim).saturating_mul(tokens);
        if got != expected {
            return Err(KvError::ShapeMismatch {
                part,
                got,
                expected,
                tokens,
                heads,
                dim,
            });
        }
        Ok(())
    }

    /// Copies token-major rows to where they belong, through `store`.
    fn scatter<S: Copy, T: Element>(
        &mut self,
        keys: &[S],
        values: &[S],
        store: impl Fn(&[S], &mut [T]),
    ) -> Result<(), KvError> {
        let again = LayerMut {
            written: &mut *self.written,
            ..*self
        };
        for run in again.runs::<T>()? {
            let from = match run.part {
                Part::Keys => keys,
                Part::Values => values,
            };
            let token_stride = run.all_heads * run.dim;
            let from = &from[run.token * token_stride + run.head * run.dim..];
            if run.heads == run.all_heads {
                store(&from[..run.data.len()], run.data);
                continue;
            }
            for (to, from) in run
                .data
                .chunks_exact_mut(run.dim)
                .zip(from.chunks(token_stride))
            {
                store(&from[..run.dim], to);
            }
        }
        Ok(())
    }
}

/// `slice` itself, if `T` is `f32`.
fn as_f32<T: Element>(slice: &[T]) -> Option<&[f32]> {
    if TypeId::of::<T>() != TypeId::of::<f32>() {
        return None;
    }
    let first = slice.as_ptr().cast::<f32>();
    // SAFETY: `T` is `f32`, so this is the slice that it came from: same address, same
    // length, same lifetime, and a shared borrow like it.
    Some(unsafe { std::slice::from_raw_parts(first, slice.len()) })
}

/// A contiguous piece of a layer's new slots, from [`LayerMut::runs`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Run<'r, T> {
    /// Keys or values.
    pub part: Part,
    /// The first head of the piece.
    pub head: usize,
    /// Heads in the piece: all where the heads of a token are contiguous (NHD), else 1.
    pub heads: usize,
    /// The first token of the piece, counted from the step's first.
    pub token: usize,
    /// Tokens in the piece.
    pub tokens: usize,
    /// Elements of one head's key or value.
    pub dim: usize,
    /// `[tokens, heads, dim]`, to be written.
    pub data: &'r mut [T],
    /// Heads of the layer: the stride of a token-major source.
    all_heads: usize,
}

/// The pieces of a layer's new slots, from [`LayerMut::runs`].
pub struct Runs<'r, T> {
    /// As in [`LayerMut`]: exclusive for `'r`.
    sequence: &'r Sequence,
    written: &'r mut LayerSet,
    layer: usize,
    /// The new tokens, as positions in the sequence.
    start: usize,
    end: usize,
    next: Option<Cursor>,
    lends: PhantomData<&'r mut [T]>,
}

/// Which piece comes next: block by block, keys before values, head by head.
#[derive(Clone, Copy)]
struct Cursor {
    block: usize,
    part: Part,
    head: usize,
}

impl<'r, T: Element> Iterator for Runs<'r, T> {
    type Item = Run<'r, T>;

    fn next(&mut self) -> Option<Run<'r, T>> {
        let Cursor { block, part, head } = self.next?;
        let spec = &self.sequence.shared().spec;
        let shape = spec.block_layout().part(part);
        let heads = if shape.tokens_are_contiguous() {
            shape.heads
        } else {
            1
        };

        let block_start = block * spec.block_tokens();
        let first_slot = self.start.saturating_sub(block_start);
        let end_slot = (self.end - block_start).min(spec.block_tokens());
        let tokens = end_slot - first_slot;
        let len = tokens * heads * shape.dim;
        let from = shape.row(head, first_slot);
        debug_assert!(
            from + len <= shape.elements(),
            "a run ends inside its plane"
        );

        let block_ends_the_step = self.end <= block_start + spec.block_tokens();
        self.next = match part {
            _ if head + heads < shape.heads => Some(Cursor {
                block,
                part,
                head: head + heads,
            }),
            Part::Keys if spec.has_values() => Some(Cursor {
                block,
                part: Part::Values,
                head: 0,
            }),
            _ if !block_ends_the_step => Some(Cursor {
                block: block + 1,
                part: Part::Keys,
                head: 0,
            }),
            _ => None,
        };
        if self.next.is_none() {
            self.written.insert(self.layer);
        }

        let plane = self.sequence.plane_ptr(self.layer, part, block).cast::<T>();
        let first = plane.wrapping_add(from);
        // SAFETY:
        // - one allocation, in bounds: the sequence holds the blocks of its new tokens, the
        //   table names blocks of this region, `layer_mut` checked the layer, values are not
        //   visited where there are none, and the run ends inside its plane because slots and
        //   heads are below the spec's (`BlockLayout::new` and `RegionLayout::new` measured);
        // - aligned: see `Sequence::plane`; `from` counts whole elements;
        // - initialised: a `Buffer`'s bytes always are, `T` takes every bit pattern, and by
        //   `Element`'s contract what is written through it has no padding;
        // - exclusive: the block is in no other table and not registered, for `append` took it
        //   or exchanged it (the ledger's `grow`), and no plane of it shares a byte with
        //   another block's, in whatever order they lie (the region's test), so only this
        //   sequence reaches it. It is mutably borrowed (through `LayerMut` and `Step`) for
        //   `'r`, so no slice lent for reading lives and no second `Runs` does. The runs of
        //   this one are disjoint: each (block, part, head) comes up once, and rows of two of
        //   them never meet (the same test);
        // - ordered behind what earlier holders of the block did by the ledger's lock;
        // - at most `isize::MAX` bytes: the region is.
        let data = unsafe { std::slice::from_raw_parts_mut(first, len) };
        Some(Run {
            part,
            head,
            heads,
            token: block_start + first_slot - self.start,
            tokens,
            dim: shape.dim,
            data,
            all_heads: shape.heads,
        })
    }
}

impl fmt::Debug for LayerMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerMut")
            .field("layer", &self.layer)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Runs<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs")
            .field("layer", &self.layer)
            .field("tokens", &(self.start..self.end))
            .finish_non_exhaustive()
    }
}
