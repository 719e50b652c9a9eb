//! Block tables as arrays of numbers, in the forms that paged attention kernels take.
//!
//! ```text
//!  4 tokens a block     A: [ 3, 0, 5 ]  6 tokens + 3 new     B: [ 3, 4 ]  5 tokens + 1 new
//!
//!  padded_rows     [2, 3]   3 0 5                PageCsr   indptr         0 3 5
//!                           3 4 pad                        indices        3 0 5 3 4
//!  slot_mapping    [4]      2 3 20 17                      last_page_len  1 2
//!                           A: 0*4+2, 0*4+3, 5*4+0   B: 4*4+1
//! ```
//!
//! The numbers name blocks and slots; they give nobody access to a byte. Each form goes into
//! buffers of the caller, which are cleared and filled again, so that from the second time on
//! no heap block is made. The order of the batch is kept.

use super::shared::Shared;
use super::{BlockId, KvError, Sequence, Step};

/// The blocks of one sequence that hold tokens, in token order.
///
/// From a [`Sequence`] with its committed tokens, or from a [`Step`] with the new ones
/// included. How long it is depends on this sequence alone, whoever else is in the cache;
/// blocks that are only reserved are not in it. `Copy`.
#[derive(Debug, Clone, Copy)]
pub struct BlockTable<'a> {
    sequence: &'a Sequence,
    tokens: usize,
}

impl<'a> BlockTable<'a> {
    /// Tokens in its blocks.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Blocks in it.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.shared().spec.blocks_for(self.tokens)
    }

    /// The blocks, the one with the first token first.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = BlockId> + 'a {
        let sequence = self.sequence;
        (0..self.block_count()).map(move |index| sequence.block_id(index))
    }

    /// Tokens in the last block: 1 to `block_tokens`, and 0 where there is no token.
    #[must_use]
    pub fn last_block_tokens(&self) -> usize {
        let block_tokens = self.shared().spec.block_tokens();
        match self.tokens % block_tokens {
            0 => self.tokens.min(block_tokens),
            rest => rest,
        }
    }

    /// The slot of the token at `position`, counted through the whole region: `block x
    /// block_tokens + slot in the block`. `None` behind the last token.
    #[must_use]
    pub fn slot(&self, position: usize) -> Option<i64> {
        if position >= self.tokens {
            return None;
        }
        let tokens = self.shared().spec.tokens();
        let (index, slot) = tokens.place(position);
        let block = self.sequence.block_id(index).get();
        let slot = u64::from(block) * tokens.count() as u64 + slot as u64;
        // 32 bits times at most `MAX_BLOCK_TOKENS`: below 2^52.
        Some(slot as i64)
    }

    fn shared(&self) -> &'a Shared {
        self.sequence.shared()
    }
}

impl<'a> From<&'a Sequence> for BlockTable<'a> {
    /// The committed tokens.
    fn from(sequence: &'a Sequence) -> Self {
        let tokens = sequence.len();
        Self { sequence, tokens }
    }
}

impl<'a> From<&'a Step<'_>> for BlockTable<'a> {
    /// The committed tokens and the new ones.
    fn from(step: &'a Step<'_>) -> Self {
        Self {
            sequence: step.committed(),
            tokens: step.len(),
        }
    }
}

impl Sequence {
    /// The blocks with its committed tokens, as numbers.
    #[must_use]
    pub fn block_table(&self) -> BlockTable<'_> {
        self.into()
    }
}

impl Step<'_> {
    /// The blocks with the sequence's tokens, the new ones included, as numbers.
    #[must_use]
    pub fn block_table(&self) -> BlockTable<'_> {
        self.into()
    }
}

