//! `copy` and `cast` beside a memcpy of as many bytes, in the cache and out of it.
//!
//! One unit is one byte read. `benches/peers` has the rivals, ndarray and candle, and the
//! copies on two threads. Compare within a group only.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a bench that fails should panic")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tenslab::{DType, SharedAllocator, SlabAllocator, Tensor, memory, ops};

/// Bytes of the source: one in the cache, one far out of it.
const SIZES: [usize; 2] = [256 << 10, 256 << 20];

fn square(bytes: usize, dtype: DType) -> Tensor {
    let side = (bytes / dtype.bytes()).isqrt();
    let tensor = Tensor::empty([side, side], dtype, memory::cpu()).unwrap();
    if dtype.is_floating_point() {
        ops::fill_uniform(&tensor, -100.0, 100.0, 1).unwrap();
    } else {
        // Bytes that no row repeats.
        let mut bytes = tensor.write_bytes().unwrap();
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (at % 113).to_le_bytes()[0];
        }
    }
    tensor
}

fn copies(criterion: &mut Criterion) {
    for bytes in SIZES {
        let mut group = criterion.benchmark_group("copy");
        group.sample_size(10);
        group.throughput(Throughput::Bytes(bytes as u64));
        let (from, mut to) = (vec![1_u8; bytes], vec![1_u8; bytes]);
        group.bench_function(BenchmarkId::new("memcpy", bytes), |b| {
            b.iter(|| black_box(&mut to).copy_from_slice(black_box(&from)));
        });
        let cases = [
            ("contiguous", DType::F32),
            ("transposed", DType::U8),
            ("transposed", DType::F16),
            ("transposed", DType::F32),
            ("transposed", DType::F64),
        ];
        for (layout, dtype) in cases {
            let mut src = square(bytes, dtype);
            if layout == "transposed" {
                src = src.transpose(0, 1).unwrap();
            }
            let dst = Tensor::zeros(*src.shape(), dtype, memory::cpu()).unwrap();
            ops::copy(&dst, &src).unwrap();
            assert_eq!(ops::allclose(&dst, &src, None).unwrap().mismatches, 0);
            group.bench_function(BenchmarkId::new(format!("{layout} {dtype}"), bytes), |b| {
                b.iter(|| ops::copy(&dst, black_box(&src)).unwrap());
            });
        }
        group.finish();
    }
}

fn casts(criterion: &mut Criterion) {
    for bytes in SIZES {
        let mut group = criterion.benchmark_group("cast");
        group.sample_size(10);
        group.throughput(Throughput::Bytes(bytes as u64));
        // As many bytes read and written as a cast from f32 to a half does.
        let (from, mut to) = (vec![1_u8; bytes / 4 * 3], vec![1_u8; bytes / 4 * 3]);
        group.bench_function(BenchmarkId::new("memcpy", bytes), |b| {
            b.iter(|| black_box(&mut to).copy_from_slice(black_box(&from)));
        });
        let src = square(bytes, DType::F32);
        let slab = SharedAllocator::new(SlabAllocator::new(bytes.next_multiple_of(64), 1).unwrap());
        for to in [DType::BF16, DType::F16, DType::I32] {
            // The block was used before: no page is touched for the first time.
            let dst = ops::cast(&src, to, &slab).unwrap();
            assert_eq!((dst.dtype(), dst.numel()), (to, src.numel()));
            drop(dst);
            group.bench_function(BenchmarkId::new(format!("float32 to {to}"), bytes), |b| {
                b.iter(|| ops::cast(black_box(&src), to, &slab).unwrap());
            });
        }
        group.finish();
    }
}

criterion_group!(benches, copies, casts);
criterion_main!(benches);
