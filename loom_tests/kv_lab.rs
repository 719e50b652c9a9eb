//! What the models of the KV cache have in common.
//!
//! The cache tells loom of each access to a block's bytes, so two that nothing orders fail a
//! model; what is read is compared as well, for a block that went to somebody else in good
//! order has other bytes.

use loom::sync::Arc;
use loom::thread;
use tenslab::DType;
use tenslab::kv::{
    KvCache, KvDims, KvError, KvLimits, KvOptions, KvSpec, Namespace, PrefixHash, Sequence,
};
use tenslab::memory::{CpuAllocator, SharedAllocator};

use super::harness::Gate;

/// Blocks, tokens in each, and sequences.
pub(crate) fn cache(blocks: usize, block_tokens: usize, max_sequences: usize) -> KvCache {
    let heap = SharedAllocator::new(CpuAllocator::new());
    cache_of(&heap, blocks, block_tokens, max_sequences)
}

/// The same with a region of that allocator.
pub(crate) fn cache_of(
    allocator: &SharedAllocator,
    blocks: usize,
    block_tokens: usize,
    max_sequences: usize,
) -> KvCache {
    let dims = KvDims {
        layers: 1,
        kv_heads: 1,
        key_dim: 1,
        value_dim: 1,
        block_tokens,
    };
    let limits = KvLimits {
        blocks,
        max_sequences,
        max_blocks_per_sequence: blocks,
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    let options = KvOptions::default().with_hash(PrefixHash::seeded(1));
    KvCache::with_options(spec, limits, &options, allocator).unwrap()
}

/// Runs `theirs` on another thread beside `mine`. Both pass a gate first.
pub(crate) fn beside<A, B: 'static>(
    theirs: impl FnOnce() -> B + 'static,
    mine: impl FnOnce() -> A,
) -> (A, B) {
    let gate = Arc::new(Gate::new());
    let other = thread::spawn({
        let gate = Arc::clone(&gate);
        move || {
            gate.pass();
            theirs()
        }
    });
    gate.pass();
    let mine = mine();
    (mine, other.join().unwrap())
}

/// Appends those of the tokens that are not there, and commits them.
pub(crate) fn compute(sequence: &mut Sequence, all: &[u32]) -> Result<(), KvError> {
    let new = &all[sequence.len()..];
    let keys: Vec<f32> = new.iter().map(|&token| token as f32).collect();
    let values: Vec<f32> = keys.iter().map(|key| key + 0.5).collect();
    let mut step = sequence.append(new)?;
    step.layer_mut(0)?.write(&keys, &values)?;
    step.commit()
}

/// The bytes of the sequence are those of the first of these tokens, as many as it has.
pub(crate) fn assert_holds(sequence: &Sequence, all: &[u32]) {
    let block_tokens = sequence.cache().spec().block_tokens();
    let tokens = &all[..sequence.len()];
    for (block, tokens) in tokens.chunks(block_tokens).enumerate() {
        let keys = sequence.keys_head::<f32>(0, block, 0).unwrap();
        let values = sequence.values_head::<f32>(0, block, 0).unwrap();
        for (token, (key, value)) in tokens.iter().zip(keys.iter().zip(values)) {
            assert_eq!((*key, *value), (*token as f32, *token as f32 + 0.5));
        }
    }
}

pub(crate) fn acquire(cache: &KvCache, tokens: &[u32]) -> Result<Sequence, KvError> {
    let sequence = cache.acquire(tokens, &Namespace::default(), 0, Some(tokens.len()))?;
    assert_holds(&sequence, tokens);
    Ok(sequence)
}

/// A prompt, found or computed.
pub(crate) fn prefill(cache: &KvCache, tokens: &[u32]) -> Result<Sequence, KvError> {
    let mut sequence = acquire(cache, tokens)?;
    if sequence.len() < tokens.len() {
        compute(&mut sequence, tokens)?;
    }
    assert_holds(&sequence, tokens);
    Ok(sequence)
}

/// Everything adds up, and without a user each block is there for the next one.
pub(crate) fn assert_nobody_is_left(cache: &KvCache) {
    cache.check().unwrap();
    let stats = cache.stats();
    assert_eq!(
        (stats.sequences, stats.tokens, stats.blocks_used),
        (0, 0, 0)
    );
    let blocks = cache.limits().blocks;
    assert_eq!(stats.blocks_free + stats.blocks_idle, blocks);
    let all = acquire(cache, &vec![u32::MAX; blocks * cache.spec().block_tokens()]).unwrap();
    assert_eq!(all.block_ids().count(), blocks);
    cache.check().unwrap();
}
