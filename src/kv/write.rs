//! Writing a step's new slots: whole layers with [`LayerMut::write`], or piece by
//! piece, in place, with [`LayerMut::runs`].

use std::any::TypeId;
use std::fmt;
use std::marker::PhantomData;

use crate::types::half::{narrow_bf16, narrow_f16};
use crate::types::{DType, Element, bf16, f16};

use super::layout::{Part, PlaneLayout};
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
            return self.scatter(keys, values, copy_row::<T>);
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
    #[inline]
    pub fn runs<T: Element>(self) -> Result<Runs<'s, T>, KvError> {
        self.must_have::<T>()?;
        Ok(self.all_runs())
    }

    fn must_have<T: Element>(&self) -> Result<(), KvError> {
        let cache = self.sequence.shared().spec.dtype();
        match T::DTYPE == cache {
            true => Ok(()),
            false => Err(KvError::DTypeMismatch {
                cache,
                asked: T::DTYPE,
            }),
        }
    }

    /// The pieces. `T` is the cache's dtype.
    // Always inlined, and what it calls too: so the place where the pieces are is taken apart into
    // registers, and not moved in wide loads that wait for narrow stores.
    #[inline(always)]
    fn all_runs<T: Element>(self) -> Runs<'s, T> {
        let start = self.sequence.len();
        let new = NewSlots {
            sequence: self.sequence,
            layer: self.layer,
            start,
            end: start + self.tokens,
        };
        let block = self.sequence.shared().spec.tokens().full(start);
        Runs {
            new,
            written: self.written,
            at: Some(new.first_of(block, Part::Keys)),
            lends: PhantomData,
        }
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
        again.must_have::<T>()?;
        let mut runs = again.all_runs::<T>();
        while let Some((at, plane)) = runs.next_plane() {
            let Cursor { shape, slot, .. } = at;
            let token_stride = shape.heads * shape.dim;
            let from = match at.part {
                Part::Keys => keys,
                Part::Values => values,
            };
            let from = &from[runs.new.token(&at) * token_stride..];
            if at.heads == shape.heads {
                store(&from[..at.len], &mut plane[shape.row(0, slot)..][..at.len]);
                continue;
            }
            if at.tokens == 1 {
                // A token that was decoded: a row for each head, with nothing else between.
                for (head, from) in from[..token_stride].chunks_exact(shape.dim).enumerate() {
                    store(from, &mut plane[shape.row(head, slot)..][..from.len()]);
                }
                continue;
            }
            for head in 0..shape.heads {
                let rows = &mut plane[shape.row(head, slot)..][..at.len];
                let from = from[head * shape.dim..].chunks(token_stride);
                for (to, from) in rows.chunks_exact_mut(shape.dim).zip(from) {
                    store(&from[..shape.dim], to);
                }
            }
        }
        Ok(())
    }
}

/// Copies a row; one of a usual head without a call.
#[inline(always)]
fn copy_row<T: Copy>(from: &[T], to: &mut [T]) {
    match to.len() {
        64 => copy_array::<T, 64>(from, to),
        128 => copy_array::<T, 128>(from, to),
        _ => to.copy_from_slice(from),
    }
}

#[inline(always)]
fn copy_array<T: Copy, const N: usize>(from: &[T], to: &mut [T]) {
    if let (Some(from), Some(to)) = (from.first_chunk::<N>(), to.first_chunk_mut::<N>()) {
        *to = *from;
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
}

/// The pieces of a layer's new slots, from [`LayerMut::runs`].
pub struct Runs<'r, T> {
    new: NewSlots<'r>,
    written: &'r mut LayerSet,
    at: Option<Cursor<'r>>,
    lends: PhantomData<&'r mut [T]>,
}

/// The new slots of a layer.
#[derive(Clone, Copy)]
struct NewSlots<'r> {
    /// As in [`LayerMut`]: exclusive for `'r`.
    sequence: &'r Sequence,
    layer: usize,
    /// The new tokens, as positions in the sequence.
    start: usize,
    end: usize,
}

/// Which piece comes next: block by block, keys before values, head by head.
#[derive(Debug, Clone, Copy)]
struct Cursor<'r> {
    block: usize,
    part: Part,
    shape: &'r PlaneLayout,
    /// Heads of one piece, and its elements.
    heads: usize,
    len: usize,
    /// The new slots of the block.
    slot: usize,
    tokens: usize,
    /// Bytes from the region's start to the plane.
    plane: usize,
    head: usize,
}

