use crate::memory::AllocError;
use crate::types::DType;

use super::format::KvFormat;
use super::layers::LayerSet;
use super::layout::Part;
use super::spec::ScalePlane;

/// What can go wrong in the KV cache.
///
/// `Copy`: making one allocates nothing, so that a full cache, which is an
/// everyday event for a scheduler, stays as cheap as a successful call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// A size that must be at least 1 is 0.
    #[error("{what} must be at least 1")]
    Zero {
        /// The field's name.
        what: &'static str,
    },
    /// A size is above what the cache can hold.
    #[error("{what} is {value}, at most {max} is possible")]
    TooLarge {
        /// The field's name.
        what: &'static str,
        /// What was asked for.
        value: usize,
        /// The largest value that is accepted.
        max: usize,
    },
    /// The sizes are each fine, but together they pass the address space.
    #[error("the size of {what} does not fit into the address space")]
    Overflow {
        /// What was being measured.
        what: &'static str,
    },
    /// Keys and values can only be kept as float32, float16 or bfloat16.
    #[error("a kv cache holds float32, float16 or bfloat16, not {dtype}")]
    UnsupportedDType {
        /// The dtype asked for.
        dtype: DType,
    },
    /// Quantised caches, which need scales beside the data, do not exist yet.
    #[error("scale planes ({scales}) are not supported, only none")]
    UnsupportedScales {
        /// The scales asked for.
        scales: ScalePlane,
    },
    /// A reserved format, which needs scales beside the data: not yet.
    #[error(
        "a kv cache cannot be kept as {format} yet (it needs scales beside the data), only as float32, float16 or bfloat16"
    )]
    UnsupportedFormat {
        /// The format asked for.
        format: KvFormat,
    },
    /// The format shares a scale among a group of elements, and rows are not made of
    /// whole groups.
    #[error("{format} keeps rows in groups of {group}, which {what} {dim} is not a multiple of")]
    RaggedRows {
        /// The format asked for.
        format: KvFormat,
        /// The field's name.
        what: &'static str,
        /// Elements of a row.
        dim: usize,
        /// Elements that share a scale.
        group: usize,
    },
    /// There is only one group of layers so far.
    #[error("kv group {group} does not exist, there are {groups}")]
    NoSuchGroup {
        /// The number asked for.
        group: u32,
        /// Groups there are: ids are below this.
        groups: u32,
    },
    /// The region, or the tables beside it, could not be allocated.
    #[error("no memory for the kv cache: {0}")]
    Alloc(#[from] AllocError),
    /// The tables beside the region could not be allocated.
    #[error("no memory for {entries} entries of the kv cache's tables")]
    TablesTooLarge {
        /// Entries of the table that failed.
        entries: usize,
    },
    /// Not enough blocks for all of the request, so none was taken.
    #[error(
        "{need} kv blocks are needed, {free} are free and {evictable} evictable, of {total} in all"
    )]
    OutOfBlocks {
        /// Blocks the call had to take.
        need: usize,
        /// Blocks that nobody holds.
        free: usize,
        /// Blocks that could be freed by forgetting cached prefixes, those that the call
        /// would share not included.
        evictable: usize,
        /// Blocks of the cache. With `need` above it the call can never succeed.
        total: usize,
    },
    /// As many sequences live as the cache was made for.
    #[error("all {max} sequences of the kv cache are in use (its max_sequences)")]
    OutOfSequences {
        /// Sequences that may live at one time.
        max: usize,
    },
    /// More tokens than one block table has room for.
    #[error("{tokens} tokens do not fit into one sequence, which holds at most {max}")]
    SequenceTooLong {
        /// Tokens the sequence would have (`usize::MAX` where the sum overflows).
        tokens: usize,
        /// Tokens a sequence can have.
        max: usize,
    },
    /// Fewer tokens are there than were to be kept.
    #[error("{asked} tokens are to be kept, but there are {tokens}")]
    NotThatLong {
        /// Tokens to be kept.
        asked: usize,
        /// Tokens there are.
        tokens: usize,
    },
    /// Somebody uses blocks that would have to be forgotten.
    #[error("{blocks} kv blocks are in use by sequences, tensors or pins")]
    InUse {
        /// Blocks in use.
        blocks: usize,
    },
    /// Block tables of one batch must be of one cache, for a number means nothing elsewhere.
    #[error("entry {index} of the batch is of another kv cache than those before it")]
    OtherCache {
        /// The first entry that is, counted from 0.
        index: usize,
    },
    /// A sequence without tokens has no last page.
    #[error("entry {index} of the batch has no tokens, and so no last page")]
    NoTokens {
        /// The entry, counted from 0.
        index: usize,
    },
    /// Blocks are never finished in a cache that does not share prefixes.
    #[error(
        "the kv cache shares no prefixes (KvOptions::with_prefix_caching), so it has no finished blocks"
    )]
    NotShared,
    /// A sequence cannot be forked while a step of it is open, which writes its last block.
    #[error("the sequence has an open step, commit or drop it before a fork")]
    StepOpen,
    /// A step must append at least one token.
    #[error("a step needs at least one token")]
    EmptyStep,
    /// The layer is not in the spec.
    #[error("layer {layer} does not exist, the kv cache has {layers}")]
    NoSuchLayer {
        /// The layer asked for.
        layer: usize,
        /// Layers there are.
        layers: usize,
    },
    /// The block lies behind the last token that may be read.
    #[error("block {block} does not exist, the sequence has {blocks}")]
    NoSuchBlock {
        /// The block asked for, counted from the sequence's start.
        block: usize,
        /// Blocks that hold tokens.
        blocks: usize,
    },
    /// The head is not in the spec.
    #[error("kv head {head} does not exist, there are {heads}")]
    NoSuchHead {
        /// The head asked for.
        head: usize,
        /// Heads there are.
        heads: usize,
    },
    /// Values were asked of a cache of one component (its `value_dim` is 0).
    #[error("the kv cache has one component, keys: its value_dim is 0")]
    NoValues,
    /// The element type is not the cache's.
    #[error("the kv cache holds {cache}, asked for as {asked}")]
    DTypeMismatch {
        /// The dtype of the cache.
        cache: DType,
        /// The dtype of the call.
        asked: DType,
    },
    /// The slice is not `[tokens, heads, dim]` elements long.
    #[error("{part} of {got} elements, but {tokens} tokens x {heads} heads x {dim} are {expected}")]
    ShapeMismatch {
        /// Keys or values.
        part: Part,
        /// Elements given.
        got: usize,
        /// Elements expected.
        expected: usize,
        /// Tokens of the step.
        tokens: usize,
        /// KV heads of the spec.
        heads: usize,
        /// Elements of one head.
        dim: usize,
    },
    /// The tokens of one head lie apart in this layout: read them row by row.
    #[error("a head's tokens are not contiguous in a {layout} block, read row by row")]
    NotContiguous {
        /// The layout of the cache.
        layout: super::Layout,
    },
    /// This step has not written the layer, so its new slots hold old bytes.
    #[error("layer {layer} was not yet written in this step")]
    LayerNotWritten {
        /// The layer asked for.
        layer: usize,
    },
    /// `commit` of a step that did not write every layer. It was rolled back.
    #[error("{} of {layers} layers were not written, so the step was rolled back; missing: layer {missing}", .missing.len())]
    LayersNotWritten {
        /// The layers that were not written.
        missing: LayerSet,
        /// Layers there are.
        layers: usize,
    },
    /// [`KvCache::check`](super::KvCache::check) found the tables at odds with
    /// themselves: a bug in this crate.
    #[error("kv tables are inconsistent: {what} (id {id})")]
    Inconsistent {
        /// The rule that is broken.
        what: &'static str,
        /// The block or sequence slot at which it was seen.
        id: usize,
    },
}
