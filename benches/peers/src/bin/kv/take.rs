//! Blocks without contents: taking them, giving them back, evicting for them.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenslab::kv::KvLimits;

use crate::chains::{CHAIN, Chains};
use crate::keeper::Keeper;
use crate::ours::Ours;
use crate::pool::Pool;
use crate::race::{Cell, Claim, Contender};
use crate::trace::BLOCK_TOKENS;

/// Blocks of a pool in which enough are free.
const ROOMY: usize = 4096;

fn pair<'a>(name: &'static str, keeper: impl Keeper + 'a, blocks: usize) -> Contender<'a> {
    Contender::new(name, blocks, move || {
        keeper.give_back(black_box(keeper.take(blocks)));
    })
}

/// Takes free blocks and gives them back.
pub fn free<'a>(blocks: usize, ns: f64) -> Cell<'a> {
    let limits = KvLimits {
        blocks: ROOMY,
        max_sequences: 8,
        max_blocks_per_sequence: ROOMY,
    };
    let ours = Ours::new(limits);
    // The block alone: a sequence that lives takes it for a step, which is rolled back.
    let steps = Ours::new(limits);
    let mut sequence = steps.begin();
    let tokens = vec![7; (blocks - 1) * BLOCK_TOKENS + 1];
    drop(sequence.append(&tokens).expect("blocks"));
    let step = sequence.append(&tokens).expect("blocks");
    assert_eq!(step.block_count(), blocks);
    drop(step);
    let step = move || {
        let step = sequence.append(&tokens).expect("blocks");
        // Where it is: to hand it through is a copy, which is no part of taking a block.
        black_box(&step);
    };

    let locked: Mutex<Vec<u32>> = Mutex::new((0..4096).collect());
    let with_lock = move || {
        let mut free = locked.lock().expect("nobody panicked");
        let at = free.len() - blocks;
        let taken = black_box(free.split_off(at));
        drop(free);
        locked.lock().expect("nobody panicked").extend(taken);
    };
    let mut bare: Vec<u32> = (0..4096).collect();
    let without_lock = move || {
        let taken = black_box(bare.split_off(bare.len() - blocks));
        bare.extend(taken);
    };
    let contenders = vec![
        pair("ours", ours, blocks),
        Contender::new("ours, step undone", blocks, step),
        pair("pool by hand", Pool::new(ROOMY), blocks),
        Contender::new("Mutex<Vec>", blocks, with_lock),
        Contender::new("Vec", blocks, without_lock),
        #[cfg(feature = "kvbm")]
        pair(
            "kvbm",
            crate::kvbm::Kvbm::new(ROOMY, crate::kvbm::LRU),
            blocks,
        ),
    ];
    let claim = |who| Claim { who, ns, of: None };
    Cell {
        unit: "block",
        claims: vec![claim("ours"), claim("ours, step undone")],
        facts: Vec::new(),
        contenders,
    }
}

/// Blocks that are taken at one time.
const AT_ONCE: usize = 500;

/// All blocks idle, and others idle again after each time that some were taken.
struct Evicting<K> {
    keeper: K,
    chains: Chains,
}

impl<K: Keeper> Evicting<K> {
    fn new(keeper: K, idle: usize) -> Self {
        let mut chains = Chains::new();
        keeper.fill(&mut chains, idle);
        Self { keeper, chains }
    }

    /// How long it takes to evict [`AT_ONCE`].
    fn evict(&mut self) -> Duration {
        let began = Instant::now();
        let taken = black_box(self.keeper.take(AT_ONCE));
        let took = began.elapsed();
        self.keeper.give_back(taken);
        self.chains.register(&self.keeper, AT_ONCE);
        took
    }
}

fn evictions<'a, K: Keeper + 'a>(name: &'static str, mut evicting: Evicting<K>) -> Contender<'a>
where
    K::Sequence: 'a,
{
    Contender::timed(name, AT_ONCE, move || evicting.evict())
}

/// Takes blocks while all are idle.
pub fn evicting<'a>(idle: usize, ns: f64) -> Cell<'a> {
    let ours = Ours::new(KvLimits {
        blocks: idle,
        max_sequences: idle / CHAIN + 1,
        max_blocks_per_sequence: AT_ONCE,
    });
    let mut ours = Evicting::new(ours, idle);
    let counted = |ours: &Evicting<Ours>| {
        let counters = ours.keeper.cache.counters();
        (counters.evicted_for_space, counters.touched_records)
    };
    let before = counted(&ours);
    let taken = ours.keeper.take(AT_ONCE);
    let after = counted(&ours);
    ours.keeper.give_back(taken);
    ours.chains.register(&ours.keeper, AT_ONCE);
    let evicted = after.0 - before.0;
    assert_eq!(evicted, AT_ONCE as u64);
    assert_eq!(ours.keeper.cache.stats().blocks_idle, idle);
    let touched = (after.1 - before.1) as f64 / evicted as f64;

    let contenders = vec![
        evictions("ours", ours),
        evictions("pool by hand", Evicting::new(Pool::new(idle), idle)),
        #[cfg(feature = "kvbm")]
        evictions(
            "kvbm lru",
            Evicting::new(crate::kvbm::Kvbm::new(idle, crate::kvbm::LRU), idle),
        ),
        #[cfg(feature = "kvbm")]
        evictions(
            "kvbm lineage",
            Evicting::new(crate::kvbm::Kvbm::new(idle, crate::kvbm::LINEAGE), idle),
        ),
    ];
    let claim = Claim {
        who: "ours",
        ns,
        of: None,
    };
    Cell {
        unit: "eviction",
        claims: vec![claim],
        facts: vec![("records touched an eviction".to_owned(), touched)],
        contenders,
    }
}
