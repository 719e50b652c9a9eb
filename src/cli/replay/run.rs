//! Driving the cache with the requests of a trace.
//!
//! ```text
//!  prompts    first in, first out, at most K at one time
//!             next -> [ acquire, write, commit ] -> in flight -> ... -> [ drop ]
//!  arrivals   each lives as long as its tokens take to generate
//!             next -> [ acquire prompt + output, write ] -> ... -> [ write, drop ]
//! ```
//!
//! What stands in brackets is the cache's own work: it is timed, and its heap blocks are
//! counted. Making tokens, keeping the queue and taking samples are the driver's.
//!
//! A request that does not fit while others are in flight makes the one that would finish
//! first do so early. One with more blocks than the cache has can never fit: it bypasses
//! the cache, and its blocks still count.
//!
//! The payload is a stand-in, one layer of one bf16 key and value for each token, and
//! nobody writes it: what is measured is the bookkeeping.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use tenslab::kv::{
    Eviction, KvCache, KvDims, KvError, KvLimits, KvOptions, KvSpec, Namespace, Sequence,
};
use tenslab::{DType, bf16, memory};

use super::trace::{Arrival, Prompts, TICKS_PER_SECOND};
use crate::cli::chart::Level;
use crate::cli::heap;

/// How long a generated token takes: 20 ms.
const TICKS_PER_TOKEN: u64 = TICKS_PER_SECOND / 50;

/// Tokens that are appended at one time where it does not matter which: no list as long
/// as the longest request is needed.
const NO_TOKENS: [u32; 1024] = [0; 1024];

/// The cache that is to be driven.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) blocks: usize,
    pub(super) block_tokens: usize,
    pub(super) eviction: Eviction,
}

impl Size {
    fn cache(
        self,
        prefix_caching: bool,
        sequences: usize,
        longest: u64,
    ) -> Result<KvCache, KvError> {
        let dims = KvDims {
            layers: 1,
            kv_heads: 1,
            key_dim: 1,
            value_dim: 1,
            block_tokens: self.block_tokens,
        };
        let limits = KvLimits {
            blocks: self.blocks,
            max_sequences: sequences.max(1),
            max_blocks_per_sequence: self
                .blocks
                .min(usize::try_from(longest).unwrap_or(usize::MAX))
                .max(1),
        };
        // Whole blocks only: the traces know no others.
        let options = KvOptions::default()
            .with_prefix_caching(prefix_caching)
            .with_eviction(self.eviction)
            .with_partial_hits(false);
        let spec = KvSpec::new(dims, DType::BF16)?;
        KvCache::with_options(spec, limits, &options, memory::cpu())
    }

    /// Can a request of so many blocks never fit?
    fn is_below(self, blocks: u64) -> bool {
        blocks > self.blocks as u64
    }
}

/// What a replay counted.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) requests: usize,
    /// Blocks of all requests: what the hit rate is a part of.
    pub(super) blocks: u64,
    /// Blocks that were found in the cache.
    pub(super) hits: u64,
    /// Requests with more blocks than the cache.
    pub(super) bypassed: u64,
    /// Requests that had to finish so that another one fitted.
    pub(super) finished_early: u64,
    /// Blocks of the requests that went through the cache, found or allocated.
    pub(super) visited: u64,
    /// The most blocks in tables at one time.
    pub(super) peak_pinned: usize,
    /// The most sequences at one time.
    pub(super) peak_sequences: usize,
    /// Token slots of the blocks of finished sequences.
    pub(super) slots: u64,
    /// Those of them in which no token was, all in last blocks.
    pub(super) empty_slots: u64,
    /// What the cache's own work took.
    pub(super) cost: Cost,
    /// For each request, when it had been let in.
    pub(super) occupancy: Vec<Level>,
    /// Idle blocks that were forgotten because their room was needed.
    pub(super) evictions: u64,
    /// Bytes of the cache's region.
    pub(super) region_bytes: usize,
}

/// Time and heap blocks of the brackets in the module's picture.
#[derive(Debug, Default)]
pub(super) struct Cost {
    pub(super) time: Duration,
    pub(super) heap_blocks: u64,
}

impl Cost {
    fn of<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = heap::blocks();
        let begin = Instant::now();
        let result = work();
        self.time += begin.elapsed();
        self.heap_blocks += heap::blocks() - before;
        result
    }
}

impl Tally {
    /// `requests` in all: the samples are never moved.
    fn new(requests: usize) -> Self {
        Self {
            requests,
            blocks: 0,
            hits: 0,
            bypassed: 0,
            finished_early: 0,
            visited: 0,
            peak_pinned: 0,
            peak_sequences: 0,
            slots: 0,
            empty_slots: 0,
            cost: Cost::default(),
            occupancy: Vec::with_capacity(requests),
            evictions: 0,
            region_bytes: 0,
        }
    }

