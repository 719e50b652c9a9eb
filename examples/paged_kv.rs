//! Attention over a paged KV cache, in a page of code.
//!
//! ```text
//!   cargo run --example paged_kv
//! ```
//!
//! Two requests begin with the same system prompt. The first one computes keys and values for
//! all of its prompt; the second one finds those of the system prompt and computes the rest.
//! Then one query attends to each of them, block by block, where the keys and values lie, and
//! the result is compared with that of a plain loop over all tokens in one array.
//!
//! There is no model here: the key and the value of a token are made of its number and its
//! position. Start reading at [`attend`]: that is the kernel.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

use tenslab::kv::{
    KvCache, KvDims, KvError, KvLimits, KvSpec, Namespace, Sequence, Step, padded_rows,
};
use tenslab::{DType, memory};

/// One layer of two key/value heads, 4 tokens a block: small enough to look at.
const DIMS: KvDims = KvDims {
    layers: 1,
    kv_heads: 2,
    key_dim: 8,
    value_dim: 8,
    block_tokens: 4,
};

/// `softmax(query . keys) values` of one head, over all tokens of the sequence.
///
/// A block's scores are all that is kept: the largest score so far, the sum of the weights and
/// the weighted values are brought up to date with each block, so it does not matter how many
/// there are.
fn attend(
    sequence: &Sequence,
    layer: usize,
    head: usize,
    query: &[f32],
) -> Result<Vec<f32>, KvError> {
    let mut out = vec![0.0; DIMS.value_dim];
    let (mut largest, mut total) = (f32::NEG_INFINITY, 0.0);
    for block in 0..sequence.block_count() {
        // [tokens in the block, dim], contiguous, in the cache's own bytes.
        let keys = sequence.keys_head::<f32>(layer, block, head)?;
        let values = sequence.values_head::<f32>(layer, block, head)?;

        let mut scores = [0.0; DIMS.block_tokens];
        let scores = &mut scores[..sequence.block_filled(block)];
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(DIMS.key_dim)) {
            *score = dot(query, key);
        }
        let new_largest = scores.iter().copied().fold(largest, f32::max);
        let shrink = (largest - new_largest).exp();
        largest = new_largest;
        total *= shrink;
        out.iter_mut().for_each(|sum| *sum *= shrink);
        for (score, value) in scores.iter().zip(values.chunks_exact(DIMS.value_dim)) {
            let weight = (score - largest).exp();
            total += weight;
            for (sum, value) in out.iter_mut().zip(value) {
                *sum += weight * value;
            }
        }
    }
    out.iter_mut().for_each(|sum| *sum /= total);
    Ok(out)
}

/// The same with all keys and values in one array and all scores at hand, in doubles.
fn attend_naively(tokens: &[u32], head: usize, query: &[f32]) -> Vec<f64> {
    let score = |(position, &token)| f64::from(dot(query, &key(token, position, head)));
    let scores: Vec<f64> = tokens.iter().enumerate().map(score).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; DIMS.value_dim];
    for (position, (&token, weight)) in tokens.iter().zip(&weights).enumerate() {
        for (sum, value) in out.iter_mut().zip(value(token, position, head)) {
            *sum += weight / total * f64::from(value);
        }
    }
    out
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// In place of a model: numbers between -1 and 1.
fn noise(seed: [usize; 3], dim: usize) -> Vec<f32> {
    let [token, position, head] = seed;
    let phase = (token * 31 + position * 7 + head * 101) as f32;
    (0..dim)
        .map(|at| (phase * 0.37 + at as f32 * 1.3).sin())
        .collect()
}

fn key(token: u32, position: usize, head: usize) -> Vec<f32> {
    noise([token as usize, position, head], DIMS.key_dim)
}

fn value(token: u32, position: usize, head: usize) -> Vec<f32> {
    noise([token as usize + 1000, position, head], DIMS.value_dim)
}

/// Writes keys and values of the new tokens: `[tokens, heads, dim]` of each layer.
fn write(step: &mut Step<'_>, new: &[u32]) -> Result<(), KvError> {
    let first = step.start();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (position, &token) in (first..).zip(new) {
        for head in 0..DIMS.kv_heads {
            keys.extend(key(token, position, head));
            values.extend(value(token, position, head));
        }
    }
    for layer in 0..DIMS.layers {
        step.layer_mut(layer)?.write(&keys, &values)?;
    }
    Ok(())
}

/// A sequence with all of `prompt`, of which only that is computed which is not there.
fn prefill(cache: &KvCache, prompt: &[u32]) -> Result<Sequence, KvError> {
    let mut sequence = cache.acquire(prompt, &Namespace::default(), 0, None)?;
    let rest = &prompt[sequence.hit_tokens()..];
    let mut step = sequence.append(rest)?;
    write(&mut step, rest)?;
    step.commit()?;
    Ok(sequence)
}

fn main() -> Result<(), KvError> {
    let limits = KvLimits {
        blocks: 16,
        max_sequences: 4,
        max_blocks_per_sequence: 8,
    };
    let cache = KvCache::new(KvSpec::new(DIMS, DType::F32)?, limits, memory::cpu())?;

    let system: Vec<u32> = (100..109).collect();
    let prompts = [
        [&system[..], &[1, 2, 3]].concat(),
        [&system[..], &[7, 8, 9, 10, 11]].concat(),
    ];
    let sequences = [prefill(&cache, &prompts[0])?, prefill(&cache, &prompts[1])?];

    let mut rows = Vec::new();
    let width = padded_rows(&sequences, None, -1, &mut rows)?;
    for ((name, sequence), row) in ["A", "B"].iter().zip(&sequences).zip(rows.chunks(width)) {
        let (tokens, found) = (sequence.len(), sequence.hit_tokens());
        println!("{name}  {tokens} tokens, {found} of them found  blocks {row:?}");
    }
    let stats = cache.stats();
    let (used, copied) = (stats.blocks_used, cache.counters().copied_blocks);
    println!(
        "   {used} blocks used for {} tokens, {copied} copied",
        stats.tokens
    );

    let query = noise([5, 5, 5], DIMS.key_dim);
    for ((name, sequence), prompt) in ["A", "B"].iter().zip(&sequences).zip(&prompts) {
        let mut furthest = 0.0_f64;
        for head in 0..DIMS.kv_heads {
            let paged = attend(sequence, 0, head, &query)?;
            let naive = attend_naively(prompt, head, &query);
            let apart = |(&paged, naive): (&f32, &f64)| (f64::from(paged) - naive).abs();
            furthest = paged.iter().zip(&naive).map(apart).fold(furthest, f64::max);
        }
        assert!(furthest < 1e-5, "{name} is {furthest} from the plain loop");
        println!("{name}  attention is that of a plain loop (within {furthest:.0e})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    /// The comparisons are in it.
    #[test]
    fn it_runs() {
        super::main().unwrap();
    }
}
