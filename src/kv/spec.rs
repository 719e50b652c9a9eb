use std::fmt;

use crate::types::DType;

use super::block_tokens::BlockTokens;
use super::layout::{BlockLayout, BlockSizes, Layout, Part};
use super::{KvError, KvFormat, RegionLayout};

/// The most layers a [`KvSpec`] can have: what a [`LayerSet`](super::LayerSet)
/// keeps inline. The deepest published decoders have about 130.
pub const MAX_LAYERS: usize = 256;

/// The most tokens a block can have.
pub const MAX_BLOCK_TOKENS: usize = 1 << 20;

/// The sizes of a model's keys and values, from its config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvDims {
    /// Layers that have a KV cache.
    pub layers: usize,
    /// Key/value heads of a layer (fewer than query heads with grouped-query
    /// attention).
    pub kv_heads: usize,
    /// Elements of one head's key.
    pub key_dim: usize,
    /// Elements of one head's value; may differ from `key_dim`. 0 for a cache of one
    /// component (MLA, see [`KvSpec`]).
    pub value_dim: usize,
    /// Tokens in a block.
    pub block_tokens: usize,
}

/// A group of layers that share one kind of block.
///
/// Models that mix full and sliding-window attention need several groups. There
/// is one so far, [`GroupId::FIRST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupId(u32);

impl GroupId {
    /// The group of all layers.
    pub const FIRST: Self = Self(0);

    /// The group's number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for GroupId {
    type Error = KvError;

    /// The group with that number.
    ///
    /// # Errors
    /// [`KvError::NoSuchGroup`] for every number but 0.
    fn try_from(group: u32) -> Result<Self, KvError> {
        match group {
            0 => Ok(Self::FIRST),
            _ => Err(KvError::NoSuchGroup { group, groups: 1 }),
        }
    }
}

/// The scales that a quantised cache keeps beside its data.
///
/// The names are here so that a [`KvSpec`] has a place for them; only
/// [`ScalePlane::None`] can be built so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ScalePlane {
    /// No scales: elements are the numbers themselves.
    #[default]
    None,
    /// One `float32` scale for each token and head, for keys and for values.
    PerTokenHead,
}

impl fmt::Display for ScalePlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::PerTokenHead => "per token and head",
        })
    }
}

/// What one block of a cache holds and how: sizes, dtype, layout.
///
/// A spec is checked when it is made, and all that is derived from it (bytes,
/// strides) is computed then, once. `Copy`, no heap.
///
/// | choice | default | others |
/// |---|---|---|
/// | [`Layout`] | block-major HND | block-major NHD, layer-major HND and NHD |
/// | components | keys and values, of equal or different dims | keys only: `value_dim` 0 |
/// | dtype | none: float32, float16 or bfloat16 | reserved: what needs scales, see [`KvFormat`] |
///
/// Pieces of a block (one, or one for each layer in a layer-major [`Layout`]) start at
/// multiples of 64 bytes and are padded to that. Planes in a piece follow one another
/// without a gap, so that a plane, and with it every slice, is aligned for its dtype; and
/// to 64 bytes where that costs nothing, because a plane is a multiple of 64 bytes long.
/// With 16 tokens a block those of all published models are.
///
/// # One component
///
/// Multi-head latent attention (DeepSeek) keeps one vector a token, from which keys and
/// values are both made. That is a spec with one head, `key_dim` of the latent and the
/// rotary part together (512 + 64), and `value_dim` 0. [`write`](super::LayerMut::write)
/// takes an empty slice for values, [`runs`](super::LayerMut::runs) goes over keys only,
/// and reading values is [`KvError::NoValues`].
///
/// ```
/// use tenslab::DType;
/// use tenslab::kv::{KvDims, KvSpec};
///
/// // Qwen3-0.6B with 128 tokens a block, in bfloat16.
/// let dims = KvDims { layers: 28, kv_heads: 8, key_dim: 128, value_dim: 128, block_tokens: 128 };
/// let spec = KvSpec::new(dims, DType::BF16)?;
/// assert_eq!(spec.bytes_per_token(), 114_688);
/// assert_eq!(spec.blocks_for(1_000), 8);
/// # Ok::<(), tenslab::kv::KvError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    dims: KvDims,
    dtype: DType,
    layout: Layout,
    block: BlockLayout,
    tokens: BlockTokens,
}

impl KvSpec {
    /// A spec in the default [`Layout`], without scales.
    ///
    /// # Errors
    /// [`KvError::Zero`] or [`KvError::TooLarge`] names the size that is out of
    /// range (only `value_dim` may be 0), [`KvError::UnsupportedDType`] a dtype other than float32, float16
    /// and bfloat16, [`KvError::Overflow`] a block above `isize::MAX` bytes.
    pub fn new(dims: KvDims, dtype: DType) -> Result<Self, KvError> {
        Self::build(dims, dtype, Layout::default())
    }

    /// A spec of a format by its name in other programs, the reserved ones among them.
    ///
    /// # Errors
    /// [`KvError::RaggedRows`] for rows that the format cannot divide into its groups,
    /// [`KvError::UnsupportedFormat`] for every other format that needs scales, and as
    /// [`new`](Self::new).
    pub fn from_format(dims: KvDims, format: KvFormat) -> Result<Self, KvError> {
        Self::new(dims, format.dtype_for(&dims)?)
    }

