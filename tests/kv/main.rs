//! The KV cache through its public API.
//!
//! `spec`: sizes and offsets. `lifecycle`: acquire, append, commit, roll back, drop,
//! and what happens when something runs out. `contents`: what is written is what is
//! read, in every layout and dtype, where it lies; `one_component`: that without values.
//! `prefix`: what is found, kept and evicted, after the unit tests of other engines
//! (lessons/kv.md); `counters`: what is counted meanwhile. `sharing`: forks, truncation, copies, tensors, pins. `tables`: block tables
//! for kernels. `threads`: several sequences at once. `region`: what the system sees of the
//! region. `pressure`: memory that goes back. `lessons`: other cases of that list. `model`:
//! random operations against a model, byte for byte. `plan`: what a budget holds, and what a
//! config file says. `mutants`: wrong variants of the cache make these tests fail (`cargo
//! kv-mutants`).
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

#[cfg(tenslab_asan)]
mod asan;
mod contents;
mod counters;
mod lessons;
mod lifecycle;
mod model;
#[cfg(tenslab_mutants)]
mod mutants;
mod one_component;
mod plan;
mod prefix;
mod pressure;
mod region;
mod sharing;
mod spec;
mod tables;
mod threads;

use std::fmt::Debug;

use tenslab::kv::{
    KvCache, KvDims, KvError, KvLimits, KvOptions, KvSpec, Namespace, Part, Sequence,
};
use tenslab::types::half::{bf16_from_f32, f16_from_f32};
use tenslab::{DType, Element, bf16, f16, memory};

/// Sizes that are all different, and odd, so that a mixed-up stride shows.
const DIMS: KvDims = KvDims {
    layers: 3,
    kv_heads: 2,
    key_dim: 5,
    value_dim: 3,
    block_tokens: 4,
};

fn limits(blocks: usize, max_sequences: usize, max_blocks_per_sequence: usize) -> KvLimits {
    KvLimits {
        blocks,
        max_sequences,
        max_blocks_per_sequence,
    }
}

/// A float32 cache of [`DIMS`] with room in the tables for every block, which forgets what
/// nobody uses.
fn small_cache(blocks: usize, max_sequences: usize) -> KvCache {
    let forgets = KvOptions::default().with_prefix_caching(false);
    cache_with(&forgets, 4, blocks, max_sequences)
}

