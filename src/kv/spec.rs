use std::fmt;

use crate::types::DType;

use super::KvError;
use super::layout::{BlockLayout, BlockSizes, Layout, Part};

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
    /// Elements of one head's value; may differ from `key_dim`.
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
}

impl KvSpec {
    /// A spec in the default [`Layout`], without scales.
    ///
    /// # Errors
    /// [`KvError::Zero`] or [`KvError::TooLarge`] names the size that is out of
    /// range, [`KvError::UnsupportedDType`] a dtype other than float32, float16
    /// and bfloat16, [`KvError::Overflow`] a block above `isize::MAX` bytes.
    pub fn new(dims: KvDims, dtype: DType) -> Result<Self, KvError> {
        Self::build(dims, dtype, Layout::default())
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
                0 => return Err(KvError::Zero { what }),
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

    /// Elements of one head's value.
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

    /// Bytes of a block, a multiple of 64.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block.block_bytes
    }

    /// Blocks that `tokens` tokens take: the last one may be partly filled.
    #[must_use]
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.dims.block_tokens)
    }

    /// Bytes from a block's start to the first element of one head's key or
    /// value in one slot, or `None` when there is no such layer, head or slot.
    ///
    /// The `key_dim` or `value_dim` elements of it follow without a gap.
    #[must_use]
    pub fn byte_offset(&self, layer: usize, part: Part, head: usize, slot: usize) -> Option<usize> {
        let exists =
            layer < self.dims.layers && head < self.dims.kv_heads && slot < self.dims.block_tokens;
        exists.then(|| {
            self.block.plane_offset(layer, part)
                + self.block.part(part).row(head, slot) * self.dtype.bytes()
        })
    }

    pub(super) fn block_layout(&self) -> &BlockLayout {
        &self.block
    }
}
