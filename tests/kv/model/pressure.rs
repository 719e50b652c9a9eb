//! Memory that goes back and comes again, in the model: what is relieved is counted block by
//! block, and who is refused is refused for want of it.

use proptest::prelude::*;
use tenslab::kv::{KvCache, KvStats};
use tenslab::memory::{Charge, Limit, PressureGuard};

use super::Lab;
use super::op::Op;

/// The budget that the region is from.
pub(super) struct Memory {
    pub(super) limit: Limit,
    /// What somebody else has of it.
    pub(super) charges: Vec<Charge>,
    /// Is the cache asked where it is short?
    pub(super) guard: Option<PressureGuard>,
}

/// What the taking of blocks depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    free: usize,
    /// Of those, blocks without memory, which are taken last.
    cold: usize,
    idle: usize,
    /// Blocks for which there would be memory.
    available: usize,
}

impl Memory {
    fn charged_bytes(&self) -> usize {
        self.charges.iter().map(Charge::bytes).sum()
    }

    /// Blocks whose memory went back: what the region is not charged for.
    fn cold(&self, cache: &KvCache) -> usize {
        let region = self.limit.used_bytes() - self.charged_bytes();
        let gone = cache.stats().reserved_bytes - region;
        let block_bytes = cache.spec().block_bytes();
        assert_eq!(gone % block_bytes, 0, "{gone} bytes went back");
        gone / block_bytes
    }

    /// The region is gone, and what the others have is all that is charged.
    pub(super) fn assert_no_region(&self) {
        assert_eq!(self.limit.used_bytes(), self.charged_bytes());
    }
}

impl Room {
    /// Are so many blocks refused for want of memory? Warm ones are taken first, then cold
    /// ones, then idle ones; and for a cold one that is refused an idle one that is left.
    pub(super) fn lacks_memory_for(&self, blocks: usize) -> bool {
        let idle = self.idle.saturating_sub(blocks.saturating_sub(self.free));
        self.cold_of(blocks) > self.available + idle
    }

    fn cold_of(&self, blocks: usize) -> usize {
        (blocks.saturating_sub(self.free - self.cold)).min(self.cold)
    }

    /// Are some of so many blocks without memory?
    pub(super) fn takes_cold(&self, blocks: usize) -> bool {
        self.cold_of(blocks) > 0
    }

    /// The same, if one of the idle ones is held meanwhile, to copy from.
    pub(super) fn lacks_memory_with_source(&self, blocks: usize) -> bool {
        let idle = self.idle.saturating_sub(1);
        Self { idle, ..*self }.lacks_memory_for(blocks)
    }
}

impl Lab {
    /// Room for who may forget `idle` blocks.
    pub(super) fn room(&self, stats: &KvStats, idle: usize) -> Room {
        let memory = self.memory.as_ref();
        let block_bytes = self.cache.spec().block_bytes();
        Room {
            free: stats.blocks_free,
            cold: memory.map_or(0, |memory| memory.cold(&self.cache)),
            idle,
            available: memory.map_or(0, |memory| memory.limit.available_bytes() / block_bytes),
        }
    }

    pub(super) fn relieve(&mut self, blocks: usize) -> bool {
        let stats = self.cache.stats();
        let room = self.room(&stats, stats.blocks_idle);
        let block_bytes = self.cache.spec().block_bytes();
        let relieved = self.cache.relieve(blocks.saturating_mul(block_bytes));
        let warm = room.free - room.cold;
        if self.memory.is_none() {
            // No block holds a whole page: the first one tells.
            let evicted = usize::from(blocks > 0 && warm == 0 && room.idle > 0);
            assert_eq!((relieved.bytes, relieved.evicted), (0, evicted));
            return evicted > 0;
        }
        let taken = blocks.min(warm + room.idle);
        let expected = (taken * block_bytes, taken.saturating_sub(warm));
        assert_eq!((relieved.bytes, relieved.evicted), expected);
        let after = self.cache.stats();
        let now = self.room(&after, after.blocks_idle);
        assert_eq!(now.cold, room.cold + taken);
        assert_eq!(now.available, room.available + taken);
        assert_eq!(after.blocks_idle, stats.blocks_idle - relieved.evicted);
        taken > 0
    }

    pub(super) fn charge(&mut self, blocks: usize) -> Option<bool> {
        let stats = self.cache.stats();
        let room = self.room(&stats, stats.blocks_idle);
        let block_bytes = self.cache.spec().block_bytes();
        let memory = self.memory.as_mut()?;
        // What the cache gives back where it is asked.
        let given = match memory.guard {
            Some(_) => room.free - room.cold + room.idle,
            None => 0,
        };
        let charge = memory.limit.charge(blocks * block_bytes);
        let fits = blocks <= room.available + given;
        assert_eq!(charge.is_ok(), fits, "{blocks} blocks, {room:?}");
        self.memory.as_mut()?.charges.extend(charge);
        Some(fits)
    }

