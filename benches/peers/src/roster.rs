//! Who competes. A new contender is one more line here.

use std::alloc::System;

use mimalloc::MiMalloc;
use snmalloc_rs::SnMalloc;
use tenslab::memory::Meter;
use tenslab::{CpuAllocator, SharedAllocator, SlabAllocator};
use tikv_jemallocator::Jemalloc;

use crate::contender::Shape;
use crate::heap::Counted;
use crate::ours::{ALIGN, Blocks, Buffers, Tensors};
use crate::race::Field;
use crate::theirs::{LockedVec, Malloc, Queue, ZeroedVec};
use crate::workloads::Workload;

/// Those the ratio columns compare with.
pub const BASELINES: [&str; 2] = ["mimalloc", "glibc"];

fn slab(shape: Shape) -> SlabAllocator {
    let blocks = u32::try_from(shape.blocks).expect("a number of blocks");
    SlabAllocator::new(shape.bytes, blocks).expect("a slab for the race")
}

/// Everybody that a buffer of tenslab competes with.
pub fn allocators<W: Workload>(field: &mut Field<'_, W>, align: usize) {
    field.add("slab buffer", ALIGN, |shape| {
        Buffers(SharedAllocator::new(slab(shape)))
    });
    field.add("metered slab buffer", ALIGN, |shape| {
        Buffers(SharedAllocator::new(Meter::new(slab(shape))))
    });
    field.add("cpu buffer", ALIGN, |_| {
        Buffers(SharedAllocator::new(CpuAllocator::new()))
    });

    malloc(field, "glibc", align, || System);
    malloc(field, "mimalloc", align, || MiMalloc);
    malloc(field, "jemalloc", align, || Jemalloc);
    malloc(field, "snmalloc", align, || SnMalloc);
    field.add("Mutex<Vec>", 1, LockedVec::new);
    field.add("ArrayQueue", 1, Queue::new);
    field.add("vec![0; n]", 1, |_| ZeroedVec);
}

/// The other heights of tenslab's stack, for the table's first cells.
pub fn heights<W: Workload>(field: &mut Field<'_, W>) {
    field.add("slab block", ALIGN, |shape| Blocks(slab(shape)));
    field.add("slab tensor", ALIGN, |shape| {
        Tensors(SharedAllocator::new(slab(shape)))
    });
    field.add("cpu tensor", ALIGN, |_| {
        Tensors(SharedAllocator::new(CpuAllocator::new()))
    });
}

fn malloc<W, A>(field: &mut Field<'_, W>, name: &'static str, align: usize, malloc: fn() -> A)
where
    W: Workload,
    A: std::alloc::GlobalAlloc + Send + Sync + 'static,
{
    let timed = Malloc {
        malloc: malloc(),
        align,
    };
    let counted = Malloc {
        malloc: Counted(malloc()),
        align,
    };
    field.add_malloc(name, align, timed, counted);
}
