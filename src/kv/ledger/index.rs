//! The prefix index: which block holds these tokens after that parent.
//!
//! ```text
//!  buckets   [ 4 | - | 0 | 3 ]        by the number of the chain: parent's number and tokens
//!              │       │
//!              7       -              linked through the records: no entry of its own, so
//!                                     nothing to allocate, no tombstones, and never a rehash
//! ```
//!
//! A hit is verified: the same parent block, or for a first block the same namespace; as
//! many tokens; and each token. Since every registered block's parent is registered, that
//! is the whole prefix, by induction.

use crate::kv::{KvError, Namespace};
use crate::mutant::{self, Mutant};

use super::blocks::{Blocks, NONE};
use super::table;

/// Children of a block that are looked at for the longest common beginning, the youngest
/// first: a bound, for a system prompt may have thousands.
const LOOK: usize = 8;

/// The heads of the buckets, and the first blocks of prompts.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) buckets: Box<[u32]>,
    /// The youngest registered block without a parent.
    pub(super) youngest_root: u32,
    pub(super) len: usize,
}

impl Index {
    /// At most one block in four buckets, on average: whether there is one more to look at is
    /// then mostly foreseen by the processor. A quarter of what a block's record takes.
    pub(super) fn new(blocks: usize) -> Result<Self, KvError> {
        let wanted = blocks.checked_next_power_of_two();
        let buckets = wanted
            .and_then(|blocks| blocks.checked_mul(4))
            .ok_or(KvError::TablesTooLarge { entries: blocks })?;
        Ok(Self {
            buckets: table(buckets, |_| NONE)?,
            youngest_root: NONE,
            len: 0,
        })
    }

    fn bucket(&self, hash: u64) -> usize {
        // The mask keeps the low bits, which fit.
        #[allow(clippy::cast_possible_truncation, reason = "masked to the table")]
        let low = hash as usize;
        low & (self.buckets.len() - 1)
    }
}

/// What a block is found by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) parent: u32,
    /// Of first blocks.
    pub(super) namespace: &'a Namespace,
    pub(super) hash: u64,
    pub(super) tokens: &'a [u32],
}

/// The beginning of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beginning {
    pub(super) block: u32,
    pub(super) tokens: usize,
}

/// What of the tokens counts: all of them.
fn counted(tokens: &[u32]) -> &[u32] {
    if mutant::is(Mutant::KvIgnoresLastToken) {
        return &tokens[..tokens.len() - 1];
    }
    tokens
}

impl Blocks {
    /// The number of a block's chain.
    pub(super) fn chain_hash(
        &self,
        hash: &crate::kv::PrefixHash,
        parent: u32,
        namespace: &Namespace,
        tokens: &[u32],
    ) -> u64 {
        let parent = match parent {
            NONE => hash.chain(0, &namespace.words()),
            parent => self.record(parent).hash,
        };
        hash.chain(parent, counted(tokens))
    }

    /// The registered full block with that key.
    pub(super) fn find(&self, key: &Key<'_>) -> Option<u32> {
        let mut block = self.index.buckets[self.index.bucket(key.hash)];
        let mut looked_at = 0;
        while block != NONE {
            looked_at += 1;
            let record = self.record(block);
            if record.hash == key.hash
                && record.parent == key.parent
                && record.filled as usize == key.tokens.len()
                && (key.parent != NONE || self.namespaces[block as usize] == *key.namespace)
                && counted(&self.tokens(block)[..key.tokens.len()]) == counted(key.tokens)
            {
                break;
            }
            block = record.bucket_next;
        }
        self.touch(looked_at);
        (block != NONE).then_some(block)
    }

    /// Among the children of `parent` the one that begins most like `tokens`.
    pub(super) fn longest_beginning(
        &self,
        parent: u32,
        namespace: &Namespace,
        tokens: &[u32],
    ) -> Option<Beginning> {
        let mut best: Option<Beginning> = None;
        let mut child = self.youngest_child(parent);
        for _ in 0..LOOK {
            if child == NONE || tokens.is_empty() {
                break;
            }
            self.touch(1);
            let record = self.record(child);
            if parent != NONE || self.namespaces[child as usize] == *namespace {
                let filled = &self.tokens(child)[..record.filled as usize];
                let common = filled.iter().zip(tokens).take_while(|(a, b)| a == b);
                let common = common.count();
                if common > best.map_or(0, |best| best.tokens) {
                    best = Some(Beginning {
                        block: child,
                        tokens: common,
                    });
                }
            }
            child = record.older_sibling;
        }
        best
    }

    fn youngest_child(&self, parent: u32) -> u32 {
        match parent {
            NONE => self.index.youngest_root,
            parent => self.record(parent).child,
        }
    }

    fn set_youngest_child(&mut self, parent: u32, child: u32) {
        match parent {
            NONE => self.index.youngest_root = child,
            parent => self.record_mut(parent).child = child,
        }
    }

    /// Makes a block that is in use findable by its first `filled` tokens, which are in place.
    pub(super) fn register(
        &mut self,
        block: u32,
        parent: u32,
        namespace: &Namespace,
        hash: u64,
        filled: usize,
    ) {
        debug_assert!(!self.record(block).is_registered(), "block {block}");
        let bucket = self.index.bucket(hash);
        let sibling = self.youngest_child(parent);
        let bucket_next = self.index.buckets[bucket];
        let record = self.record_mut(block);
        record.filled = u32::try_from(filled).unwrap_or(u32::MAX);
        record.hash = hash;
        record.parent = parent;
        record.bucket_next = bucket_next;
        record.older_sibling = sibling;
        record.younger_sibling = NONE;
        self.index.buckets[bucket] = block;
        if sibling != NONE {
            self.record_mut(sibling).younger_sibling = block;
        }
        self.set_youngest_child(parent, block);
        if parent == NONE {
            self.namespaces[block as usize] = *namespace;
        }
        self.index.len += 1;
        self.touch(3);
    }

    /// Forgets a registered block that has no children.
    pub(super) fn unregister(&mut self, block: u32) {
        if mutant::is(Mutant::KvKeepsStaleKey) {
            return;
        }
        // Field by field: a copy of all would wait for those that were written just now.
        let record = self.record(block);
        debug_assert!(record.is_registered() && record.child == NONE);
        let (hash, parent, bucket_next) = (record.hash, record.parent, record.bucket_next);
        let (older, younger) = (record.older_sibling, record.younger_sibling);
        let bucket = self.index.bucket(hash);
        let mut at = self.index.buckets[bucket];
        let mut walked = 0;
        if at == block {
            self.index.buckets[bucket] = bucket_next;
        } else {
            while self.record(at).bucket_next != block {
                walked += 1;
                at = self.record(at).bucket_next;
            }
            self.record_mut(at).bucket_next = bucket_next;
        }
        match younger {
            NONE => self.set_youngest_child(parent, older),
            younger => self.record_mut(younger).older_sibling = older,
        }
        if older != NONE {
            self.record_mut(older).younger_sibling = younger;
        }
        let record = self.record_mut(block);
        record.filled = 0;
        record.parent = NONE;
        record.bucket_next = NONE;
        record.older_sibling = NONE;
        record.younger_sibling = NONE;
        self.index.len -= 1;
        self.touch(4 + walked);
    }
}
