//! [`Plan`]: what a budget of bytes holds, before a cache is made.

use super::{KvError, KvFormat, KvSpec};

/// A [`KvCache`](super::KvCache) has at most this many blocks: ids are `u32`.
const MOST_BLOCKS: usize = u32::MAX as usize;

/// Budget -> blocks -> tokens -> sequences.
///
/// ```text
///  budget  | block | block | block | ... | block | unused |
///            block_tokens each; a sequence takes whole blocks
/// ```
///
/// Whole blocks only, so a plan never promises what a cache of that budget cannot keep;
/// the tables beside the region are not counted. Arithmetic on
/// numbers: nothing is allocated.
///
/// The sizes of a model are a [`KvDims`](super::KvDims), written down or read from its
/// `config.json` by [`ModelConfig`](super::ModelConfig):
///
/// ```
/// use tenslab::kv::{KvSpec, ModelConfig, Plan};
///
/// let qwen3 = r#"{"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
///     "head_dim": 128, "hidden_size": 1024, "max_position_embeddings": 40960,
///     "torch_dtype": "bfloat16"}"#;
/// let config = ModelConfig::from_json(qwen3)?;
/// let spec = KvSpec::from_format(config.dims(128), config.format()?)?;
/// let plan = Plan::new(spec, 4 << 30)?;
///
/// assert_eq!(spec.bytes_per_token(), 114_688);
/// assert_eq!((plan.blocks(), plan.tokens()), (292, 37_376));
/// assert_eq!(plan.sequences_of(4_096), 9);
/// // The whole context needs 4.375 GiB, so a sequence ends before it.
/// assert_eq!(spec.bytes_for(40_960), Some(4_697_620_480));
/// assert_eq!(plan.longest(40_960), 37_376);
/// # Ok::<(), tenslab::kv::PlanError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    spec: KvSpec,
    budget_bytes: usize,
    blocks: usize,
}

impl Plan {
    /// As many blocks of `spec` as `budget_bytes` hold: at most `u32::MAX`, which is what
    /// one cache can have, and at most `isize::MAX` bytes.
    ///
    /// # Errors
    /// [`PlanError::BudgetTooSmall`] if not one does.
    pub fn new(spec: KvSpec, budget_bytes: usize) -> Result<Self, PlanError> {
        let block_bytes = spec.block_bytes();
        let usable = budget_bytes.min(isize::MAX.unsigned_abs());
        let blocks = (usable / block_bytes).min(MOST_BLOCKS);
        if blocks == 0 {
            return Err(PlanError::BudgetTooSmall {
                budget_bytes,
                block_bytes,
            });
        }
        Ok(Self {
            spec,
            budget_bytes,
            blocks,
        })
    }

    /// What a block holds.
    #[must_use]
    pub fn spec(&self) -> &KvSpec {
        &self.spec
    }

    /// The bytes that were given.
    #[must_use]
    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// Whole blocks that the budget holds; at least 1.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Tokens that the blocks hold, if all are full.
    #[must_use]
    pub fn tokens(&self) -> usize {
        // At most 2^32 blocks of 2^20 tokens; where `usize` is narrower than that, a token
        // has at least a byte.
        self.blocks * self.spec.block_tokens()
    }

    /// Bytes of all blocks: the region of a cache with [`blocks`](Self::blocks).
    #[must_use]
    pub fn region_bytes(&self) -> usize {
        self.blocks * self.spec.block_bytes()
    }

    /// Bytes of the budget that no block takes.
    #[must_use]
    pub fn unused_bytes(&self) -> usize {
        self.budget_bytes - self.region_bytes()
    }

    /// Sequences of `tokens` tokens that fit at the same time, if they share nothing.
    ///
    /// A sequence takes whole blocks. One of no tokens takes no block, so of those as
    /// many fit as there are: `usize::MAX`.
    #[must_use]
    pub fn sequences_of(&self, tokens: usize) -> usize {
        self.blocks
            .checked_div(self.spec.blocks_for(tokens))
            .unwrap_or(usize::MAX)
    }

    /// How long a sequence may be that would like to have `wanted` tokens: as long, if
    /// they fit, or else what fits.
    #[must_use]
    pub fn longest(&self, wanted: usize) -> usize {
        wanted.min(self.tokens())
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The text is no JSON object.
    #[error("not a model config: {reason}")]
    NotAConfig {
        /// What is in the way, with line and column where there are some.
        reason: String,
    },
    /// A field that the sizes follow from is not there (or `null`).
    #[error("{field} is missing: {need}")]
    Missing {
        /// The field, with the object it should be in: `text_config.head_dim`.
        field: String,
        /// What it is needed for.
        need: &'static str,
    },
    /// A field holds something else than a size.
    #[error("{field} is {found}, expected a whole number from 1 to {max}")]
    NotASize {
        /// The field, with the object it is in.
        field: String,
        /// What is there, shortened.
        found: String,
        /// The largest size that is accepted.
        max: usize,
    },
    /// There is no `head_dim`, and it does not follow from the other sizes.
    #[error(
        "head_dim is missing, and hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}"
    )]
    NoHeadDim {
        /// Width of the residual stream.
        hidden_size: usize,
        /// Query heads.
        heads: usize,
    },
    /// Not the name of a [`KvFormat`].
    #[error("unknown kv dtype {name:?}, expected one of {}", known_formats())]
    UnknownFormat {
        /// What was to be a name, shortened.
        name: String,
    },
    /// The budget holds no block.
    #[error("a budget of {budget_bytes} bytes holds no kv block, which has {block_bytes} bytes")]
    BudgetTooSmall {
        /// The bytes that were given.
        budget_bytes: usize,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// The sizes make no spec.
    #[error(transparent)]
    Kv(#[from] KvError),
}

/// The formats that a cache can have, and those that have a name only.
fn known_formats() -> String {
    KvFormat::ALL.map(KvFormat::name).join(", ")
}
