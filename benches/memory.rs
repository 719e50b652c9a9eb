//! A block, a tensor and a large region, beside what a reader would use otherwise.
//!
//! One unit is one allocation and one drop. Read the ratios within one run: wall times
//! of this kind of machine drift up to twofold. Nothing is touched but where the name
//! says so, so a `Vec` of a large size is cheap too until it is written.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a bench that fails may panic")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tenslab::memory::{self, Meter, Trace};
use tenslab::{DType, SharedAllocator, SlabAllocator, Tensor};

const KIB: usize = 1 << 10;

fn touch(start: *mut u8, bytes: usize) {
    for page in (0..bytes).step_by(4 * KIB) {
        // SAFETY: below `bytes`, which the caller owns.
        let place = unsafe { start.add(page) };
        // SAFETY: as above; volatile, so that it is not optimised away.
        unsafe { place.write_volatile(1) };
    }
}

fn blocks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("block");
    group.throughput(Throughput::Elements(1));
    for kib in [4, 64, 1024] {
        let bytes = kib * KIB;
        let slab = SharedAllocator::new(SlabAllocator::new(bytes, 64).unwrap());
        let metered = SharedAllocator::new(Meter::new(SlabAllocator::new(bytes, 64).unwrap()));
        assert_eq!(slab.allocate(bytes, 64).unwrap().len(), bytes);

        group.bench_function(BenchmarkId::new("slab", kib), |b| {
            b.iter(|| black_box(slab.allocate(bytes, 64).unwrap()));
        });
        group.bench_function(BenchmarkId::new("metered slab", kib), |b| {
            b.iter(|| black_box(metered.allocate(bytes, 64).unwrap()));
        });
        let traced = SharedAllocator::new(Trace::new(SlabAllocator::new(bytes, 64).unwrap()));
        group.bench_function(BenchmarkId::new("traced slab", kib), |b| {
            b.iter(|| black_box(traced.allocate(bytes, 64).unwrap()));
        });
        group.bench_function(BenchmarkId::new("vec", kib), |b| {
            b.iter(|| black_box(Vec::<u8>::with_capacity(bytes)));
        });
        group.bench_function(BenchmarkId::new("slab, touched", kib), |b| {
            b.iter(|| {
                let buffer = slab.allocate(bytes, 64).unwrap();
                touch(buffer.as_ptr(), bytes);
                buffer
            });
        });
        group.bench_function(BenchmarkId::new("vec, touched", kib), |b| {
            b.iter(|| {
                let mut vec = Vec::<u8>::with_capacity(bytes);
                touch(vec.as_mut_ptr(), bytes);
                vec
            });
        });
    }
    group.finish();
}

fn tensors(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("tensor");
    group.throughput(Throughput::Elements(1));
    let slab = SharedAllocator::new(SlabAllocator::new(64 * KIB, 64).unwrap());
    let tensor = Tensor::zeros([128, 128], DType::F32, &slab).unwrap();
    assert_eq!(tensor.read::<f32>().unwrap().len(), 128 * 128);

    group.bench_function("empty/slab", |b| {
        b.iter(|| Tensor::empty([128, 128], DType::F32, black_box(&slab)).unwrap());
    });
    group.bench_function("empty/cpu", |b| {
        b.iter(|| Tensor::empty([128, 128], DType::F32, black_box(memory::cpu())).unwrap());
    });
    group.bench_function("empty/arc vec", |b| {
        b.iter(|| std::sync::Arc::new(vec![0.0_f32; black_box(128 * 128)]));
    });
    group.bench_function("clone", |b| b.iter(|| black_box(&tensor).clone()));
    group.bench_function("slice", |b| {
        b.iter(|| black_box(&tensor).slice(0, 3, 5).unwrap())
    });
    group.bench_function("read", |b| {
        b.iter(|| black_box(&tensor).read::<f32>().unwrap().len());
    });
    tensor.freeze().unwrap();
    group.bench_function("read frozen", |b| {
        b.iter(|| black_box(&tensor).read::<f32>().unwrap().len());
    });
    group.finish();
}

/// A KV region as engines make one: 8 GiB of zeros that nobody has touched yet, made and
/// gone again. The bound is 50 ms; `tests/limits.rs` has the other one, less than 16 MiB of
/// memory.
fn regions(criterion: &mut Criterion) {
    const BYTES: usize = 8 << 30;
    let slab = |block_bytes: usize| {
        let blocks = u32::try_from(BYTES / block_bytes).unwrap();
        let slab = SlabAllocator::fixed(block_bytes, blocks).unwrap();
        SharedAllocator::new(slab)
    };
    let of_slab = |block_bytes| slab(block_bytes).allocate_zeroed(block_bytes, 64).unwrap();
    #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    for made in [
        memory::cpu().allocate_zeroed(BYTES, 64).unwrap(),
        of_slab(BYTES),
        of_slab(16 * KIB),
    ] {
        assert_eq!(made.resident_bytes().unwrap(), 0);
    }
    let mut group = criterion.benchmark_group("region");
    group.sample_size(10);
    group.bench_function("zeroed/8 GiB", |b| {
        b.iter(|| black_box(memory::cpu().allocate_zeroed(BYTES, 64).unwrap()));
    });
    group.bench_function("slab, zeroed/8 GiB", |b| {
        b.iter(|| black_box(of_slab(BYTES)))
    });
    group.bench_function("slab of 16 KiB, zeroed/8 GiB", |b| {
        b.iter(|| black_box(of_slab(16 * KIB)));
    });
    group.bench_function("vec, zeroed/8 GiB", |b| {
        b.iter(|| black_box(vec![0_u8; black_box(BYTES)]));
    });
    group.finish();
}

criterion_group!(benches, blocks, tensors, regions);
criterion_main!(benches);
