//! tenslab's cache, as the others see it.

use tenslab::kv::{KvCache, KvDims, KvLimits, KvOptions, KvSpec, Namespace, Sequence};
use tenslab::{DType, bf16, memory};

use crate::keeper::Keeper;
use crate::trace::BLOCK_TOKENS;

/// Books only: a key and a value of one element for each token, that nobody writes.
pub struct Ours {
    pub cache: KvCache,
    namespace: Namespace,
}

impl Ours {
    pub fn new(limits: KvLimits) -> Self {
        let dims = KvDims {
            layers: 1,
            kv_heads: 1,
            key_dim: 1,
            value_dim: 1,
            block_tokens: BLOCK_TOKENS,
        };
        // Whole blocks only, as the others.
        let options = KvOptions::default().with_partial_hits(false);
        let spec = KvSpec::new(dims, DType::BF16).expect("dims");
        Self {
            cache: KvCache::with_options(spec, limits, &options, memory::cpu()).expect("memory"),
            namespace: Namespace::default(),
        }
    }

    pub fn acquire(&self, tokens: &[u32], reserve: usize) -> Sequence {
        self.cache
            .acquire(tokens, &self.namespace, reserve, Some(tokens.len()))
            .expect("blocks")
    }
}

/// Appends tokens whose keys and values are whatever lies there.
fn append(sequence: &mut Sequence, tokens: &[u32]) {
    let mut step = sequence.append(tokens).expect("blocks");
    let runs = step.layer_mut(0).and_then(|layer| layer.runs::<bf16>());
    // Lent to the last piece, the layer counts as written.
    runs.expect("layer 0").for_each(drop);
    step.commit().expect("all written");
}

impl Keeper for Ours {
    type Sequence = Sequence;
    type Taken = Sequence;

    fn visit(&self, _number: usize, tokens: &[u32]) -> usize {
        let mut sequence = self.acquire(tokens, 0);
        let hit = sequence.hit_tokens();
        if hit < tokens.len() {
            append(&mut sequence, &tokens[hit..]);
        }
        hit / BLOCK_TOKENS
    }

    fn forget(&self) {
        self.cache.reset().expect("nobody uses a block");
    }

    fn take(&self, blocks: usize) -> Sequence {
        self.acquire(&[], blocks * BLOCK_TOKENS)
    }

    fn give_back(&self, taken: Sequence) {
        drop(taken);
    }

    fn begin(&self) -> Sequence {
        self.acquire(&[], 0)
    }

    fn grow(&self, sequence: &mut Sequence, block: &[u32]) {
        append(sequence, block);
    }

    fn end(&self, sequence: Sequence) {
        drop(sequence);
    }
}
