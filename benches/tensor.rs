//! Handles and guards of tensors, beside what a reader would use otherwise.
//!
//! One unit is one line of the group's table. Read the ratios within one run. Everything is
//! in the first cache and on one thread, so this is what the calls cost and not the memory.
//!
//! ```text
//!   view     clone, slice, drop of both        Arc<[f32]>: clone and a range, twice
//!   guard    read, look at one element, drop   RwLock<Vec<f32>> of std
//! ```

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a bench that fails may panic")]

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, RwLock};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tenslab::{DType, SharedAllocator, SlabAllocator, Tensor};

const ROWS: usize = 128;

fn matrix() -> Tensor {
    let slab = SharedAllocator::new(SlabAllocator::new(64 << 10, 64).unwrap());
    Tensor::zeros([ROWS, 128], DType::F32, &slab).unwrap()
}

fn views(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("view");
    group.throughput(Throughput::Elements(1));
    let tensor = matrix();
    let row = tensor.slice(0, 3, 5).unwrap();
    assert_eq!((row.numel(), row.byte_offset()), (256, 3 * 512));

    group.bench_function("clone, slice, drop", |b| {
        b.iter(|| {
            let clone = black_box(&tensor).clone();
            let view = clone.slice(0, black_box(3), black_box(5)).unwrap();
            black_box(view.byte_offset())
        });
    });
    group.bench_function("clone, inner slice, drop", |b| {
        b.iter(|| {
            let clone = black_box(&tensor).clone();
            let view = clone.slice(1, black_box(3), black_box(5)).unwrap();
            black_box(view.byte_offset())
        });
    });
    group.bench_function("arc clone twice, drop", |b| {
        let shared: Arc<[f32]> = vec![0.0; ROWS * 128].into();
        b.iter(|| {
            let clone = Arc::clone(black_box(&shared));
            let view = (Arc::clone(&clone), black_box(3)..black_box(5));
            black_box(view.1.start)
        });
    });
    group.bench_function("clone", |b| {
        b.iter(|| black_box(&tensor).clone().byte_offset())
    });
    group.bench_function("slice", |b| {
        b.iter(|| {
            black_box(&tensor)
                .slice(0, black_box(3), 5)
                .unwrap()
                .byte_offset()
        });
    });
    group.bench_function("transpose", |b| {
        b.iter(|| {
            black_box(&tensor)
                .transpose(0, black_box(1))
                .unwrap()
                .byte_offset()
        });
    });
    group.bench_function("select", |b| {
        b.iter(|| {
            black_box(&tensor)
                .select(0, black_box(7))
                .unwrap()
                .byte_offset()
        });
    });
    group.bench_function("reshape", |b| {
        b.iter(|| {
            black_box(&tensor)
                .reshape([64, black_box(256)])
                .unwrap()
                .byte_offset()
        });
    });
    group.finish();
}

fn guards(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("guard");
    group.throughput(Throughput::Elements(1));
    let mut tensor = matrix();
    let frozen = matrix();
    frozen.freeze().unwrap();
    assert_eq!(frozen.read::<f32>().unwrap().len(), ROWS * 128);
    assert!(frozen.write::<f32>().is_err() && tensor.write::<f32>().is_ok());

    group.bench_function("read frozen", |b| {
        b.iter(|| black_box(&frozen).read::<f32>().unwrap()[7]);
    });
    group.bench_function("read writable", |b| {
        b.iter(|| black_box(&tensor).read::<f32>().unwrap()[7]);
    });
    group.bench_function("write", |b| {
        b.iter(|| black_box(&tensor).write::<f32>().unwrap()[7] = 1.0);
    });
    group.bench_function("get_mut", |b| {
        b.iter(|| black_box(&mut tensor).get_mut::<f32>().unwrap()[7] = 1.0);
    });
    group.bench_function("item", |b| {
        b.iter(|| black_box(&frozen).item::<f32>(&[3, 4]));
    });
    let parts = matrix().split(0, [64, 32, 32]).unwrap();
    group.bench_function("write_disjoint of 3", |b| {
        b.iter(|| {
            let mut all = Tensor::write_disjoint::<f32, 3>(black_box(parts.each_ref())).unwrap();
            let [q, ..] = all.slices();
            q[7] = 1.0;
        });
    });
    group.bench_function("std RwLock read", |b| {
        let lock = RwLock::new(vec![0.0_f32; 1024]);
        b.iter(|| black_box(&lock).read().unwrap()[7]);
    });
    // What no guard that counts readers can do without: a look, one more, one less.
    group.bench_function("a load and two atomic additions", |b| {
        let readers = AtomicU32::new(0);
        b.iter(|| {
            let readers = black_box(&readers);
            assert!(readers.load(Ordering::Acquire) < 100);
            readers.fetch_add(1, Ordering::Acquire);
            readers.fetch_sub(1, Ordering::Release);
        });
    });
    group.finish();
}

criterion_group!(benches, views, guards);
criterion_main!(benches);