impl<'r> NewSlots<'r> {
    /// The first piece of one plane that new tokens are in.
    #[inline(always)]
    fn first_of(&self, block: usize, part: Part) -> Cursor<'r> {
        let shared = self.sequence.shared();
        let spec = &shared.spec;
        let shape = spec.block_layout().part(part);
        let heads = shape.heads_in_a_run();
        let block_start = block * spec.block_tokens();
        let slot = self.start.saturating_sub(block_start);
        let tokens = (self.end - block_start).min(spec.block_tokens()) - slot;
        let cursor = Cursor {
            block,
            part,
            shape,
            heads,
            len: tokens * heads * shape.dim,
            slot,
            tokens,
            plane: self.sequence.plane_at(self.layer, part, block),
            head: 0,
        };
        debug_assert!(
            shape.row(shape.heads - heads, slot) + cursor.len <= shape.elements(),
            "a run ends inside its plane"
        );
        cursor
    }

    /// The first piece behind the last one of a plane, if there is one.
    #[inline(always)]
    fn behind(&self, block: usize, part: Part) -> Option<Cursor<'r>> {
        let spec = &self.sequence.shared().spec;
        let next = block + 1;
        if part == Part::Keys && spec.has_values() {
            Some(self.first_of(block, Part::Values))
        } else if self.end > next * spec.block_tokens() {
            Some(self.first_of(next, Part::Keys))
        } else {
            None
        }
    }

    /// The first token of a piece, counted from the step's first.
    #[inline(always)]
    fn token(&self, at: &Cursor<'r>) -> usize {
        at.block * self.sequence.shared().spec.block_tokens() + at.slot - self.start
    }

    /// The address of a plane that is lent now.
    #[inline(always)]
    fn plane<T>(&self, at: &Cursor<'r>) -> *mut T {
        self.sequence.tell_write(at.block);
        let region = self.sequence.shared().region.as_ptr();
        region.wrapping_add(at.plane).cast::<T>()
    }
}

impl<'r, T> Runs<'r, T> {
    /// Goes behind the last piece of a plane. The layer counts as written where there is none.
    #[inline(always)]
    fn go_behind(&mut self, block: usize, part: Part) {
        self.at = self.new.behind(block, part);
        if self.at.is_none() {
            self.written.insert(self.new.layer);
        }
    }

    /// A whole plane, slots that are not new included, and the first of its pieces; those
    /// are not lent again. To be called before a piece of the plane was.
    #[inline(always)]
    fn next_plane(&mut self) -> Option<(Cursor<'r>, &'r mut [T])>
    where
        T: Element,
    {
        let at = self.at?;
        self.go_behind(at.block, at.part);
        let first = self.new.plane(&at);
        // SAFETY: as in `next`: all of the plane is in bounds, aligned and initialised, and
        // this sequence's alone. No piece of it was lent, and none will be.
        let plane = unsafe { std::slice::from_raw_parts_mut(first, at.shape.elements()) };
        Some((at, plane))
    }
}

impl<'r, T: Element> Iterator for Runs<'r, T> {
    type Item = Run<'r, T>;

    #[inline]
    fn next(&mut self) -> Option<Run<'r, T>> {
        let at = self.at?;
        let behind = at.head + at.heads;
        match &mut self.at {
            Some(next) if behind < at.shape.heads => next.head = behind,
            _ => self.go_behind(at.block, at.part),
        }
        let first = self
            .new
            .plane::<T>(&at)
            .wrapping_add(at.shape.row(at.head, at.slot));
        let len = at.len;
        // SAFETY:
        // - one allocation, in bounds: the sequence holds the blocks of its new tokens, the
        //   table names blocks of this region, `layer_mut` checked the layer, values are not
        //   visited where there are none, and the run ends inside its plane because slots and
        //   heads are below the spec's (`BlockLayout::new` and `RegionLayout::new` measured);
        // - aligned: see `Sequence::plane`; rows count whole elements;
        // - initialised: a `Buffer`'s bytes always are, `T` takes every bit pattern, and by
        //   `Element`'s contract what is written through it has no padding;
        // - exclusive: the block is in no other table and not registered, for `append` took it
        //   or exchanged it (the ledger's `grow`), and no plane of it shares a byte with
        //   another block's, in whatever order they lie (the region's test), so only this
        //   sequence reaches it, and no fork does before the step ends (`Sequence::fork`). It is
        //   mutably borrowed (through `LayerMut` and `Step`) for `'r`, so no slice lent for
        //   reading lives and no second `Runs` does. The runs of this one are disjoint: each
        //   (block, part, head) comes up once, and rows of two of them never meet (the same test);
        // - ordered behind what earlier holders of the block did by the ledger's lock;
        // - at most `isize::MAX` bytes: the region is.
        let data = unsafe { std::slice::from_raw_parts_mut(first, len) };
        Some(Run {
            part: at.part,
            head: at.head,
            heads: at.heads,
            token: self.new.token(&at),
            tokens: at.tokens,
            dim: at.shape.dim,
            data,
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
            .field("layer", &self.new.layer)
            .field("tokens", &(self.new.start..self.new.end))
            .finish_non_exhaustive()
    }
}
