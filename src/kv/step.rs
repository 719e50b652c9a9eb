use std::fmt;

use crate::types::Element;

use super::layout::Part;
use super::sequence::filled;
use super::write::LayerMut;
use super::{KvError, LayerSet, Plane, Sequence};

/// New tokens of a [`Sequence`], between [`append`](Sequence::append) and
/// [`commit`](Self::commit).
///
/// ```text
///  slots      | committed ...... | new ... |        of every layer
///             0                  start()   len()
/// ```
///
/// The step borrows its sequence mutably, so nothing else reads or writes it. Write
/// each layer's new slots, in any order, read that layer with them included, then
/// commit. Dropping the step instead rolls it back: the sequence has the tokens that it had
/// before, and as many blocks.
///
/// `Send` and `Sync`: several threads may read one step at the same time.
#[must_use = "a step that is dropped is rolled back"]
pub struct Step<'a> {
    sequence: &'a mut Sequence,
    tokens: usize,
    /// Blocks that the sequence keeps when the step ends: those it held before, and after a
    /// commit those with the new tokens.
    keeps: u32,
    written: LayerSet,
}

impl<'a> Step<'a> {
    /// `sequence` holds blocks for `tokens` more tokens.
    #[inline]
    pub(super) fn new(sequence: &'a mut Sequence, tokens: usize, keeps: u32) -> Self {
        Self {
            sequence,
            tokens,
            keeps,
            written: LayerSet::default(),
        }
    }

    /// New tokens.
    #[must_use]
    #[inline]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The position of the first new token: tokens before the step.
    #[must_use]
    #[inline]
    pub fn start(&self) -> usize {
        self.sequence.len()
    }

    /// Tokens with the new ones.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a step has at least one token")]
    pub fn len(&self) -> usize {
        self.start() + self.tokens
    }

    /// The sequence as it was before the step: lends committed tokens of every layer. It
    /// cannot be [forked](Sequence::fork) meanwhile.
    #[must_use]
    pub fn committed(&self) -> &Sequence {
        self.sequence
    }

    /// Blocks that hold tokens, the new ones included.
    #[must_use]
    #[inline]
    pub fn block_count(&self) -> usize {
        self.sequence.shared().spec.blocks_for(self.len())
    }

    /// Tokens in block `block`, the new ones included: `block_tokens` in all but the
    /// last one, and 0 behind it.
    #[must_use]
    #[inline]
    pub fn block_filled(&self, block: usize) -> usize {
        filled(
            self.len(),
            block,
            self.sequence.shared().spec.block_tokens(),
        )
    }

    /// The layers that this step has written.
    #[must_use]
    pub fn written(&self) -> &LayerSet {
        &self.written
    }

    /// The new slots of one layer, to write.
    ///
    /// A layer may be written more than once in a step; the last time counts.
    ///
    /// # Errors
    /// [`KvError::NoSuchLayer`].
    pub fn layer_mut(&mut self, layer: usize) -> Result<LayerMut<'_>, KvError> {
        let layers = self.sequence.shared().spec.layers();
        if layer >= layers {
            return Err(KvError::NoSuchLayer { layer, layers });
        }
        Ok(LayerMut::new(
            self.sequence,
            &mut self.written,
            layer,
            self.tokens,
        ))
    }

    /// The keys of `layer` in block `block` (0 is the sequence's first), the new
    /// slots included.
    ///
    /// # Errors
    /// [`KvError::LayerNotWritten`] before this step wrote the layer, and
    /// [`KvError::NoSuchLayer`], [`KvError::NoSuchBlock`] and
    /// [`KvError::DTypeMismatch`] as for [`Sequence::keys`].
    #[inline]
    pub fn keys<T: Element>(&self, layer: usize, block: usize) -> Result<Plane<'_, T>, KvError> {
        self.plane(layer, Part::Keys, block)
    }

    /// The values of `layer` in block `block`, the new slots included.
    ///
    /// # Errors
    /// As [`keys`](Self::keys); [`KvError::NoValues`] from a cache of one component.
    #[inline]
    pub fn values<T: Element>(&self, layer: usize, block: usize) -> Result<Plane<'_, T>, KvError> {
        self.plane(layer, Part::Values, block)
    }

    /// The keys of one head: `[block_filled(block), key_dim]`.
    ///
    /// # Errors
    /// As [`keys`](Self::keys) and [`Plane::head`].
    #[inline]
    pub fn keys_head<T: Element>(
        &self,
        layer: usize,
        block: usize,
        head: usize,
    ) -> Result<&[T], KvError> {
        self.keys(layer, block)?.head(head)
    }

    /// The values of one head: `[block_filled(block), value_dim]`.
    ///
    /// # Errors
    /// As [`values`](Self::values) and [`Plane::head`].
    #[inline]
    pub fn values_head<T: Element>(
        &self,
        layer: usize,
        block: usize,
        head: usize,
    ) -> Result<&[T], KvError> {
        self.values(layer, block)?.head(head)
    }

    #[inline]
    fn plane<T: Element>(
        &self,
        layer: usize,
        part: Part,
        block: usize,
    ) -> Result<Plane<'_, T>, KvError> {
        // First the layer's number: "not written" would be an odd answer for layer 99.
        let layers = self.sequence.shared().spec.layers();
        if layer >= layers {
            return Err(KvError::NoSuchLayer { layer, layers });
        }
        if !self.written.contains(layer) {
            return Err(KvError::LayerNotWritten { layer });
        }
        self.sequence.plane(layer, part, block, self.len())
    }

    /// Makes the new tokens part of the sequence, and registers the blocks that are full
    /// now, so that others find them. Where such a block is there already, because somebody
    /// else computed the same tokens meanwhile, that one takes the place of the sequence's
    /// own, which is free again.
    ///
    /// Cost: the lock once; for each block that became full a hash of its tokens and a look.
    ///
    /// # Errors
    /// [`KvError::LayersNotWritten`] names the layers that are missing; the step is
    /// rolled back, as if it had been dropped.
    pub fn commit(self) -> Result<(), KvError> {
        let tokens = self.tokens;
        self.commit_first(tokens)
    }

    /// Makes the first `tokens` of the new tokens part of the sequence and rolls the others
    /// back: of drafted tokens, those that were right. What was not committed is never
    /// registered.
    ///
    /// # Errors
    /// [`KvError::NotThatLong`] if the step has fewer, and as [`commit`](Self::commit); the
    /// whole step is rolled back then.
    pub fn commit_first(mut self, tokens: usize) -> Result<(), KvError> {
        if tokens > self.tokens {
            return Err(KvError::NotThatLong {
                asked: tokens,
                tokens: self.tokens,
            });
        }
        let layers = self.sequence.shared().spec.layers();
        let missing = self.written.missing_of(layers);
        if !missing.is_empty() {
            return Err(KvError::LayersNotWritten { missing, layers });
        }
        self.sequence.commit(tokens);
        let spec = &self.sequence.shared().spec;
        let filled = spec.blocks_for(self.sequence.len());
        // Blocks that only rolled back tokens needed, if the step took them.
        let keep = u32::try_from(filled).unwrap_or(u32::MAX);
        self.keeps = self.keeps.max(keep);
        Ok(())
    }
}

impl Drop for Step<'_> {
    #[inline]
    fn drop(&mut self) {
        self.sequence.end_step(self.keeps);
    }
}

impl fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("start", &self.start())
            .field("tokens", &self.tokens)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}