    pub(super) fn uncharge(&mut self) -> Option<bool> {
        drop(self.memory.as_mut()?.charges.pop()?);
        Some(true)
    }

    /// All is as it was, but for idle blocks that may have been forgotten.
    pub(super) fn assert_only_forgot(&self, before: KvStats) {
        let mut now = self.cache.stats();
        assert!(now.blocks_idle <= before.blocks_idle);
        assert_eq!(
            now.blocks_idle + now.blocks_free,
            before.blocks_idle + before.blocks_free
        );
        now.blocks_idle = before.blocks_idle;
        now.blocks_free = before.blocks_free;
        now.blocks_registered = before.blocks_registered;
        assert_eq!(now, before);
    }

    pub(super) fn verify_memory(&self) {
        if let Some(memory) = &self.memory {
            let (cold, free) = (memory.cold(&self.cache), self.cache.stats().blocks_free);
            assert!(cold <= free, "{cold} of {free} free blocks have no memory");
        }
    }
}

/// Those of the model, and those of memory.
fn op() -> impl Strategy<Value = Op> {
    let blocks = prop_oneof![4 => 0..5_usize, 1 => Just(usize::MAX)];
    prop_oneof![
        10 => super::op(),
        2 => blocks.prop_map(|blocks| Op::Relieve { blocks }),
        2 => (1..5_usize).prop_map(|blocks| Op::Charge { blocks }),
        1 => Just(Op::Uncharge),
    ]
}

/// The model over a region whose blocks are whole pages, from a budget with memory for a few
/// of them: they become cold and come back, are exchanged for idle ones, and are refused.
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
#[test]
fn the_cache_is_the_model_while_its_memory_goes_and_comes() {
    use std::sync::atomic::Ordering;

    use tenslab::DType;
    use tenslab::kv::{KvDims, KvSpec, Layout};
    use tenslab::memory::{Budget, CpuAllocator, SharedAllocator};

    use super::{Tally, cases, config, options, run};

    /// A MiB: so many that the region is not from the heap, in which nothing goes back.
    const BLOCKS: usize = 256;
    static TALLY: Tally = Tally::new();
    let cases = (cases() / 16).max(1);
    let page = rustix::param::page_size();
    proptest!(config(cases), |(
        kv_heads in 1..3_usize,
        quarters in prop::sample::select(&[1, 2, 4][..]),
        block_tokens in prop::sample::select(&[1, 2, 4][..]),
        layout in prop::sample::select(&Layout::ALL[..]),
        options in options(),
        memory_for in 2..14_usize,
        is_asked in any::<bool>(),
        ops in prop::collection::vec(op(), 1..100),
    )| {
        // Each piece of a block is one page: that of both layers, or one of each.
        let layer_bytes = if layout.is_layer_major() { page } else { page / 2 };
        let dims = layer_bytes / (size_of::<f32>() * kv_heads * block_tokens);
        let key_dim = dims * quarters / 4;
        let dims = KvDims { layers: 2, kv_heads, key_dim, value_dim: dims - key_dim, block_tokens };
        let spec = KvSpec::new(dims, DType::F32).unwrap().with_layout(layout).unwrap();
        assert_eq!(spec.block_bytes(), 2 * layer_bytes);

        let limit = Limit::new(BLOCKS * spec.block_bytes());
        let allocator = SharedAllocator::new(Budget::new(CpuAllocator::new(), &limit));
        let mut lab = Lab::new(spec, &options, BLOCKS, &allocator);
        let guard = is_asked.then(|| lab.cache.relieve_on(&limit));
        lab.memory = Some(Memory { limit, charges: Vec::new(), guard });
        assert!(lab.relieve(usize::MAX));
        for blocks in [BLOCKS - memory_for - 3, 1, 1, 1] {
            assert_eq!(lab.charge(blocks), Some(true));
        }
        drop(allocator);
        run::<f32>(lab, &ops, &TALLY);
    });
    println!("{cases} cases under a budget: {TALLY:?}");
    for count in [
        &TALLY.done,
        &TALLY.relieved,
        &TALLY.refused_memory,
        &TALLY.warmed,
    ] {
        let count = count.load(Ordering::Relaxed);
        assert!(count >= u64::from(cases / 4), "{TALLY:?}");
    }
}
