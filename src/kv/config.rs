//! [`ModelConfig`]: the sizes of keys and values, from a Hugging Face `config.json`.
//!
//! | size | from |
//! |---|---|
//! | layers | `num_hidden_layers` |
//! | heads | `num_key_value_heads`, or else `num_attention_heads` |
//! | key dim | `head_dim`, or else `hidden_size` / `num_attention_heads` |
//! | value dim | `v_head_dim`, or else the key dim |
//! | one component (MLA) | where there is a `kv_lora_rank`: one head of that and `qk_rope_head_dim`, no values |
//! | longest context | `max_position_embeddings` |
//! | dtype | `dtype`, or else `torch_dtype` |
//!
//! A field that is `null` is not there. A multimodal model has its language model's
//! fields in an object of their own (`text_config`, `llm_config` or `language_config`);
//! all sizes are then taken from that one, so that none of the vision tower's gets among
//! them.

use serde_json::{Map, Value};

use super::{KvDims, KvFormat, PlanError};

/// The largest size that is believed: two of them can be added everywhere.
const MOST: usize = i32::MAX.unsigned_abs() as usize;

/// Where multimodal models keep the fields of their language model.
const NESTED: [&str; 3] = ["text_config", "llm_config", "language_config"];

/// The sizes of a model's keys and values, as its `config.json` has them.
///
/// Every layer is counted as one with full attention. For models that mix in layers with
/// a sliding window, with linear attention, or that share a neighbour's cache, this is
/// an upper bound.
///
/// ```
/// use tenslab::kv::ModelConfig;
///
/// // DeepSeek: one vector of 512 + 64 a token and layer, for all heads.
/// let config = ModelConfig::from_json(
///     r#"{"num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168,
///         "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128}"#,
/// )?;
/// assert_eq!((config.kv_heads, config.key_dim, config.value_dim), (1, 576, 0));
///
/// let error = ModelConfig::from_json(r#"{"num_hidden_layers": "many"}"#).unwrap_err();
/// assert!(error.to_string().starts_with(r#"num_hidden_layers is "many""#));
/// # Ok::<(), tenslab::kv::PlanError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Layers.
    pub layers: usize,
    /// Key/value heads of a layer; 1 in MLA.
    pub kv_heads: usize,
    /// Elements of one head's key.
    pub key_dim: usize,
    /// Elements of one head's value; 0 in MLA.
    pub value_dim: usize,
    /// The longest context the model was made for, in tokens, if the file says.
    pub max_context: Option<usize>,
    /// The dtype of the weights as the file names it, if it does.
    pub dtype: Option<String>,
}

impl ModelConfig {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// [`PlanError::NotAConfig`] for a text that is no JSON object, and
    /// [`PlanError::Missing`], [`PlanError::NotASize`] or [`PlanError::NoHeadDim`] name
    /// the field that is.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let not_a_config = |reason: String| PlanError::NotAConfig { reason };
        let root: Value =
            serde_json::from_str(text).map_err(|error| not_a_config(error.to_string()))?;
        let Value::Object(root) = root else {
            return Err(not_a_config(format!(
                "expected an object, not {}",
                shown(&root)
            )));
        };
        let fields = Fields::of(&root);
        let layers = fields.needed("num_hidden_layers", "it is the number of layers")?;
        let max_context = fields.size("max_position_embeddings")?;
        let (kv_heads, key_dim, value_dim) = match fields.size("kv_lora_rank")? {
            Some(rank) => (1, rank + fields.rotary_dim()?, 0),
            None => fields.heads()?,
        };
        let dtype = ["dtype", "torch_dtype"]
            .into_iter()
            .find_map(|name| fields.get(name).or_else(|| present(&root, name)))
            .map(|value| match value {
                Value::String(name) => name.clone(),
                other => shown(other),
            });
        Ok(Self {
            layers,
            kv_heads,
            key_dim,
            value_dim,
            max_context,
            dtype,
        })
    }

    /// The sizes for blocks of `block_tokens` tokens.
    #[must_use]
    pub fn dims(&self, block_tokens: usize) -> KvDims {
        KvDims {
            layers: self.layers,
            kv_heads: self.kv_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            block_tokens,
        }
    }

    /// The dtype of the weights as a format for keys and values, which is what engines
    /// keep them in by default.
    ///
    /// # Errors
    /// [`PlanError::Missing`] if the file names none, [`PlanError::UnknownFormat`] if
    /// there is none of that name.
    pub fn format(&self) -> Result<KvFormat, PlanError> {
        let Some(name) = &self.dtype else {
            return Err(PlanError::Missing {
                field: "torch_dtype".into(),
                need: "the kv dtype follows from it where none is given",
            });
        };
        let short = name.strip_prefix("torch.").unwrap_or(name);
        KvFormat::from_name(short).ok_or_else(|| PlanError::UnknownFormat {
            name: cut(name.clone()),
        })
    }
}

/// A field that is there and not `null`.
fn present<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

/// The object that has the language model's fields.
struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Its name with a dot, or nothing for the whole file.
    prefix: String,
}

impl<'a> Fields<'a> {
    fn of(root: &'a Map<String, Value>) -> Self {
        let nested = NESTED.into_iter().find_map(|name| {
            let object = present(root, name)?.as_object()?;
            // Without layers it only changes some fields of a model that is described here.
            present(object, "num_hidden_layers")?;
            Some((object, format!("{name}.")))
        });
        let (object, prefix) = nested.unwrap_or((root, String::new()));
        Self { object, prefix }
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        present(self.object, name)
    }

    fn size(&self, name: &str) -> Result<Option<usize>, PlanError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        match size {
            Some(size @ 1..=MOST) => Ok(Some(size)),
            _ => Err(PlanError::NotASize {
                field: format!("{}{name}", self.prefix),
                found: shown(value),
                max: MOST,
            }),
        }
    }

    fn needed(&self, name: &str, need: &'static str) -> Result<usize, PlanError> {
        self.size(name)?.ok_or_else(|| PlanError::Missing {
            field: format!("{}{name}", self.prefix),
            need,
        })
    }

    /// The part of MLA's vector that is not compressed.
    fn rotary_dim(&self) -> Result<usize, PlanError> {
        self.needed(
            "qk_rope_head_dim",
            "with kv_lora_rank it is the vector that latent attention (MLA) keeps",
        )
    }

    /// Heads, key dim and value dim of attention with keys and values.
    fn heads(&self) -> Result<(usize, usize, usize), PlanError> {
        let query_heads = self.size("num_attention_heads")?;
        let kv_heads = match self.size("num_key_value_heads")?.or(query_heads) {
            Some(heads) => heads,
            None => self.needed(
                "num_attention_heads",
                "there is no num_key_value_heads either",
            )?,
        };
        let key_dim = match self.size("head_dim")? {
            Some(dim) => dim,
            None => {
                let need = "head_dim, which is missing too, is hidden_size / num_attention_heads";
                let hidden_size = self.needed("hidden_size", need)?;
                let heads = self.needed("num_attention_heads", need)?;
                if !hidden_size.is_multiple_of(heads) {
                    return Err(PlanError::NoHeadDim { hidden_size, heads });
                }
                hidden_size / heads
            }
        };
        let value_dim = self.size("v_head_dim")?.unwrap_or(key_dim);
        Ok((kv_heads, key_dim, value_dim))
    }
}

/// A value in a message: what it is, and not all of it.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        other => cut(other.to_string()),
    }
}

/// The beginning of a text that may be long.
fn cut(text: String) -> String {
    const MOST_SHOWN: usize = 40;
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
