//! Idle blocks as a server that has run for a while has them.

use crate::keeper::Keeper;
use crate::trace::block;

/// Blocks of a sequence.
pub const CHAIN: usize = 20;

/// Makes sequences that nobody else has: they grow in turns, so that the blocks of one lie
/// apart, and end in any order.
pub struct Chains {
    next_block: u64,
    random: u64,
}

impl Chains {
    pub fn new() -> Self {
        Self {
            next_block: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Registers `blocks` blocks, whole sequences, and lets them become idle.
    pub fn register<K: Keeper + ?Sized>(&mut self, keeper: &K, blocks: usize) {
        assert_eq!(blocks % CHAIN, 0, "whole sequences");
        let mut sequences: Vec<_> = (0..blocks / CHAIN).map(|_| keeper.begin()).collect();
        for _ in 0..CHAIN {
            for sequence in &mut sequences {
                keeper.grow(sequence, &block(self.next_block));
                self.next_block += 1;
            }
        }
        while !sequences.is_empty() {
            let at = self.below(sequences.len());
            keeper.end(sequences.swap_remove(at));
        }
    }

    /// Below `limit` (Marsaglia's xorshift).
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % limit as u64).unwrap_or(0)
    }
}