/// The tables of a batch as the rows of one matrix, `[sequences, width]`, row-major:
/// vLLM's `block_table`. Behind a row's last block stands `pad`. Returns `width`: the one
/// that was asked for, or with `None` the blocks of the longest table.
///
/// The form is that of `vllm/v1/worker/block_table.py`: int32, `[max_num_reqs,
/// max_num_blocks_per_req]`, where unused entries are 0. A kernel knows from the lengths of
/// the sequences which entries to read; with a `pad` that is no block, one that reads too far
/// is found out.
///
/// ```
/// use tenslab::kv::{KvCache, KvDims, KvError, KvLimits, KvSpec, Namespace, padded_rows};
/// use tenslab::{DType, memory};
///
/// let dims = KvDims { layers: 1, kv_heads: 1, key_dim: 2, value_dim: 2, block_tokens: 4 };
/// let limits = KvLimits { blocks: 8, max_sequences: 2, max_blocks_per_sequence: 4 };
/// let cache = KvCache::new(KvSpec::new(dims, DType::F32)?, limits, memory::cpu())?;
/// let (long, short) = ([1, 2, 3, 4, 5, 6], [7, 8]);
/// let mut a = cache.acquire(&long, &Namespace::default(), 0, None)?;
/// let mut b = cache.acquire(&short, &Namespace::default(), 0, None)?;
/// let steps = [a.append(&long)?, b.append(&short)?];
///
/// let mut rows = Vec::new();
/// let width = padded_rows(&steps, None, -1, &mut rows)?;
/// assert_eq!((width, &rows[..]), (2, &[0, 1, 2, -1][..]));
/// # Ok::<(), KvError>(())
/// ```
///
/// Cost: a read for each block; no lock, and no heap block once `rows` is large enough.
///
/// # Errors
/// [`KvError::OtherCache`] for sequences of different caches, [`KvError::TooLarge`] for a
/// table that is longer than `width` or a block's number above `i32::MAX`,
/// [`KvError::TablesTooLarge`] if `rows` cannot grow. `rows` is empty then.
pub fn padded_rows<'a, B>(
    batch: B,
    width: Option<usize>,
    pad: i32,
    rows: &mut Vec<i32>,
) -> Result<usize, KvError>
where
    B: IntoIterator<Item: Into<BlockTable<'a>>, IntoIter: Clone>,
{
    let tables = tables(batch);
    rows.clear();
    let extent = Extent::of(tables.clone())?;
    let width = width.unwrap_or(extent.widest);
    if extent.widest > width {
        return Err(KvError::TooLarge {
            what: "a row of the block table",
            value: extent.widest,
            max: width,
        });
    }
    let entries = extent.tables.checked_mul(width).ok_or(KvError::Overflow {
        what: "the block table",
    })?;
    refill(rows, entries, |rows| {
        for (row, table) in (1..).zip(tables) {
            for block in table.blocks() {
                rows.push(as_i32(BLOCK, block.get() as usize)?);
            }
            rows.resize(row * width, pad);
        }
        Ok(())
    })?;
    Ok(width)
}

/// The slots of the new tokens of these steps, `[tokens]`, step by step:
/// [`BlockTable::slot`] of each. It is where a kernel that writes keys and values puts the
/// next token of its input.
///
/// The form is vLLM's `slot_mapping` (`vllm/v1/worker/block_table.py`): int64, block number x
/// block size + offset.
///
/// Cost: a read and a shift for each token (a division where the tokens of a block are no power
/// of two); no lock, and no heap block once `slots` is
/// large enough.
///
/// # Errors
/// [`KvError::OtherCache`] for steps of different caches, [`KvError::TablesTooLarge`] if
/// `slots` cannot grow. `slots` is empty then.
pub fn slot_mapping<'a, B>(steps: B, slots: &mut Vec<i64>) -> Result<(), KvError>
where
    B: IntoIterator<Item = &'a Step<'a>, IntoIter: Clone>,
{
    let steps = steps.into_iter();
    slots.clear();
    Extent::of(steps.clone().map(BlockTable::from))?;
    let tokens = steps.clone().map(Step::tokens).sum();
    refill(slots, tokens, |slots| {
        for step in steps {
            let table = step.block_table();
            slots.extend((step.start()..step.len()).filter_map(|position| table.slot(position)));
        }
        Ok(())
    })
}

/// The tables of a batch one behind the other, with the places where they begin: the
/// compressed sparse rows that FlashInfer takes.
///
/// | array | shape | is |
/// |---|---|---|
/// | `indptr` | `[sequences + 1]` | where each table begins in `indices`, and where the last one ends |
/// | `indices` | `[indptr[sequences]]` | the blocks |
/// | `last_page_len` | `[sequences]` | tokens in each sequence's last block, 1 to `block_tokens` |
///
/// The form is that of "Page Table Layout" in FlashInfer's tutorial on its KV cache
/// (`docs/tutorials/kv_layout.rst`, <https://docs.flashinfer.ai/tutorials/kv_layout.html>), which
/// wants all three as int32 and no page without a token.
///
/// Filling it clears its arrays and keeps their memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageCsr {
    /// `[sequences + 1]`, beginning with 0.
    pub indptr: Vec<i32>,
    /// The blocks of all sequences.
    pub indices: Vec<i32>,
    /// `[sequences]`.
    pub last_page_len: Vec<i32>,
}

