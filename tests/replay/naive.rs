//! The replay definitions, as plainly as they can be written: the oracle.
//!
//! Knows ids and counts only: no tokens, no hashes, no blocks. A map of what is cached
//! and a map of what is idle by when it was last used.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// What a replay counts.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) blocks: usize,
    pub(crate) hits: usize,
    pub(crate) evictions: usize,
    pub(crate) bypassed: usize,
    pub(crate) finished_early: usize,
    pub(crate) peak_pinned: usize,
}

/// What is known of a cached block: how many hold it, and its place among the idle.
#[derive(Default)]
struct Cached {
    holders: usize,
    idle_since: u64,
}

/// A cache of ids.
#[derive(Default)]
struct Naive {
    capacity: usize,
    cached: HashMap<u64, Cached>,
    /// By when they became idle, which no two did at one time.
    idle: BTreeMap<u64, u64>,
    clock: u64,
    evictions: usize,
}

impl Naive {
    fn pinned(&self) -> usize {
        self.cached.len() - self.idle.len()
    }

    /// The length of the longest cached prefix, all blocks then held; `None`, with
    /// nothing changed, if there is no room.
    fn admit(&mut self, prompt: &[u64]) -> Option<usize> {
        let hits = prompt
            .iter()
            .take_while(|id| self.cached.contains_key(id))
            .count();
        let revived = prompt[..hits]
            .iter()
            .filter(|id| self.cached[id].holders == 0)
            .count();
        // Whatever is not pinned is free, or idle and not one of our own hits.
        let (need, room) = (prompt.len() - hits, self.capacity - self.pinned() - revived);
        if need > room {
            return None;
        }
        for id in &prompt[..hits] {
            self.hold(*id);
        }
        for id in &prompt[hits..] {
            if self.cached.len() == self.capacity {
                let (_, oldest) = self.idle.pop_first().unwrap();
                self.cached.remove(&oldest);
                self.evictions += 1;
            }
            self.cached.insert(*id, Cached::default());
            self.hold(*id);
        }
        Some(hits)
    }

    fn hold(&mut self, id: u64) {
        let block = self.cached.get_mut(&id).unwrap();
        if block.holders == 0 {
            self.idle.remove(&block.idle_since);
        }
        block.holders += 1;
    }

    /// The last block first, each to the most recently used end.
    fn release(&mut self, prompt: &[u64]) {
        for id in prompt.iter().rev() {
            let block = self.cached.get_mut(id).unwrap();
            block.holders -= 1;
            if block.holders == 0 {
                self.clock += 1;
                block.idle_since = self.clock;
                self.idle.insert(self.clock, *id);
            }
        }
    }
}

/// Replays `prompts`, each the ids of its full blocks.
pub(crate) fn prompts(prompts: &[Vec<u64>], capacity: usize, in_flight: usize) -> Counts {
    let mut cache = Naive {
        capacity,
        ..Naive::default()
    };
    let mut counts = Counts::default();
    let mut living: VecDeque<&[u64]> = VecDeque::new();
    for prompt in prompts {
        counts.blocks += prompt.len();
        if prompt.len() > capacity {
            counts.bypassed += 1;
            continue;
        }
        if living.len() == in_flight {
            cache.release(living.pop_front().unwrap());
        }
        counts.hits += loop {
            match cache.admit(prompt) {
                Some(hits) => break hits,
                None => {
                    counts.finished_early += 1;
                    cache.release(living.pop_front().unwrap());
                }
            }
        };
        living.push_back(prompt);
        counts.peak_pinned = counts.peak_pinned.max(cache.pinned());
    }
    counts.evictions = cache.evictions;
    counts
}

/// A request without ids: when it comes and when it ends, in ticks, and its tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: u64,
    pub(crate) end: u64,
    pub(crate) tokens: usize,
}

/// What arrivals in an endless cache of `block_tokens` come to.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Churn {
    pub(crate) allocations: usize,
    pub(crate) peak_blocks: usize,
    pub(crate) peak_sequences: usize,
    pub(crate) empty_slots: usize,
}

/// Replays `arrivals`; who ends when another one comes is gone before.
pub(crate) fn arrivals(arrivals: &[Arrival], block_tokens: usize) -> Churn {
    let mut churn = Churn::default();
    let mut living: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut held = 0;
    for (number, arrival) in arrivals.iter().enumerate() {
        while living.first().is_some_and(|&(end, _)| end <= arrival.at) {
            let (_, ended) = living.pop_first().unwrap();
            held -= arrivals[ended].tokens.div_ceil(block_tokens);
        }
        let blocks = arrival.tokens.div_ceil(block_tokens);
        held += blocks;
        living.insert((arrival.end, number));
        churn.allocations += blocks;
        churn.peak_blocks = churn.peak_blocks.max(held);
        churn.peak_sequences = churn.peak_sequences.max(living.len());
        churn.empty_slots += blocks * block_tokens - arrival.tokens;
    }
    churn
}
