//! What all that keep books of blocks can do.

use crate::chains::Chains;

/// Keeps the books of a number of blocks: who has which, and what is in them.
///
/// Of a sequence that ends, the last block becomes idle first, so that all evict the same
/// blocks.
pub trait Keeper {
    /// A sequence of registered blocks.
    type Sequence;
    /// Blocks that were taken and hold nothing yet.
    type Taken;

    /// Finds the longest prefix of a prompt, takes and registers blocks for the rest, and ends.
    /// Returns how many blocks were found. `number` is the prompt's place in the trace.
    fn visit(&self, number: usize, tokens: &[u32]) -> usize;

    /// Forgets all.
    fn forget(&self);

    /// Takes blocks, and evicts as many as are missing.
    fn take(&self, blocks: usize) -> Self::Taken;

    /// Gives them back.
    fn give_back(&self, taken: Self::Taken);

    fn begin(&self) -> Self::Sequence;

    /// Registers one more block.
    fn grow(&self, sequence: &mut Self::Sequence, block: &[u32]);

    fn end(&self, sequence: Self::Sequence);

    /// All blocks are idle afterwards.
    fn fill(&self, chains: &mut Chains, blocks: usize) {
        chains.register(self, blocks);
    }
}
