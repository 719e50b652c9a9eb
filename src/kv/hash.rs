use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::{FixedState, RandomState};

/// How the prefix index turns a block's tokens into a number.
///
/// The number only says where to look. A hit is verified against the block's parent, its
/// namespace and all of its tokens, so two blocks of one number cost a miss or a longer
/// look, and never a wrong block.
#[derive(Clone)]
pub struct PrefixHash(Kind);

#[derive(Clone)]
enum Kind {
    Random(RandomState),
    Seeded(FixedState),
    Custom(fn(u64, &[u32]) -> u64),
}

impl Default for PrefixHash {
    /// Seeded at random, anew for each cache: who sends requests cannot choose tokens that
    /// collide.
    fn default() -> Self {
        Self(Kind::Random(RandomState::default()))
    }
}

impl PrefixHash {
    /// The same numbers in every run.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Kind::Seeded(FixedState::with_seed(seed)))
    }

    /// Your own function of the parent's number and the block's tokens. For tests: one that
    /// always says 7 makes every block collide.
    ///
    /// It is called under the cache's lock, so it must not use the cache: that waits for
    /// ever or panics. One that gives another number for the same tokens costs misses. If
    /// it panics, the call it came from has changed nothing, but for a sequence that was being
    /// dropped: its blocks are lost to the cache.
    #[must_use]
    pub const fn custom(hash: fn(u64, &[u32]) -> u64) -> Self {
        Self(Kind::Custom(hash))
    }

    /// The number of a block that follows one with the number `parent`.
    pub(super) fn chain(&self, parent: u64, tokens: &[u32]) -> u64 {
        match &self.0 {
            Kind::Random(state) => chain(state, parent, tokens),
            Kind::Seeded(state) => chain(state, parent, tokens),
            Kind::Custom(hash) => hash(parent, tokens),
        }
    }
}

fn chain(state: &impl BuildHasher, parent: u64, tokens: &[u32]) -> u64 {
    let mut hasher = state.build_hasher();
    hasher.write_u64(parent);
    u32::hash_slice(tokens, &mut hasher);
    hasher.finish()
}

impl fmt::Debug for PrefixHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Random(_) => "PrefixHash(random)",
            Kind::Seeded(_) => "PrefixHash(seeded)",
            Kind::Custom(_) => "PrefixHash(custom)",
        })
    }
}
