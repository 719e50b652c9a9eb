//! Greedy decoding of the same model by candle-transformers, to stand beside `generate`.
//!
//! `candle DIR TOKENS ID,ID,…` prints one JSON object: the tokens, and tokens a second of
//! the steps after the prompt. `RAYON_NUM_THREADS` says how many threads. It keeps its
//! defaults: memory-mapped weights, the file's dtype.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Llama, LlamaConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, directory, tokens, ids] = &args[..] else {
        return Err("usage: candle DIR TOKENS ID,ID,…".into());
    };
    let directory = Path::new(directory);
    let tokens: usize = tokens.parse()?;
    let prompt = ids
        .split(',')
        .map(str::parse)
        .collect::<Result<Vec<u32>, _>>()?;

    let config = std::fs::read(directory.join("config.json"))?;
    let json: serde_json::Value = serde_json::from_slice(&config)?;
    let dtype = match json["torch_dtype"].as_str() {
        Some("bfloat16") => DType::BF16,
        Some("float16") => DType::F16,
        _ => DType::F32,
    };
    let config = serde_json::from_value::<LlamaConfig>(json)?.into_config(false);
    let files = [directory.join("model.safetensors")];
    // SAFETY: nobody writes to the file while this runs.
    let weights = unsafe { VarBuilder::from_mmaped_safetensors(&files, dtype, &Device::Cpu)? };
    let model = Llama::load(weights, &config)?;
    let mut cache = Cache::new(true, dtype, &config, &Device::Cpu)?;

    let mut forward = |ids: &[u32], at: usize| -> Result<u32, Box<dyn Error>> {
        let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let logits = model.forward(&input, at, &mut cache)?.squeeze(0)?;
        let logits = logits.to_dtype(DType::F32)?;
        Ok(logits.argmax(0)?.to_scalar::<u32>()?)
    };
    let mut made = vec![forward(&prompt, 0)?];
    let started = Instant::now();
    while made.len() < tokens {
        let last = made[made.len() - 1];
        made.push(forward(&[last], prompt.len() + made.len() - 1)?);
    }
    let per_second = (made.len() - 1) as f64 / started.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak_kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0);
    let report = serde_json::json!({
        "tokens": made,
        "tokens_per_s": per_second,
        "peak_rss_bytes": peak_kib << 10,
    });
    println!("{report}");
    Ok(())
}
