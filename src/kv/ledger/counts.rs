//! Plain counters, under the ledger's lock.

use crate::kv::KvError;

use super::table;

/// What a cache did since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KvCounters {
    /// Requests that were admitted, those included that got their blocks and were refused the
    /// memory of them by a budget.
    pub requests: u64,
    /// Tokens of their prompts.
    pub query_tokens: u64,
    /// Of those, tokens that were there.
    pub hit_tokens: u64,
    /// Blocks that were found, whole ones.
    pub hit_blocks: u64,
    /// Blocks that were taken to be filled.
    pub taken_blocks: u64,
    /// Blocks that were given back and not kept: reserved ones, partly filled ones, ones
    /// that were there already. So `taken_blocks` are these, the evicted and superseded ones,
    /// and those that are used or idle now.
    pub freed_blocks: u64,
    /// Blocks that were registered.
    pub registered_blocks: u64,
    /// Blocks that were computed although they were there: the first one was kept.
    pub duplicate_blocks: u64,
    /// Idle blocks that were forgotten because somebody needed a block.
    pub evicted_for_space: u64,
    /// Idle blocks that were forgotten because the memory was needed
    /// ([`KvCache::relieve`](crate::kv::KvCache::relieve)).
    pub evicted_for_pressure: u64,
    /// Idle blocks that were forgotten by [`KvCache::reset`](crate::kv::KvCache::reset).
    pub evicted_by_reset: u64,
    /// Idle blocks that were forgotten because a longer one with the same beginning came.
    pub superseded_blocks: u64,
    /// Blocks that were copied because somebody else needs them as they are.
    pub copied_blocks: u64,
    /// Records that were looked at to find, register and forget blocks.
    pub touched_records: u64,
}

impl KvCounters {
    /// Blocks that could be found and then no more.
    pub(super) fn forgotten_blocks(&self) -> u64 {
        self.evicted_for_space
            + self.evicted_for_pressure
            + self.evicted_by_reset
            + self.superseded_blocks
    }
}

/// Hits among the last requests: a ring that never grows.
#[derive(Debug)]
pub(super) struct HitWindow {
    ring: Box<[(u64, u64)]>,
    next: usize,
    query: u64,
    hit: u64,
}

impl HitWindow {
    pub(super) fn new(requests: usize) -> Result<Self, KvError> {
        Ok(Self {
            ring: table(requests.max(1), |_| (0, 0))?,
            next: 0,
            query: 0,
            hit: 0,
        })
    }

    pub(super) fn add(&mut self, query: u64, hit: u64) {
        let (old_query, old_hit) = std::mem::replace(&mut self.ring[self.next], (query, hit));
        self.next += 1;
        if self.next == self.ring.len() {
            self.next = 0;
        }
        self.query += query;
        self.query -= old_query;
        self.hit += hit;
        self.hit -= old_hit;
    }

    pub(super) fn forget(&mut self) {
        self.ring.fill((0, 0));
        (self.next, self.query, self.hit) = (0, 0, 0);
    }

    /// Tokens asked for and tokens found.
    pub(super) fn sums(&self) -> (u64, u64) {
        (self.query, self.hit)
    }
}
