//! NVIDIA's kvbm-logical, as its documentation uses it.
//!
//! Its manager finds blocks by the hashes of their prefixes; dynamo-tokens makes those of
//! tokens. Nobody compares tokens.

use dynamo_tokens::{PositionalLineageHash, TokenBlockSequence, compute_block_hash_for_tokens};
use kvbm_logical::manager::{BlockManagerConfigBuilder, LineageEviction};
use kvbm_logical::{
    BlockManager, BlockRegistry, ImmutableBlock, KvbmSequenceHashProvider, MutableBlock,
    SequenceHash,
};

use crate::keeper::Keeper;
use crate::trace::BLOCK_TOKENS;

#[derive(Clone)]
pub struct Tier;

type Builder = BlockManagerConfigBuilder<Tier>;

/// The order in which it evicts.
pub type Order = fn(Builder) -> Builder;

pub const LRU: Order = |builder| builder.with_lru_backend();
/// Its default, leaves first, with the cheaper of its two orders of leaves.
pub const LINEAGE: Order = |builder| builder.with_lineage_backend_eviction(LineageEviction::Fifo);

pub struct Kvbm {
    manager: BlockManager<Tier>,
    /// For each prompt, if they are not to be made of tokens each time.
    hashes: Option<Vec<Vec<SequenceHash>>>,
}

/// Blocks that are dropped last first.
pub struct Chain {
    blocks: Vec<ImmutableBlock<Tier>>,
    hash: Option<PositionalLineageHash>,
}

impl Drop for Chain {
    fn drop(&mut self) {
        while self.blocks.pop().is_some() {}
    }
}

impl Chain {
    /// Its blocks once more, for another sequence.
    pub fn fork(&self) -> Self {
        Self {
            blocks: self.blocks.clone(),
            hash: self.hash,
        }
    }
}

impl Kvbm {
    pub fn new(blocks: usize, order: Order) -> Self {
        let builder = BlockManager::<Tier>::builder()
            .block_count(blocks)
            .block_size(BLOCK_TOKENS)
            .registry(BlockRegistry::new());
        Self {
            manager: order(builder).build().expect("a manager"),
            hashes: None,
        }
    }

    /// Hashes each prompt now, and not with each visit.
    pub fn with_hashes_of(mut self, prompts: &[Vec<u32>]) -> Self {
        self.hashes = Some(prompts.iter().map(|prompt| hashes_of(prompt)).collect());
        self
    }

    fn visit_hashes(&self, hashes: &[SequenceHash]) -> usize {
        let mut blocks = self.manager.match_blocks(hashes);
        let hits = blocks.len();
        let taken = self.manager.allocate_blocks(hashes.len() - hits);
        let staged = taken
            .expect("blocks")
            .into_iter()
            .zip(&hashes[hits..])
            .map(|(block, &hash)| block.stage(hash, BLOCK_TOKENS).expect("its size"))
            .collect();
        blocks.extend(self.manager.register_blocks(staged));
        drop(Chain { blocks, hash: None });
        hits
    }
}

fn hashes_of(tokens: &[u32]) -> Vec<SequenceHash> {
    let size = u32::try_from(BLOCK_TOKENS).expect("16");
    let blocks = TokenBlockSequence::from_slice(tokens, size, None);
    let hash = |block: &dynamo_tokens::TokenBlock| block.kvbm_sequence_hash();
    blocks.blocks().iter().map(hash).collect()
}

impl Keeper for Kvbm {
    type Sequence = Chain;
    type Taken = Vec<MutableBlock<Tier>>;

    fn visit(&self, number: usize, tokens: &[u32]) -> usize {
        match &self.hashes {
            Some(hashes) => self.visit_hashes(&hashes[number]),
            None => self.visit_hashes(&hashes_of(tokens)),
        }
    }

    fn forget(&self) {
        self.manager.reset_inactive_pool().expect("all idle");
    }

    fn take(&self, blocks: usize) -> Self::Taken {
        self.manager.allocate_blocks(blocks).expect("blocks")
    }

    fn give_back(&self, taken: Self::Taken) {
        drop(taken);
    }

    fn begin(&self) -> Chain {
        Chain {
            blocks: Vec::new(),
            hash: None,
        }
    }

    fn grow(&self, chain: &mut Chain, tokens: &[u32]) {
        let block_hash = compute_block_hash_for_tokens(tokens, 0);
        let hash = match chain.hash {
            Some(parent) => parent.extend(block_hash),
            None => PositionalLineageHash::root(block_hash),
        };
        let block = self.manager.allocate_blocks(1).expect("a block").remove(0);
        let staged = block.stage(hash, BLOCK_TOKENS).expect("its size");
        chain.blocks.push(self.manager.register_block(staged));
        chain.hash = Some(hash);
    }

    fn end(&self, chain: Chain) {
        drop(chain);
    }
}