    /// A request was let in, or passed by.
    fn sample(&mut self, cache: &KvCache) {
        let stats = cache.stats();
        self.peak_pinned = self.peak_pinned.max(stats.blocks_used);
        self.peak_sequences = self.peak_sequences.max(stats.sequences);
        self.occupancy.push(Level {
            used: stats.blocks_used as u64,
            idle: stats.blocks_idle as u64,
        });
    }

    /// Ends a sequence, with what it leaves unused.
    fn finish(&mut self, sequence: Sequence) {
        let slots = sequence.reserved_tokens() as u64;
        self.slots += slots;
        self.empty_slots += slots - sequence.len() as u64;
        self.cost.of(|| drop(sequence));
    }

    fn ended(mut self, cache: &KvCache) -> Self {
        self.region_bytes = cache.stats().reserved_bytes;
        self.evictions = cache.counters().evicted_for_space;
        self
    }
}

/// Token `index` of the block with trace id `id`.
///
/// Even tokens are made of the lower half of the id, odd ones of the upper half, each by
/// a bijection of 32 bits. So two blocks have equal tokens exactly when their ids are
/// equal, by construction: with one token in a block for ids below 2^32, otherwise for
/// all. The mixing (the finaliser of MurmurHash3) makes them as unlike each other as the
/// tokens of texts; without it a hash that only sees low bits would look good or bad here.
fn token(id: u64, index: usize) -> u32 {
    let half = id >> (index % 2 * 32);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower 32 bits are meant"
    )]
    let (half, index) = (half as u32, index as u32);
    let mut mixed = half ^ index.wrapping_mul(0x9e37_79b9);
    mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    mixed ^ (mixed >> 16)
}

/// Appends and commits `tokens`, whose keys and values are whatever lies there.
fn fill(sequence: &mut Sequence, tokens: &[u32]) -> Result<(), KvError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let mut step = sequence.append(tokens)?;
    // Lent to the last piece, the layer counts as written.
    step.layer_mut(0)?.runs::<bf16>()?.for_each(drop);
    step.commit()
}

/// Replays prompts with at most `in_flight` of them at one time. `seen` is called for
/// every request, with how many there were.
pub(super) fn prompts(
    prompts: &Prompts,
    size: Size,
    in_flight: usize,
    mut seen: impl FnMut(usize),
) -> Result<Tally, KvError> {
    let in_flight = in_flight.clamp(1, prompts.len());
    let longest = prompts.iter().map(<[u64]>::len).max().unwrap_or(0);
    let cache = size.cache(true, in_flight, longest as u64)?;
    let mut tally = Tally::new(prompts.len());
    let mut living: VecDeque<Sequence> = VecDeque::with_capacity(in_flight);
    let mut tokens = Vec::new();
    for (number, ids) in prompts.iter().enumerate() {
        seen(number);
        let blocks = ids.len() as u64;
        tally.blocks += blocks;
        if size.is_below(blocks) {
            tally.bypassed += 1;
            tally.sample(&cache);
            continue;
        }
        if living.len() == in_flight
            && let Some(oldest) = living.pop_front()
        {
            tally.finish(oldest);
        }
        tokens.clear();
        for &id in ids {
            tokens.extend((0..size.block_tokens).map(|index| token(id, index)));
        }
        let sequence = loop {
            match tally.cost.of(|| admit(&cache, &tokens)) {
                Ok(sequence) => break sequence,
                Err(error @ KvError::OutOfBlocks { .. }) => {
                    let oldest = living.pop_front().ok_or(error)?;
                    tally.finished_early += 1;
                    tally.finish(oldest);
                }
                Err(error) => return Err(error),
            }
        };
        tally.visited += blocks;
        tally.hits += (sequence.hit_tokens() / size.block_tokens) as u64;
        living.push_back(sequence);
        tally.sample(&cache);
    }
    for sequence in living {
        tally.finish(sequence);
    }
    Ok(tally.ended(&cache))
}

/// A sequence of `tokens`: what the cache has is found, the rest is made.
fn admit(cache: &KvCache, tokens: &[u32]) -> Result<Sequence, KvError> {
    let mut sequence = cache.acquire(tokens, &Namespace::default(), 0, Some(tokens.len()))?;
    let hit = sequence.hit_tokens();
    fill(&mut sequence, &tokens[hit..])?;
    Ok(sequence)
}

/// A sequence that lives until its output is generated.
struct Living {
    sequence: Sequence,
    generated: usize,
}

