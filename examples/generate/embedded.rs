//! The model that is there when no other is given: a small Llama with seeded
//! weights, written as an ordinary checkpoint.
//!
//! Its vocabulary is the 256 bytes, so it needs no tokenizer. It has learnt
//! nothing: its text is noise. The rows of its output head that belong to bytes
//! other than printable ASCII are zero, so that the noise can be read.
//!
//! It is loaded through the same door as every other model, from real safetensors
//! in a temporary folder, which goes away with its [`TempDir`].

use std::collections::BTreeMap;
use std::fs;

use tempfile::TempDir;
use tenslab::weights::save;
use tenslab::{DType, Tensor, memory};

use crate::trouble::Trouble;

const HIDDEN: usize = 256;
const LAYERS: usize = 6;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const INTERMEDIATE: usize = 512;
const VOCABULARY: usize = 256;
const CONTEXT: usize = 2048;

/// Writes the checkpoint to a new temporary folder.
///
/// # Errors
///
/// A disk that is full or cannot be written. Nothing is left there then.
pub(crate) fn write() -> Result<TempDir, Trouble> {
    let room = |error: &dyn std::fmt::Display| {
        let parent = std::env::temp_dir();
        Trouble::new(format!(
            "cannot write the embedded model (14 MB) below {}: {error}; free some space, set TMPDIR to a folder that has it, or give --model",
            parent.display()
        ))
    };
    let directory = tempfile::Builder::new()
        .prefix("tenslab-generate-")
        .tempdir()
        .map_err(|error| room(&error))?;
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    save(
        directory.path().join("model.safetensors"),
        &tensors()?,
        &metadata,
    )
    .map_err(|error| room(&error))?;
    fs::write(directory.path().join("config.json"), config()).map_err(|error| room(&error))?;
    Ok(directory)
}

fn config() -> String {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": false,
    });
    format!("{config:#}\n")
}

fn tensors() -> Result<Vec<(String, Tensor)>, Trouble> {
    let mut noise = Noise(0x7e45_1ab0);
    let mut tensors = Vec::new();
    let mut add = |name: String, rows: usize, cols: usize| -> Result<Tensor, Trouble> {
        let tensor = Tensor::empty([rows, cols], DType::F32, memory::cpu())?;
        // As large as keeps the size of what goes through.
        let size = (3.0 / cols as f32).sqrt();
        tensor
            .write::<f32>()?
            .iter_mut()
            .for_each(|element| *element = noise.next() * size);
        tensors.push((name, tensor.clone()));
        Ok(tensor)
    };
    let (q_rows, kv_rows) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    for l in 0..LAYERS {
        let mut add =
            |name: &str, rows, cols| add(format!("model.layers.{l}.{name}.weight"), rows, cols);
        add("self_attn.q_proj", q_rows, HIDDEN)?;
        add("self_attn.k_proj", kv_rows, HIDDEN)?;
        add("self_attn.v_proj", kv_rows, HIDDEN)?;
        add("self_attn.o_proj", HIDDEN, q_rows)?;
        add("mlp.gate_proj", INTERMEDIATE, HIDDEN)?;
        add("mlp.up_proj", INTERMEDIATE, HIDDEN)?;
        add("mlp.down_proj", HIDDEN, INTERMEDIATE)?;
    }
    add("model.embed_tokens.weight".into(), VOCABULARY, HIDDEN)?;
    let head = add("lm_head.weight".into(), VOCABULARY, HIDDEN)?;
    for (byte, row) in (0..=u8::MAX).zip(head.write::<f32>()?.chunks_exact_mut(HIDDEN)) {
        if !(byte.is_ascii_graphic() || byte == b' ') {
            row.fill(0.0);
        }
    }
    let norms = (0..LAYERS).flat_map(|l| {
        ["input_layernorm", "post_attention_layernorm"]
            .map(|name| format!("model.layers.{l}.{name}.weight"))
    });
    for name in norms.chain(["model.norm.weight".to_owned()]) {
        let tensor = Tensor::empty([HIDDEN], DType::F32, memory::cpu())?;
        tensor.write::<f32>()?.fill(1.0);
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

/// Numbers of no pattern in -1..1: a 64-bit congruential generator, its upper bits.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let bits = (self.0 >> 40) as u32;
        bits as f32 / 8_388_608.0 - 1.0
    }
}
