//! Who competes. A new contender is one more line here.

use std::alloc::System;

use mimalloc::MiMalloc;
use snmalloc_rs::SnMalloc;
use tenslab::memory::{CachingPool, Meter};
use tenslab::{CpuAllocator, SharedAllocator, SlabAllocator};
use tikv_jemallocator::Jemalloc;

use crate::contender::{Contender, Shape};
use crate::heap::Counted;
use crate::ours::{ALIGN, Blocks, Buffers, Locals, Steps, Tensors};
use crate::theirs::{Bumps, FreshPages, LockedVec, Malloc, Queue, ZeroedVec, purge};

/// Those the ratio columns compare with.
pub const BASELINES: [&str; 2] = ["mimalloc", "glibc"];

/// What a worker's own cache of a pool keeps.
const LOCAL_BYTES: usize = 64 << 20;

/// Where contenders sign up.
pub trait Entrants {
    /// Adds a contender whose heap blocks, if any, are the global allocator's. It promises
    /// addresses at multiples of `align`.
    fn add<C>(&mut self, name: &'static str, align: usize, make: impl FnOnce(Shape) -> C)
    where
        C: Contender + Send + 'static;

    /// Adds a contender that is a malloc itself, and the same with its malloc counted.
    fn add_malloc<C, D>(&mut self, name: &'static str, align: usize, timed: C, _counted: D)
    where
        C: Contender + Send + 'static,
        D: Contender + Send + 'static,
    {
        self.add(name, align, |_| timed);
    }
}

/// Contenders that compete in the same cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The other heights of tenslab's stack, for the table's first cells.
    Heights,
    /// Everybody, where all blocks are of one size.
    OneSize,
    /// Those that serve blocks of any size.
    AnySize,
    /// Of those the ones that keep memory for the next block.
    Keepers,
    /// Those that take all blocks of a step back at once.
    Arenas,
    /// What large blocks cost where nobody keeps any.
    FreshPages,
}

impl Group {
    /// Signs all of them up.
    pub fn sign(self, field: &mut impl Entrants, align: usize) {
        match self {
            Self::Heights => heights(field),
            Self::OneSize => one_size(field, align),
            Self::AnySize => any_size(field, align),
            Self::Keepers => keepers(field, align),
            Self::Arenas => arenas(field),
            Self::FreshPages => field.add("fresh pages", ALIGN, |_| FreshPages),
        }
    }
}

fn slab(shape: Shape) -> SlabAllocator {
    let blocks = u32::try_from(shape.blocks).expect("a number of blocks");
    SlabAllocator::new(shape.bytes, blocks).expect("a slab for the race")
}

fn pool() -> CachingPool {
    CachingPool::new().expect("a pool for the race")
}

fn one_size(field: &mut impl Entrants, align: usize) {
    field.add("slab buffer", ALIGN, |shape| {
        Buffers(SharedAllocator::new(slab(shape)))
    });
    field.add("metered slab buffer", ALIGN, |shape| {
        Buffers(SharedAllocator::new(Meter::new(slab(shape))))
    });
    any_size(field, align);
    field.add("Mutex<Vec>", 1, LockedVec::new);
    field.add("ArrayQueue", 1, Queue::new);
    field.add("vec![0; n]", 1, |_| ZeroedVec);
}

fn any_size(field: &mut impl Entrants, align: usize) {
    field.add("cpu buffer", ALIGN, |_| {
        Buffers(SharedAllocator::new(CpuAllocator::new()))
    });
    keepers(field, align);
}

fn keepers(field: &mut impl Entrants, align: usize) {
    field.add("pool buffer", ALIGN, |_| {
        Buffers(SharedAllocator::new(pool()))
    });
    field.add("pool local buffer", ALIGN, |_| {
        let pool = pool();
        Locals(move || SharedAllocator::new(pool.local_cache(LOCAL_BYTES)))
    });
    malloc(field, "glibc", align, purge::glibc, || System);
    malloc(field, "mimalloc", align, purge::mimalloc, || MiMalloc);
    malloc(field, "jemalloc", align, purge::jemalloc, || Jemalloc);
    // It has no call that gives memory back.
    malloc(field, "snmalloc", align, || {}, || SnMalloc);
}

fn heights(field: &mut impl Entrants) {
    field.add("slab block", ALIGN, |shape| Blocks(slab(shape)));
    field.add("slab tensor", ALIGN, |shape| {
        Tensors(SharedAllocator::new(slab(shape)))
    });
    field.add("pool tensor", ALIGN, |_| {
        Tensors(SharedAllocator::new(pool()))
    });
    field.add("cpu tensor", ALIGN, |_| {
        Tensors(SharedAllocator::new(CpuAllocator::new()))
    });
}

fn arenas(field: &mut impl Entrants) {
    field.add("arena buffer", ALIGN, |_| Steps::new());
    field.add("bumpalo", ALIGN, |_| Bumps);
}

fn malloc<A>(
    field: &mut impl Entrants,
    name: &'static str,
    align: usize,
    purge: fn(),
    malloc: fn() -> A,
) where
    A: std::alloc::GlobalAlloc + Send + Sync + 'static,
{
    let timed = Malloc {
        malloc: malloc(),
        align,
        purge,
    };
    let counted = Malloc {
        malloc: Counted(malloc()),
        align,
        purge,
    };
    field.add_malloc(name, align, timed, counted);
}