/// The same with these options, and so many tokens in a block.
fn cache_with(
    options: &KvOptions,
    block_tokens: usize,
    blocks: usize,
    max_sequences: usize,
) -> KvCache {
    let dims = KvDims {
        block_tokens,
        ..DIMS
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    let limits = limits(blocks, max_sequences, blocks);
    KvCache::with_options(spec, limits, options, memory::cpu()).unwrap()
}

/// A sequence with blocks for `tokens` tokens, of which none is there.
fn acquire(cache: &KvCache, tokens: usize) -> Result<Sequence, KvError> {
    cache.acquire(&[], &Namespace::default(), tokens, None)
}

/// The tokens whose keys and values are made from these salts.
fn tokens(salts: &[u64]) -> Vec<u32> {
    (salts.iter())
        .map(|&salt| u32::try_from(salt).unwrap())
        .collect()
}

/// An element type of a cache, with a way to make one and to look at its bits.
trait Number: Element + Debug {
    fn of(value: f32) -> Self;
    fn bits(self) -> u32;
}

impl Number for f32 {
    fn of(value: f32) -> Self {
        value
    }
    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Number for f16 {
    fn of(value: f32) -> Self {
        f16_from_f32(value)
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Number for bf16 {
    fn of(value: f32) -> Self {
        bf16_from_f32(value)
    }
    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

/// The element that token `salt` has at that place: an integer that all three dtypes
/// hold exactly.
fn element(salt: u64, layer: usize, part: Part, head: usize, dim: usize) -> f32 {
    let place = ((layer * 2 + usize::from(part == Part::Values)) * 64 + head) * 512 + dim;
    let mixed = (salt << 20 ^ place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let small = i16::from((mixed >> 56) as u8) - 128;
    f32::from(small)
}

/// Token-major `[tokens, heads, dim]` of one layer's new tokens.
fn rows<T: Number>(spec: &KvSpec, salts: &[u64], layer: usize, part: Part) -> Vec<T> {
    let dims = match part {
        Part::Keys => spec.key_dim(),
        Part::Values => spec.value_dim(),
    };
    let mut rows = Vec::new();
    for &salt in salts {
        for head in 0..spec.kv_heads() {
            rows.extend((0..dims).map(|dim| T::of(element(salt, layer, part, head, dim))));
        }
    }
    rows
}

/// Appends and commits tokens with these salts.
fn append<T: Number>(sequence: &mut Sequence, salts: &[u64]) -> Result<(), KvError> {
    let spec = *sequence.cache().spec();
    let mut step = sequence.append(&tokens(salts))?;
    for layer in 0..spec.layers() {
        let (keys, values) = (
            rows::<T>(&spec, salts, layer, Part::Keys),
            rows::<T>(&spec, salts, layer, Part::Values),
        );
        step.layer_mut(layer)?.write(&keys, &values)?;
    }
    step.commit()
}

/// Reads every committed element of the sequence and compares bits; every row must lie
/// in the cache's region, where the layout says.
#[track_caller]
fn assert_holds<T: Number>(sequence: &Sequence, salts: &[u64]) {
    let spec = *sequence.cache().spec();
    assert_eq!(sequence.len(), salts.len());
    assert_eq!(sequence.block_count(), spec.blocks_for(salts.len()));
    let region = spec.region(sequence.cache().limits().blocks).unwrap();
    let chunks = salts.chunks(spec.block_tokens());
    assert!(sequence.block_ids().count() >= chunks.len());
    for ((block, salts), id) in chunks.enumerate().zip(sequence.block_ids()) {
        assert_eq!(sequence.block_filled(block), salts.len());
        let id = id.get() as usize;
        for layer in 0..spec.layers() {
            for part in [Part::Keys, Part::Values] {
                let plane = match part {
                    Part::Keys => sequence.keys::<T>(layer, block).unwrap(),
                    Part::Values if !spec.has_values() => {
                        let error = sequence.values::<T>(layer, block).unwrap_err();
                        assert_eq!(error, KvError::NoValues);
                        continue;
                    }
                    Part::Values => sequence.values::<T>(layer, block).unwrap(),
                };
                assert_eq!(plane.tokens(), salts.len());
                let start = region.plane_offset(id, layer, part).unwrap();
                for (token, &salt) in salts.iter().enumerate() {
                    for head in 0..spec.kv_heads() {
                        let row = plane.row(head, token).unwrap();
                        assert_inside(sequence.cache(), row);
                        assert_eq!(
                            row.as_ptr().addr() - sequence.cache().region().start.addr(),
                            start + spec.row_offset(part, head, token).unwrap(),
                            "where the layout says"
                        );
                        for (dim, &found) in row.iter().enumerate() {
                            let expected = T::of(element(salt, layer, part, head, dim));
                            assert_eq!(
                                found.bits(),
                                expected.bits(),
                                "layer {layer} {part} block {block} token {token} head {head} \
                                 dim {dim}: {found:?} for {expected:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[track_caller]
fn assert_inside<T>(cache: &KvCache, slice: &[T]) {
    let (region, slice) = (cache.region(), slice.as_ptr_range());
    assert!(
        region.start <= slice.start.cast() && slice.end.cast() <= region.end,
        "{slice:?} is not in {region:?}"
    );
}

/// Appends these tokens and commits them; the keys and values of each are made of all tokens
/// up to it, as a model's are, so that a block under a wrong prefix shows.
fn compute(sequence: &mut Sequence, all: &[u32]) {
    let start = sequence.len();
    let salts = prefix_salts(all);
    let spec = *sequence.cache().spec();
    let mut step = sequence.append(&all[start..]).unwrap();
    for layer in 0..spec.layers() {
        let (keys, values) = (
            rows::<f32>(&spec, &salts[start..], layer, Part::Keys),
            rows::<f32>(&spec, &salts[start..], layer, Part::Values),
        );
        (step.layer_mut(layer).unwrap())
            .write(&keys, &values)
            .unwrap();
    }
    step.commit().unwrap();
}

/// The sequence holds what [`compute`] makes of these tokens.
#[track_caller]
fn assert_computed(sequence: &Sequence, all: &[u32]) {
    assert_holds::<f32>(sequence, &prefix_salts(all));
}

/// For each token a number made of all tokens up to it.
fn prefix_salts(tokens: &[u32]) -> Vec<u64> {
    let mut salt = 0_u64;
    let mut fold = |&token: &u32| {
        salt = (salt ^ (u64::from(token) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        salt ^= salt >> 29;
        salt
    };
    tokens.iter().map(&mut fold).collect()
}

/// A prompt, computed as far as it is not there.
fn prefill(cache: &KvCache, prompt: &[u32], max_hit: Option<usize>) -> Result<Sequence, KvError> {
    let mut sequence = cache.acquire(prompt, &Namespace::default(), 0, max_hit)?;
    if sequence.len() < prompt.len() {
        compute(&mut sequence, prompt);
    }
    assert_computed(&sequence, prompt);
    cache.check().unwrap();
    Ok(sequence)
}

/// The numbers of a sequence's blocks.
fn ids(sequence: &Sequence) -> Vec<u32> {
    sequence.block_ids().map(|id| id.get()).collect()
}

/// Tokens that no other range has.
fn range(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}

/// Two pieces of a prompt.
fn join(head: &[u32], tail: &[u32]) -> Vec<u32> {
    [head, tail].concat()
}

/// Salts `from..from + count`.
fn salts(from: u64, count: usize) -> Vec<u64> {
    (from..).take(count).collect()
}
