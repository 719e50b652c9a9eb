//! Reading the header of a checkpoint, beside the `safetensors` crate.
//!
//! One unit is one tensor of the header. Both readers get the whole file in memory, check
//! all of it, and drop what they made. Read the ratios within one run.
//!
//! ```text
//!   weights/header/…   names like a model's, in order or in none: 10,000 tensors (a large
//!                      mixture of experts) and 500,000, as many as the default limits take
//!   weights/large/…    98 MB of header from the disk: 1.7 million empty tensors, names
//!                      in no order; refused by the default limits, read with the format's
//! ```

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a bench that fails may panic")]

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use safetensors::SafeTensors;
use tenslab::weights::{Checkpoint, Header, HeaderLimits};

/// A file of which only the header is there for certain: the data is not looked at.
fn file(json: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

/// A mixture of experts: layers of matrices and norms. With a step of 1 the names are in
/// order; with another one, which shares no divisor with `tensors`, in none.
fn model(tensors: usize, step: usize) -> Vec<u8> {
    const PARTS: [(&str, &str, [usize; 2]); 4] = [
        ("down_proj.weight", "BF16", [2, 8]),
        ("gate_proj.weight", "BF16", [8, 2]),
        ("norm.scale", "F32", [1, 4]),
        ("up_proj.weight", "BF16", [8, 2]),
    ];
    let mut json = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut begin = 0;
    for place in 0..tensors {
        let number = place * step % tensors;
        let (part, dtype, shape) = PARTS[number % 4];
        let (layer, expert) = (number / 4 / 64, number / 4 % 64);
        let bytes = shape[0] * shape[1] * if dtype == "F32" { 4 } else { 2 };
        write!(
            json,
            r#","model.layers.{layer:04}.mlp.experts.{expert:02}.{part}":{{"dtype":"{dtype}","shape":[{},{}],"data_offsets":[{begin},{}]}}"#,
            shape[0], shape[1], begin + bytes
        )
        .unwrap();
        begin += bytes;
    }
    json.push('}');
    file(&json, begin)
}

fn headers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("weights/header");
    let cases = [
        (10_000, 1, "in order"),
        (10_000, 7919, "in no order"),
        (500_000, 7919, "in no order"),
    ];
    for (tensors, step, order) in cases {
        let file = model(tensors, step);
        let limits = HeaderLimits::of_format();
        let ours = Header::from_bytes(&file, &limits).unwrap();
        let (_, theirs) = SafeTensors::read_metadata(&file).unwrap();
        assert_eq!(ours.tensors().len(), tensors);
        assert_eq!(theirs.tensors().len(), tensors);

        group.throughput(Throughput::Elements(tensors as u64));
        if tensors > 100_000 {
            group.sample_size(10);
        }
        group.bench_function(
            BenchmarkId::new(format!("tenslab, {order}"), tensors),
            |b| {
                b.iter(|| Header::from_bytes(black_box(&file), &limits).unwrap());
            },
        );
        group.bench_function(
            BenchmarkId::new(format!("safetensors, {order}"), tensors),
            |b| {
                b.iter(|| SafeTensors::read_metadata(black_box(&file)).unwrap());
            },
        );
    }
    group.finish();
}

fn large(criterion: &mut Criterion) {
    const TENSORS: u64 = 1_700_000;
    let mut group = criterion.benchmark_group("weights/large");
    group
        .throughput(Throughput::Elements(TENSORS))
        .sample_size(10);
    let mut json = String::new();
    for number in 0..TENSORS {
        let first = if number == 0 { '{' } else { ',' };
        let name = number * 999_983 % TENSORS;
        write!(
            json,
            r#"{first}"{name:07}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#
        )
        .unwrap();
    }
    json.push('}');
    let file = file(&json, 0);
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("large.safetensors");
    fs::write(&path, &file).unwrap();
    let limits = HeaderLimits::of_format();
    let opened = Checkpoint::open_with(&path, &limits).unwrap();
    assert_eq!(opened.entries().len() as u64, TENSORS);
    assert!(Checkpoint::open(&path).is_err());

    group.bench_function("tenslab, refused", |b| {
        b.iter(|| Checkpoint::open(black_box(&path)).unwrap_err());
    });
    group.bench_function("tenslab, read", |b| {
        b.iter(|| Checkpoint::open_with(black_box(&path), &limits).unwrap());
    });
    group.bench_function("safetensors, read from memory", |b| {
        b.iter(|| SafeTensors::read_metadata(black_box(&file)).unwrap());
    });
    group.finish();
}

criterion_group!(benches, headers, large);
criterion_main!(benches);
