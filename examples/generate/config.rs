//! `config.json`: the sizes of a model, and whether this program can run it.
//!
//! Every number that a tensor's shape also says is checked against that shape by
//! [`Model`](crate::model::Model) before the first product, so a config that does not belong to its
//! checkpoint is one line at the start and not noise at the end. What the
//! program does not do (another architecture, biases, another activation, other
//! rotary scalings than `llama3`) is refused by name.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::trouble::Trouble;

/// The largest of each size: far above every model, far below overflow.
const MOST: usize = 1 << 24;

/// `config.json` as files have it.
#[derive(Debug, Deserialize)]
struct File {
    model_type: Option<String>,
    #[serde(default)]
    architectures: Vec<String>,
    hidden_size: usize,
    num_hidden_layers: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    hidden_act: Option<String>,
    eos_token_id: Option<OneOrMore>,
}

/// `rope_scaling`, or the newer `rope_parameters`.
#[derive(Debug, Deserialize)]
struct Scaling {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

/// A Llama that this program can run.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Width of the residual stream.
    pub(crate) hidden: usize,
    /// Decoder layers.
    pub(crate) layers: usize,
    /// Width inside the feed-forward block.
    pub(crate) intermediate: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key/value heads; divides `heads`.
    pub(crate) kv_heads: usize,
    /// Elements of a head; even.
    pub(crate) head_dim: usize,
    /// Token ids are below it.
    pub(crate) vocab: usize,
    /// The longest context the model was made for, in tokens.
    pub(crate) max_context: usize,
    /// Added to the mean square before its root is taken.
    pub(crate) rms_epsilon: f32,
    /// Radians that pair `i` of a head turns from one position to the next.
    pub(crate) turns: Vec<f64>,
    /// The output head is the embedding.
    pub(crate) tied: bool,
    /// Tokens that end a text.
    pub(crate) ends: Vec<u32>,
}

impl Config {
    /// Reads `directory/config.json`.
    ///
    /// # Errors
    ///
    /// A file that is missing, is not JSON or lacks a field, and a model that this
    /// program does not run.
    pub(crate) fn read(directory: &Path) -> Result<Self, Trouble> {
        let path = directory.join("config.json");
        let text = fs::read_to_string(&path).map_err(|error| {
            let hint = "--model wants a Hugging Face directory: config.json, tokenizer.json and safetensors";
            Trouble::new(format!("{}: {error}; {hint}", path.display()))
        })?;
        let at = |what: String| Trouble::new(format!("{}: {what}", path.display()));
        let file: File = serde_json::from_str(&text)
            .map_err(|error| at(format!("not a usable model config: {error}")))?;
        file.check().map_err(at)
    }
}

impl File {
    fn check(self) -> Result<Config, String> {
        let named = self.architectures.join(", ");
        let kind = self.model_type.as_deref().unwrap_or("none");
        let is_llama = self
            .architectures
            .iter()
            .any(|name| name == "LlamaForCausalLM")
            || self.architectures.is_empty() && kind == "llama";
        if !is_llama || !matches!(kind, "llama" | "none") {
            return Err(format!(
                "architecture [{named}] with model_type {kind} is not known here; this example runs LlamaForCausalLM (model_type llama) only"
            ));
        }
        if let Some(act) = self
            .hidden_act
            .as_deref()
            .filter(|act| !matches!(*act, "silu" | "swish"))
        {
            return Err(format!("hidden_act {act} is not known here, only silu is"));
        }
        if self.attention_bias || self.mlp_bias {
            return Err(
                "attention_bias and mlp_bias are not supported by this example; both must be false"
                    .into(),
            );
        }
        let kv_heads = self.num_key_value_heads.unwrap_or(self.num_attention_heads);
        let head_dim = self
            .head_dim
            .unwrap_or(self.hidden_size / self.num_attention_heads.max(1));
        for (name, value) in [
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", kv_heads),
            ("head_dim", head_dim),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            if value == 0 || value > MOST {
                return Err(format!("{name} is {value}; it must be 1 to {MOST}"));
            }
        }
        if !self.num_attention_heads.is_multiple_of(kv_heads) {
            let heads = self.num_attention_heads;
            return Err(format!(
                "num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
            ));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(format!(
                "head_dim is {head_dim}; rotary embeddings need an even one"
            ));
        }
        if !(self.rms_norm_eps >= 0.0 && self.rms_norm_eps < 1.0) {
            return Err(format!(
                "rms_norm_eps is {}; it must be 0 to 1",
                self.rms_norm_eps
            ));
        }
        let turns = self.turns(head_dim)?;
        #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is meant")]
        let rms_epsilon = self.rms_norm_eps as f32;
        Ok(Config {
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            intermediate: self.intermediate_size,
            heads: self.num_attention_heads,
            kv_heads,
            head_dim,
            vocab: self.vocab_size,
            max_context: self.max_position_embeddings,
            rms_epsilon,
            turns,
            tied: self.tie_word_embeddings,
            ends: match self.eos_token_id {
                None => Vec::new(),
                Some(OneOrMore::One(id)) => vec![id],
                Some(OneOrMore::More(ids)) => ids,
            },
        })
    }

