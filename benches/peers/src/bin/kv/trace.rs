//! The prompts of a Mooncake trace, as tokens.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Tokens of a block here.
pub const BLOCK_TOKENS: usize = 16;

/// Tokens of the prompt that one id of the trace stands for.
const TOKENS_PER_ID: usize = 512;

/// Beside the checkout, or where `TENSLAB_SHARED` says.
pub fn shared() -> PathBuf {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let root = std::env::var_os("TENSLAB_SHARED").map_or(beside, PathBuf::from);
    root.join("data/traces/mooncake_conversation_trace.jsonl")
}

#[derive(Deserialize)]
struct Line {
    input_length: usize,
    hash_ids: Vec<u64>,
}

/// The tokens of each prompt, [`BLOCK_TOKENS`] for each full block of the trace: equal for
/// equal ids, and only for those.
pub fn read(path: &Path) -> io::Result<Vec<Vec<u32>>> {
    let text = std::fs::read_to_string(path)?;
    text.lines()
        .map(|line| {
            let line: Line = serde_json::from_str(line)?;
            let full = line.input_length / TOKENS_PER_ID;
            let ids = line.hash_ids.iter().take(full);
            Ok(ids.flat_map(|&id| block(id)).collect())
        })
        .collect()
}

/// The tokens of the block `id`.
pub fn block(id: u64) -> [u32; BLOCK_TOKENS] {
    std::array::from_fn(|index| {
        // Two tokens have all of the id, each half through a bijection.
        let [low, high] = [id, id >> 32].map(|half| half & u64::from(u32::MAX));
        let half = if index % 2 == 0 { low } else { high };
        mixed(half ^ (index as u64) << 16)
    })
}

/// A bijection of 32 bits (MurmurHash3's last step), so that tokens look like those of texts.
fn mixed(value: u64) -> u32 {
    let mut mixed = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    mixed ^ (mixed >> 16)
}
