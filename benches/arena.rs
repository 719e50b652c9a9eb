//! A step of an arena, beside a slab, the heap, and bumpalo as it is.
//!
//! One unit is one allocation and its drop, in steps of so many that are out together. Read the
//! ratios within one run. bumpalo alone counts nothing and clears nothing, has no lock, and its
//! bytes are not to be read before they are written: it is what an arena could cost at the least.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a bench that fails may panic")]

use std::alloc::Layout;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bumpalo::Bump;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tenslab::memory::{Allocator, Request};
use tenslab::{DType, SharedAllocator, SlabAllocator, StepArena, Tensor, memory};

const BYTES: usize = 2304;
const STEPS: [u32; 3] = [10, 1_000, 100_000];

fn arena() -> (Arc<StepArena>, SharedAllocator) {
    let arena = Arc::new(StepArena::new());
    let room = SharedAllocator::new(Arc::clone(&arena));
    (arena, room)
}

/// Allocations of a step, all out together, and its end.
fn steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    for count in STEPS {
        group.throughput(Throughput::Elements(u64::from(count)));
        let (arena, room) = arena();
        let mut step = || {
            let all = (0..count).map(|_| room.allocate(BYTES, 64).unwrap());
            let held: Vec<_> = all.collect();
            drop(black_box(held));
            arena.end_step().unwrap().allocations
        };
        assert_eq!(step(), u64::from(count));
        group.bench_function(BenchmarkId::new("arena", count), |b| b.iter(&mut step));
        group.bench_function(BenchmarkId::new("arena, one at a time", count), |b| {
            b.iter(|| {
                for _ in 0..count {
                    black_box(room.allocate(BYTES, 64).unwrap());
                }
                arena.end_step().unwrap()
            });
        });
        let slab = SharedAllocator::new(SlabAllocator::new(BYTES, count).unwrap());
        group.bench_function(BenchmarkId::new("slab", count), |b| {
            b.iter(|| {
                let all = (0..count).map(|_| slab.allocate(BYTES, 64).unwrap());
                all.collect::<Vec<_>>()
            });
        });
        group.bench_function(BenchmarkId::new("vec", count), |b| {
            b.iter(|| {
                let all = (0..count).map(|_| Vec::<u8>::with_capacity(black_box(BYTES)));
                all.collect::<Vec<_>>()
            });
        });
        let mut bump = Bump::new();
        let layout = Layout::from_size_align(BYTES, 64).unwrap();
        group.bench_function(BenchmarkId::new("bumpalo", count), |b| {
            b.iter(|| {
                let all = (0..count).map(|_| bump.try_alloc_layout(black_box(layout)).unwrap());
                drop(black_box(all.collect::<Vec<_>>()));
                bump.reset();
            });
        });
    }
    group.finish();
}

/// The end of a step alone, by how many allocations were made in it. The clock is in it, too.
fn ends(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("end_step");
    let clock = |end: &mut dyn FnMut(), iterations: u64| {
        let mut sum = Duration::ZERO;
        for _ in 0..iterations {
            let start = Instant::now();
            end();
            sum += start.elapsed();
        }
        sum
    };
    group.bench_function("clock alone", |b| b.iter_custom(|n| clock(&mut || (), n)));
    for count in STEPS {
        let (arena, room) = arena();
        group.bench_function(BenchmarkId::new("arena", count), |b| {
            b.iter_custom(|iterations| {
                let mut sum = Duration::ZERO;
                for _ in 0..iterations {
                    let all = (0..count).map(|_| room.allocate(BYTES, 64).unwrap());
                    drop(all.collect::<Vec<_>>());
                    sum += clock(&mut || _ = black_box(arena.end_step()), 1);
                }
                sum
            });
        });
    }
    group.finish();
}

/// A block without its buffer, and with a tensor over it.
fn one(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one");
    group.throughput(Throughput::Elements(1));
    let (arena, room) = arena();
    let request = Request::new(BYTES, 64).unwrap();
    group.bench_function("block/arena", |b| {
        b.iter(|| {
            let block = black_box(arena.allocate_block(black_box(request)).unwrap());
            // SAFETY: taken just now, and not used any more.
            unsafe { arena.release_block(block) };
        });
    });
    let slab = SharedAllocator::new(SlabAllocator::new(BYTES, 64).unwrap());
    for (name, handle) in [("arena", &room), ("slab", &slab), ("cpu", memory::cpu())] {
        group.bench_function(BenchmarkId::new("empty", name), |b| {
            b.iter(|| Tensor::empty([576], DType::F32, black_box(handle)).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, one, steps, ends);
criterion_main!(benches);