    /// The same in another layout.
    ///
    /// # Errors
    /// [`KvError::Overflow`] as for [`new`](Self::new).
    pub fn with_layout(self, layout: Layout) -> Result<Self, KvError> {
        Self::build(self.dims, self.dtype, layout)
    }

    /// The same with scales beside the data.
    ///
    /// # Errors
    /// [`KvError::UnsupportedScales`] for all but [`ScalePlane::None`].
    pub fn with_scales(self, scales: ScalePlane) -> Result<Self, KvError> {
        match scales {
            ScalePlane::None => Ok(self),
            ScalePlane::PerTokenHead => Err(KvError::UnsupportedScales { scales }),
        }
    }

    fn build(dims: KvDims, dtype: DType, layout: Layout) -> Result<Self, KvError> {
        for (what, value, max) in [
            ("layers", dims.layers, MAX_LAYERS),
            ("kv_heads", dims.kv_heads, usize::MAX),
            ("key_dim", dims.key_dim, usize::MAX),
            ("value_dim", dims.value_dim, usize::MAX),
            ("block_tokens", dims.block_tokens, MAX_BLOCK_TOKENS),
        ] {
            match value {
                0 if what != "value_dim" => return Err(KvError::Zero { what }),
                value if value > max => return Err(KvError::TooLarge { what, value, max }),
                _ => {}
            }
        }
        let element_bytes = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => dtype.bytes(),
            _ => return Err(KvError::UnsupportedDType { dtype }),
        };
        let sizes = BlockSizes {
            layers: dims.layers,
            heads: dims.kv_heads,
            key_dim: dims.key_dim,
            value_dim: dims.value_dim,
            slots: dims.block_tokens,
            element_bytes,
        };
        Ok(Self {
            dims,
            dtype,
            layout,
            block: BlockLayout::new(layout, sizes)?,
            tokens: BlockTokens::new(dims.block_tokens),
        })
    }

    /// The sizes it was made from.
    #[must_use]
    pub fn dims(&self) -> &KvDims {
        &self.dims
    }

    /// Layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.dims.layers
    }

    /// Key/value heads of a layer.
    #[must_use]
    pub fn kv_heads(&self) -> usize {
        self.dims.kv_heads
    }

    /// Elements of one head's key.
    #[must_use]
    pub fn key_dim(&self) -> usize {
        self.dims.key_dim
    }

    /// Elements of one head's value; 0 in a cache of one component.
    #[must_use]
    pub fn value_dim(&self) -> usize {
        self.dims.value_dim
    }

    /// Tokens in a block.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.dims.block_tokens
    }

    /// The dtype of keys and values.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How a block is laid out.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The group of layers this spec is for.
    #[must_use]
    pub fn group(&self) -> GroupId {
        GroupId::FIRST
    }

    /// The scales beside the data.
    #[must_use]
    pub fn scales(&self) -> ScalePlane {
        ScalePlane::None
    }

    /// Bytes of one token's keys and values over all layers, without padding.
    #[must_use]
    pub fn bytes_per_token(&self) -> usize {
        // Cannot overflow: a block holds at least one token and was measured.
        self.dims.layers
            * self.dims.kv_heads
            * (self.dims.key_dim + self.dims.value_dim)
            * self.dtype.bytes()
    }

    /// Are values kept beside the keys? Not in a cache of one component.
    #[must_use]
    pub fn has_values(&self) -> bool {
        self.dims.value_dim > 0
    }

    /// Bytes of a block over all layers, a multiple of 64.
    ///
    /// A layer-major layout pads each layer of a block, a block-major one only the
    /// block; with planes of whole multiples of 64 bytes neither pads anything.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block.block_bytes
    }

    /// Blocks that `tokens` tokens take: the last one may be partly filled.
    #[must_use]
    pub fn blocks_for(&self, tokens: usize) -> usize {
        self.tokens.needed(tokens)
    }

    /// Tokens in a block, to divide by.
    #[inline]
    pub(super) fn tokens(&self) -> BlockTokens {
        self.tokens
    }

    /// Bytes of the blocks that `tokens` tokens of one sequence take, or `None` above
    /// the address space.
    #[must_use]
    pub fn bytes_for(&self, tokens: usize) -> Option<usize> {
        self.blocks_for(tokens).checked_mul(self.block_bytes())
    }

    /// Where the planes of a region of `blocks` blocks lie: what
    /// [`KvCache::region`](super::KvCache::region) holds.
    ///
    /// # Errors
    /// [`KvError::Overflow`] for a region above `isize::MAX` bytes.
    pub fn region(&self, blocks: usize) -> Result<RegionLayout, KvError> {
        RegionLayout::new(&self.block, blocks)
    }

    /// Bytes from a plane's start (see [`RegionLayout::plane_offset`]) to the first
    /// element of one head's key or value in one slot, or `None` when there is no such
    /// part, head or slot.
    ///
    /// The `key_dim` or `value_dim` elements of it follow without a gap.
    #[must_use]
    pub fn row_offset(&self, part: Part, head: usize, slot: usize) -> Option<usize> {
        let plane = self.block.stored(part).ok()?;
        let exists = head < self.dims.kv_heads && slot < self.dims.block_tokens;
        exists.then(|| plane.row(head, slot) * self.dtype.bytes())
    }

    pub(super) fn block_layout(&self) -> &BlockLayout {
        &self.block
    }
}