/// Replays arrivals, each living until its tokens are generated. `seen` as above.
pub(super) fn arrivals(
    arrivals: &[Arrival],
    size: Size,
    mut seen: impl FnMut(usize),
) -> Result<Tally, KvError> {
    let longest = arrivals
        .iter()
        .map(|arrival| blocks_of(*arrival, size))
        .max();
    let cache = size.cache(false, most_at_one_time(arrivals), longest.unwrap_or(0))?;
    let mut tally = Tally::new(arrivals.len());
    // By when they end, and those that end together by their numbers.
    let mut living: BTreeMap<(u64, usize), Living> = BTreeMap::new();
    for (number, &arrival) in arrivals.iter().enumerate() {
        seen(number);
        let blocks = blocks_of(arrival, size);
        tally.blocks += blocks;
        if size.is_below(blocks) {
            tally.bypassed += 1;
            tally.sample(&cache);
            continue;
        }
        // At a tie, blocks come back before others are taken.
        while let Some(first) = living
            .first_entry()
            .filter(|first| first.key().0 <= arrival.at)
        {
            complete(first.remove(), &mut tally)?;
        }
        let sequence = loop {
            match tally.cost.of(|| arrive(&cache, arrival)) {
                Ok(sequence) => break sequence,
                Err(error @ KvError::OutOfBlocks { .. }) => {
                    let (_, first) = living.pop_first().ok_or(error)?;
                    tally.finished_early += 1;
                    complete(first, &mut tally)?;
                }
                Err(error) => return Err(error),
            }
        };
        tally.visited += blocks;
        let generated = arrival.generated_tokens as usize;
        living.insert(
            (end_of(arrival), number),
            Living {
                sequence,
                generated,
            },
        );
        tally.sample(&cache);
    }
    while let Some((_, first)) = living.pop_first() {
        complete(first, &mut tally)?;
    }
    Ok(tally.ended(&cache))
}

/// A sequence with its prompt, and with blocks for its output.
fn arrive(cache: &KvCache, arrival: Arrival) -> Result<Sequence, KvError> {
    let (prompt, output) = (
        arrival.prompt_tokens as usize,
        arrival.generated_tokens as usize,
    );
    // Without ids there is nothing to look up: all of it is reserved.
    let mut sequence = cache.acquire(&[], &Namespace::default(), prompt + output, Some(0))?;
    fill_any(&mut sequence, prompt)?;
    Ok(sequence)
}

/// The output is there, and the sequence ends.
fn complete(living: Living, tally: &mut Tally) -> Result<(), KvError> {
    let mut sequence = living.sequence;
    tally
        .cost
        .of(|| fill_any(&mut sequence, living.generated))?;
    tally.finish(sequence);
    Ok(())
}

/// Appends `tokens` tokens, no matter which.
fn fill_any(sequence: &mut Sequence, tokens: usize) -> Result<(), KvError> {
    let mut left = tokens;
    while left > 0 {
        let now = left.min(NO_TOKENS.len());
        fill(sequence, &NO_TOKENS[..now])?;
        left -= now;
    }
    Ok(())
}

fn blocks_of(arrival: Arrival, size: Size) -> u64 {
    let tokens = u64::from(arrival.prompt_tokens) + u64::from(arrival.generated_tokens);
    tokens.div_ceil(size.block_tokens as u64)
}

/// When its last token is generated.
fn end_of(arrival: Arrival) -> u64 {
    arrival.at + u64::from(arrival.generated_tokens) * TICKS_PER_TOKEN
}

/// At least as many as live at one time, and more only by those that end at a tie.
fn most_at_one_time(arrivals: &[Arrival]) -> usize {
    let mut ends: Vec<u64> = arrivals.iter().map(|&arrival| end_of(arrival)).collect();
    ends.sort_unstable();
    let (mut ended, mut most) = (0, 0);
    for (number, arrival) in arrivals.iter().enumerate() {
        // It stops at its own end or before, and whoever comes later ends later.
        while ends[ended] < arrival.at {
            ended += 1;
        }
        most = most.max(number + 1 - ended);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_equal_tokens_only_for_equal_ids() {
        let (one, high) = (1_u64, 1 << 32);
        let block = |id| [token(id, 0), token(id, 1)];
        assert_eq!(block(one), block(one));
        for id in [0, 2, one + high, one << 32, u64::MAX] {
            assert_ne!(block(one), block(id), "{id}");
        }
        // 32 bits mixed without loss: as many tokens as ids.
        let mut tokens: Vec<u32> = (0..200_000).map(|id| token(id, 0)).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 200_000);
        assert_ne!(token(one, 0), token(one, 2), "tokens of a block differ");
    }

    #[test]
    fn there_is_a_slot_for_everyone_who_lives_at_a_tie() {
        let arrival = |at, generated_tokens| Arrival {
            at,
            prompt_tokens: 1,
            generated_tokens,
        };
        let second = TICKS_PER_SECOND;
        // 50 tokens are one second.
        let apart = [
            arrival(0, 50),
            arrival(second + 1, 50),
            arrival(3 * second, 0),
        ];
        assert_eq!(most_at_one_time(&apart), 1);
        let at_one_time = [arrival(5, 50), arrival(5, 0), arrival(5, 0)];
        assert_eq!(most_at_one_time(&at_one_time), 3);
        let size = Size {
            blocks: 8,
            block_tokens: 16,
            eviction: Eviction::Lru,
        };
        let tally = arrivals(&at_one_time, size, |_| ()).unwrap();
        // 51 tokens, 1 and 1.
        assert_eq!((tally.peak_sequences, tally.blocks), (2, 4 + 1 + 1));
    }
}
