use crate::mutant::{self, Mutant};

/// What a request would find and need, from [`KvCache::admission`](super::KvCache::admission).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// Tokens of the prompt that are there.
    pub hit_tokens: usize,
    /// Blocks to be taken for the rest and the reserve.
    pub need: usize,
    /// Blocks that are free.
    pub free: usize,
    /// Idle blocks that could be forgotten, those that the request would share not
    /// included.
    pub evictable: usize,
    /// Living sequences.
    pub sequences: usize,
    /// Sequences that may live at one time.
    pub max_sequences: usize,
}

impl Admission {
    /// Does it fit, and do `watermark` blocks stay available, unless it is the only one?
    #[must_use]
    pub fn admits(&self, watermark: usize) -> bool {
        let watermark = match self.sequences {
            0 if !mutant::is(Mutant::KvWatermarkForFirst) => 0,
            _ => watermark,
        };
        self.sequences < self.max_sequences
            && self.need.saturating_add(watermark) <= self.free + self.evictable
    }
}
