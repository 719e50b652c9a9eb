use std::fmt;

use super::PrefixHash;

/// What a [`KvCache`](super::KvCache) does beside holding blocks.
///
/// ```
/// use tenslab::kv::{BlockFill, KvOptions};
///
/// let options = KvOptions::default().with_partial_hits(false).with_fill(BlockFill::Zero);
/// assert!(options.prefix_caching() && !options.partial_hits());
/// ```
#[derive(Debug, Clone)]
pub struct KvOptions {
    prefix_caching: bool,
    partial_hits: bool,
    eviction: Eviction,
    hash: PrefixHash,
    fill: BlockFill,
    populate: bool,
    hit_window: usize,
}

/// What a block holds when a sequence takes it: all of it, or what is not copied from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BlockFill {
    /// What its last user left there. The default: every slot is written before it is lent.
    #[default]
    Leave,
    /// Zeros: for kernels that read a whole block and mask what is behind the last token.
    Zero,
    /// NaNs, so that a kernel that reads what was not written is found out. For tests.
    Poison,
}

/// Which of the blocks that nobody uses is forgotten first, when a block is needed.
///
/// Whichever it is: a block goes before the one that it follows, and no choice looks at more
/// blocks in a large cache than in a small one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// The one that nobody used for the longest time.
    #[default]
    Lru,
}

impl Eviction {
    /// `lru`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Default for KvOptions {
    /// Prefixes are shared, the beginning of a block too; blocks are not filled; memory comes
    /// with the first write; hits are counted over 1,000 requests.
    fn default() -> Self {
        Self {
            prefix_caching: true,
            partial_hits: true,
            eviction: Eviction::Lru,
            hash: PrefixHash::default(),
            fill: BlockFill::Leave,
            populate: false,
            hit_window: 1000,
        }
    }
}

impl KvOptions {
    /// Keeps what was computed for who comes with the same prefix, or forgets it at once.
    #[must_use]
    pub const fn with_prefix_caching(mut self, on: bool) -> Self {
        self.prefix_caching = on;
        self
    }

    /// Reuses the beginning of a block where the rest differs, by a copy of it, and keeps
    /// the partly filled last block of a sequence that ends.
    ///
    /// Copied are the slots of the tokens in common and no others. They are looked for in the
    /// eight blocks that were registered last behind the same parent; first blocks of prompts
    /// are looked for among the last eight of all namespaces.
    #[must_use]
    pub const fn with_partial_hits(mut self, on: bool) -> Self {
        self.partial_hits = on;
        self
    }

    /// What is forgotten first.
    #[must_use]
    pub const fn with_eviction(mut self, eviction: Eviction) -> Self {
        self.eviction = eviction;
        self
    }

    /// How the index finds blocks.
    #[must_use]
    pub fn with_hash(mut self, hash: PrefixHash) -> Self {
        self.hash = hash;
        self
    }

    /// What a block holds when it is taken. Anything but [`BlockFill::Leave`] writes each
    /// block that is taken once more.
    #[must_use]
    pub const fn with_fill(mut self, fill: BlockFill) -> Self {
        self.fill = fill;
        self
    }

    /// Touches every page of the region when the cache is made, so that none has to be
    /// found later, while requests wait.
    #[must_use]
    pub const fn with_populate(mut self, on: bool) -> Self {
        self.populate = on;
        self
    }

    /// Over how many of the last requests hits are counted (at least 1 is).
    #[must_use]
    pub const fn with_hit_window(mut self, requests: usize) -> Self {
        self.hit_window = requests;
        self
    }

    /// Are prefixes shared?
    #[must_use]
    pub const fn prefix_caching(&self) -> bool {
        self.prefix_caching
    }

    /// Is the beginning of a block reused?
    #[must_use]
    pub const fn partial_hits(&self) -> bool {
        self.prefix_caching && self.partial_hits
    }

    /// What is forgotten first.
    #[must_use]
    pub const fn eviction(&self) -> Eviction {
        self.eviction
    }

    /// How the index finds blocks.
    #[must_use]
    pub const fn hash(&self) -> &PrefixHash {
        &self.hash
    }

    /// What a block holds when it is taken.
    #[must_use]
    pub const fn fill(&self) -> BlockFill {
        self.fill
    }

    /// Is every page touched when the cache is made?
    #[must_use]
    pub const fn populate(&self) -> bool {
        self.populate
    }

    /// Over how many of the last requests hits are counted.
    #[must_use]
    pub const fn hit_window(&self) -> usize {
        self.hit_window
    }
}
