//! Bulk conversions between `f32` and the half formats, beside the `half` crate's.
//!
//! One unit is one element; 16 Ki of them, so both sides are in the cache. The `half`
//! crate's slices quiet signalling NaNs, ours keep them; there are none in this data.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::slice::HalfFloatSliceExt;
use tenslab::types::half::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};
use tenslab::{bf16, f16};

const ELEMENTS: usize = 16 << 10;

fn values() -> Vec<f32> {
    (0..ELEMENTS).map(|i| (i as f32 - 8000.0) * 0.37).collect()
}

fn conversions(criterion: &mut Criterion) {
    let wide = values();
    let mut back = vec![0.0; ELEMENTS];
    let mut group = criterion.benchmark_group("half");
    group.throughput(Throughput::Elements(ELEMENTS as u64));

    let mut ours = vec![f16::ZERO; ELEMENTS];
    let mut theirs = ours.clone();
    narrow_f16(&wide, &mut ours);
    theirs.convert_from_f32_slice(&wide);
    assert!(
        ours.iter()
            .map(|h| h.to_bits())
            .eq(theirs.iter().map(|h| h.to_bits()))
    );
    group.bench_function("narrow f16/ours", |b| {
        b.iter(|| narrow_f16(black_box(&wide), &mut ours))
    });
    group.bench_function("narrow f16/half", |b| {
        b.iter(|| theirs.convert_from_f32_slice(black_box(&wide)));
    });
    group.bench_function("widen f16/ours", |b| {
        b.iter(|| widen_f16(black_box(&ours), &mut back))
    });
    group.bench_function("widen f16/half", |b| {
        b.iter(|| black_box(&theirs).convert_to_f32_slice(&mut back));
    });

    let mut ours = vec![bf16::ZERO; ELEMENTS];
    let mut theirs = ours.clone();
    narrow_bf16(&wide, &mut ours);
    theirs.convert_from_f32_slice(&wide);
    assert!(
        ours.iter()
            .map(|h| h.to_bits())
            .eq(theirs.iter().map(|h| h.to_bits()))
    );
    group.bench_function("narrow bf16/ours", |b| {
        b.iter(|| narrow_bf16(black_box(&wide), &mut ours));
    });
    group.bench_function("narrow bf16/half", |b| {
        b.iter(|| theirs.convert_from_f32_slice(black_box(&wide)));
    });
    group.bench_function("widen bf16/ours", |b| {
        b.iter(|| widen_bf16(black_box(&ours), &mut back));
    });
    group.bench_function("widen bf16/half", |b| {
        b.iter(|| black_box(&theirs).convert_to_f32_slice(&mut back));
    });
    group.finish();
}

criterion_group!(benches, conversions);
criterion_main!(benches);