impl PageCsr {
    /// Makes it that of `batch`.
    ///
    /// Cost: a read for each block; no lock, and no heap block once the arrays are large
    /// enough.
    ///
    /// # Errors
    /// [`KvError::OtherCache`] for sequences of different caches, [`KvError::NoTokens`] for
    /// one without a token, which has no last page, [`KvError::TooLarge`] for a number above
    /// `i32::MAX`, [`KvError::TablesTooLarge`] if an array cannot grow. All three are
    /// empty then.
    pub fn fill<'a, B>(&mut self, batch: B) -> Result<(), KvError>
    where
        B: IntoIterator<Item: Into<BlockTable<'a>>, IntoIter: Clone>,
    {
        let result = self.try_fill(tables(batch));
        if result.is_err() {
            self.clear();
        }
        result
    }

    fn clear(&mut self) {
        self.indptr.clear();
        self.indices.clear();
        self.last_page_len.clear();
    }

    fn try_fill<'a>(
        &mut self,
        tables: impl Iterator<Item = BlockTable<'a>> + Clone,
    ) -> Result<(), KvError> {
        self.clear();
        let extent = Extent::of(tables.clone())?;
        reserve(&mut self.indptr, extent.tables + 1)?;
        reserve(&mut self.indices, extent.blocks)?;
        reserve(&mut self.last_page_len, extent.tables)?;
        self.indptr.push(0);
        for (index, table) in tables.enumerate() {
            if table.tokens() == 0 {
                return Err(KvError::NoTokens { index });
            }
            for block in table.blocks() {
                self.indices.push(as_i32(BLOCK, block.get() as usize)?);
            }
            let end = as_i32("the blocks of a batch", self.indices.len())?;
            self.indptr.push(end);
            let last = as_i32("a block's tokens", table.last_block_tokens())?;
            self.last_page_len.push(last);
        }
        Ok(())
    }
}

const BLOCK: &str = "a block's number";

fn tables<'a, B>(batch: B) -> impl Iterator<Item = BlockTable<'a>> + Clone
where
    B: IntoIterator<Item: Into<BlockTable<'a>>, IntoIter: Clone>,
{
    batch.into_iter().map(Into::into)
}

/// How much a batch is.
#[derive(Debug, Default)]
struct Extent {
    tables: usize,
    /// Of all tables.
    blocks: usize,
    /// Of the longest one.
    widest: usize,
}

impl Extent {
    /// Of tables that are all of one cache.
    fn of<'a>(batch: impl Iterator<Item = BlockTable<'a>>) -> Result<Self, KvError> {
        let mut extent = Self::default();
        let mut cache = None;
        for (index, table) in batch.enumerate() {
            let first: &Shared = cache.get_or_insert(table.shared());
            if !std::ptr::eq(first, table.shared()) {
                return Err(KvError::OtherCache { index });
            }
            let blocks = table.block_count();
            extent.tables += 1;
            extent.blocks = extent.blocks.saturating_add(blocks);
            extent.widest = extent.widest.max(blocks);
        }
        Ok(extent)
    }
}

fn as_i32(what: &'static str, value: usize) -> Result<i32, KvError> {
    const MAX: usize = i32::MAX as usize;
    i32::try_from(value).map_err(|_| KvError::TooLarge {
        what,
        value,
        max: MAX,
    })
}

fn reserve<T>(buffer: &mut Vec<T>, entries: usize) -> Result<(), KvError> {
    buffer
        .try_reserve(entries)
        .map_err(|_| KvError::TablesTooLarge { entries })
}

/// Fills an empty buffer, or leaves it empty.
fn refill<T>(
    buffer: &mut Vec<T>,
    entries: usize,
    fill: impl FnOnce(&mut Vec<T>) -> Result<(), KvError>,
) -> Result<(), KvError> {
    reserve(buffer, entries)?;
    let result = fill(buffer);
    if result.is_err() {
        buffer.clear();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with such numbers takes more memory than a test has.
    #[test]
    fn numbers_above_31_bits_are_named_and_leave_nothing() {
        let max = i32::MAX as usize;
        assert_eq!(as_i32(BLOCK, max), Ok(i32::MAX));
        let too_large = KvError::TooLarge {
            what: BLOCK,
            value: max + 1,
            max,
        };
        assert_eq!(as_i32(BLOCK, max + 1), Err(too_large));

        let mut buffer = vec![1, 2];
        let half_way = refill(&mut buffer, 2, |buffer| {
            buffer.push(as_i32(BLOCK, 3)?);
            buffer.push(as_i32(BLOCK, max + 1)?);
            Ok(())
        });
        assert_eq!((half_way, buffer.len()), (Err(too_large), 0));
        let entries = usize::MAX;
        let endless = refill(&mut buffer, entries, |_| Ok(()));
        assert_eq!(endless, Err(KvError::TablesTooLarge { entries }));
    }
}
