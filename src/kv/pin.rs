use std::fmt;

use super::KvCache;

/// Keeps a prefix from being evicted, from [`KvCache::pin`]. Dropping it ends that.
///
/// It costs one use of the prefix's last block, however long the prefix is. `Send` and
/// `Sync`; keeps the cache.
#[must_use = "a pin that is dropped keeps nothing"]
pub struct Pin {
    cache: KvCache,
    block: u32,
    tokens: usize,
}

impl Pin {
    /// `block` is held for it, from outside of any table.
    pub(super) fn new(cache: KvCache, block: u32, tokens: usize) -> Self {
        Self {
            cache,
            block,
            tokens,
        }
    }

    /// Tokens of the prefix that are kept: whole blocks.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.cache.shared().release_outside(self.block);
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin")
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}
