use super::layout::PlaneLayout;
use super::{KvError, Layout};

/// The keys, or the values, of one layer in one block: the tokens that may be read.
///
/// A view of the block's own bytes, for attention to read where they lie. `Copy`;
/// making one checks layer, block and dtype once, so that [`head`](Self::head) has
/// little left to check.
#[derive(Debug, Clone, Copy)]
pub struct Plane<'a, T> {
    /// All slots, also those that are not filled: nobody writes them while this lives.
    slots: &'a [T],
    shape: &'a PlaneLayout,
    layout: Layout,
    tokens: usize,
}

impl<'a, T> Plane<'a, T> {
    /// `slots` is the whole plane, of which the first `tokens` slots may be read.
    #[inline]
    pub(super) fn new(
        slots: &'a [T],
        shape: &'a PlaneLayout,
        layout: Layout,
        tokens: usize,
    ) -> Self {
        debug_assert_eq!(slots.len(), shape.elements(), "a whole plane");
        Self {
            slots,
            shape,
            layout,
            tokens,
        }
    }

    /// Tokens that can be read: the filled slots.
    #[must_use]
    #[inline]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Key/value heads.
    #[must_use]
    #[inline]
    pub fn heads(&self) -> usize {
        self.shape.heads
    }

    /// Elements of one head's key or value.
    #[must_use]
    #[inline]
    pub fn dim(&self) -> usize {
        self.shape.dim
    }

    /// One head: `[tokens, dim]`, contiguous.
    ///
    /// # Errors
    /// [`KvError::NoSuchHead`], or [`KvError::NotContiguous`] in a layout whose
    /// tokens lie apart (NHD with more than one head): use [`row`](Self::row) there.
    #[inline]
    pub fn head(&self, head: usize) -> Result<&'a [T], KvError> {
        if head >= self.shape.heads {
            return Err(KvError::NoSuchHead {
                head,
                heads: self.shape.heads,
            });
        }
        if !self.shape.heads_are_contiguous() {
            return Err(KvError::NotContiguous {
                layout: self.layout,
            });
        }
        Ok(&self.slots[self.shape.row(head, 0)..][..self.tokens * self.shape.dim])
    }

    /// One head of one token: `dim` elements, in every layout. `None` if there is
    /// no such head, or the slot is not filled.
    #[must_use]
    #[inline]
    pub fn row(&self, head: usize, token: usize) -> Option<&'a [T]> {
        if head >= self.shape.heads || token >= self.tokens {
            return None;
        }
        self.slots[self.shape.row(head, token)..].get(..self.shape.dim)
    }

    /// All of it in one slice, where the filled slots are one piece: `[heads, tokens,
    /// dim]` of a full block in HND, `[tokens, heads, dim]` in NHD.
    #[must_use]
    pub fn as_slice(&self) -> Option<&'a [T]> {
        let filled = self.tokens * self.shape.heads * self.shape.dim;
        (self.shape.tokens_are_contiguous() || filled == self.slots.len())
            .then(|| &self.slots[..filled])
    }
}