    /// Pair `i` of `n` turns by `theta^(-i/n)`, scaled as the file asks.
    fn turns(&self, head_dim: usize) -> Result<Vec<f64>, String> {
        let scaling = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let theta = scaling
            .and_then(|scaling| scaling.rope_theta)
            .or(self.rope_theta)
            .unwrap_or(10_000.0);
        if !(theta.is_finite() && theta > 0.0) {
            return Err(format!(
                "rope_theta is {theta}; it must be a positive number"
            ));
        }
        let plain = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64));
        match scaling.and_then(|scaling| Some((scaling, scaling.rope_type.as_deref()?))) {
            None | Some((_, "default")) => Ok(plain.collect()),
            Some((scaling, "llama3")) => {
                let stretch = scaling.llama3()?;
                Ok(plain.map(stretch).collect())
            }
            Some((_, other)) => Err(format!(
                "rope_scaling of type {other} is not known here, only llama3 is"
            )),
        }
    }
}

impl Scaling {
    /// Llama 3.1's way to longer contexts: slow turns are divided by `factor`, fast
    /// ones are kept, those between go from one to the other.
    fn llama3(&self) -> Result<impl Fn(f64) -> f64 + use<>, String> {
        let need = |name: &str, value: Option<f64>| match value {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            Some(value) => Err(format!(
                "rope_scaling: {name} is {value}; it must be a positive number"
            )),
            None => Err(format!("rope_scaling of type llama3 lacks {name}")),
        };
        let factor = need("factor", self.factor)?;
        let low = need("low_freq_factor", self.low_freq_factor)?;
        let high = need("high_freq_factor", self.high_freq_factor)?;
        let trained = need(
            "original_max_position_embeddings",
            self.original_max_position_embeddings,
        )?;
        if low >= high {
            return Err(format!(
                "rope_scaling: low_freq_factor {low} is not below high_freq_factor {high}"
            ));
        }
        Ok(move |turn: f64| {
            // Whole turns within the context that the model was first trained for.
            let rounds = trained * turn / std::f64::consts::TAU;
            let kept = ((rounds - low) / (high - low)).clamp(0.0, 1.0);
            turn * (kept + (1.0 - kept) / factor)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(changes: &str) -> Result<Config, String> {
        let mut config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
            "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": [1, 2]
        });
        let changes: serde_json::Value = serde_json::from_str(changes).unwrap();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        serde_json::from_value::<File>(config)
            .map_err(|error| error.to_string())?
            .check()
    }

    #[test]
    fn a_plain_config_is_understood() {
        let config = check("{}").unwrap();
        assert_eq!(
            (config.head_dim, config.kv_heads, config.tied),
            (16, 2, false)
        );
        assert_eq!(config.ends, [1, 2]);
        assert_eq!(config.turns[0], 1.0);
        assert!((config.turns[4] - 0.01).abs() < 1e-15);
    }

    #[test]
    fn what_this_program_does_not_do_is_refused_by_name() {
        for (changes, part) in [
            (
                r#"{"architectures": ["MistralForCausalLM"], "model_type": "mistral"}"#,
                "MistralForCausalLM",
            ),
            (r#"{"hidden_act": "gelu"}"#, "gelu"),
            (r#"{"attention_bias": true}"#, "attention_bias"),
            (
                r#"{"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}"#,
                "yarn",
            ),
            (
                r#"{"rope_scaling": {"type": "llama3", "factor": 8.0}}"#,
                "low_freq_factor",
            ),
            (
                r#"{"num_key_value_heads": 3}"#,
                "multiple of num_key_value_heads 3",
            ),
            (r#"{"num_hidden_layers": 0}"#, "num_hidden_layers is 0"),
            (r#"{"head_dim": 7}"#, "even"),
            (r#"{"hidden_size": "wide"}"#, "wide"),
        ] {
            let error = check(changes).unwrap_err();
            assert!(error.contains(part), "{changes}: {error}");
        }
    }

    #[test]
    fn llama3_keeps_fast_turns_and_divides_slow_ones() {
        let scaled = r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "rope_theta": 500000.0, "head_dim": 128}"#;
        let plain = check(r#"{"rope_theta": 500000.0, "head_dim": 128}"#)
            .unwrap()
            .turns;
        let scaled = check(scaled).unwrap().turns;
        for (i, (plain, scaled)) in plain.iter().zip(&scaled).enumerate() {
            let wavelength = std::f64::consts::TAU / plain;
            let ratio = plain / scaled;
            match wavelength {
                w if w < 8192.0 / 4.0 => assert!((ratio - 1.0).abs() < 1e-12, "pair {i}: {ratio}"),
                w if w > 8192.0 => assert!((ratio - 8.0).abs() < 1e-12, "pair {i}: {ratio}"),
                _ => assert!(ratio > 1.0 && ratio < 8.0, "pair {i}: {ratio}"),
            }
        }
    }
}
