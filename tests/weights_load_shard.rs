//! One rank's part: what all ranks load together is the whole, and nobody reads what is not
//! their own.

#![cfg(all(not(loom), not(tenslab_valgrind)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::path::{Path, PathBuf};

use checkpoint_files::{file, packed, write};
use proptest::prelude::*;
use proptest::test_runner::Config;
use tenslab::weights::{LoadOptions, Shard, ShardFault, ShardRule, Weights, WeightsError};
use tenslab::{DType, Shape, Tensor, memory, ops};

/// A checkpoint with one tensor, `"w"`, behind another one of an odd length.
fn matrix(directory: &Path, tag: &str, width: u64, dims: &[u64]) -> PathBuf {
    let bytes = dims.iter().product::<u64>() * width;
    let (json, bytes) = packed(&[("odd", "U8", &[3], 3), ("w", tag, dims, bytes)]);
    write(directory, "model.safetensors", &file(&json, bytes))
}

fn options(dtype: Option<DType>, shard: Shard) -> LoadOptions {
    LoadOptions {
        dtype,
        threads: 2,
        shards: vec![ShardRule::whole("odd"), ShardRule::part("*", shard)],
        ..LoadOptions::default()
    }
}

fn shard(dim: usize, rank: usize, world: usize) -> Shard {
    Shard {
        dim,
        rank,
        world,
        uneven: true,
    }
}

proptest! {
    #![proptest_config(Config { cases: 150, failure_persistence: None, ..Config::default() })]

    /// Sizes around those where rows are read one by one, together, and in parts.
    #[test]
    fn the_parts_of_all_ranks_are_the_whole(
        outer in prop::sample::select(vec![0_u64, 1, 2, 5, 300]),
        middle in prop::sample::select(vec![0_u64, 1, 3, 8, 37]),
        inner in prop::sample::select(vec![1_u64, 2, 130, 3000]),
        dim in 0..3_usize,
        world in 1..6_usize,
        element in 0..4_usize,
        cast in 0..3_usize,
    ) {
        let place = tempfile::tempdir().unwrap();
        let (tag, width) = [("BF16", 2), ("F32", 4), ("I64", 8), ("F8_E5M2FNUZ", 1)][element];
        let dtype = [None, Some(DType::F32), Some(DType::F16)][cast];
        // Not more than a few MiB.
        let inner = inner.min(4_000_000 / (outer * middle * width).max(1)).max(1);
        let path = matrix(place.path(), tag, width, &[outer, middle, inner]);
        let whole = Weights::load(&path, &LoadOptions { dtype, ..LoadOptions::default() }).unwrap();
        let entry = whole.checkpoint().entry("w").unwrap();
        let shape = entry.shape();
        // What cannot be a tensor is compared as bytes: a dimension more.
        let expected = whole.raw("w").unwrap();
        let loaded_width = if shape.numel() == 0 { 1 } else { expected.numel() / shape.numel() };
        let mut dims = shape.dims().to_vec();
        dims.push(loaded_width);
        let expected = expected.reshape(Shape::from_dims(&dims).unwrap()).unwrap();
        let parts: Vec<Tensor> = (0..world).map(|rank| {
            let weights = Weights::load(&path, &options(dtype, shard(dim, rank, world))).unwrap();
            assert_eq!(*weights.raw("odd").unwrap().read_bytes().unwrap(), [1, 2, 3]);
            let raw = weights.raw("w").unwrap();
            let mut dims = dims.clone();
            dims[dim] = shape.dim(dim) / world + usize::from(rank < shape.dim(dim) % world);
            if entry.dtype().loadable().is_some() {
                let tensor = weights.get("w").unwrap();
                assert_eq!(tensor.shape().dims(), &dims[..3]);
                assert_eq!(tensor.nbytes(), raw.numel());
            }
            let report = weights.report();
            assert!(report.read_bytes >= 3 + raw.numel() as u64 / loaded_width as u64 * width);
            raw.reshape(Shape::from_dims(&dims).unwrap()).unwrap()
        }).collect();
        let parts: Vec<&Tensor> = parts.iter().collect();
        let together = ops::cat(&parts, dim, memory::cpu()).unwrap();
        prop_assert_eq!(together.shape(), expected.shape());
        let (together, expected) = (together.read_bytes().unwrap(), expected.read_bytes().unwrap());
        prop_assert!(*together == *expected);
    }
}

/// Bytes and calls that a rank's part costs, without the tensor in front.
fn cost(path: &Path, dtype: Option<DType>, shard: Shard) -> (u64, u64) {
    let weights = Weights::load(path, &options(dtype, shard)).unwrap();
    let report = weights.report();
    (report.read_bytes - 3, report.read_calls - 1)
}

#[test]
fn only_the_bytes_of_the_part_are_read() {
    let place = tempfile::tempdir().unwrap();
    // 600 rows of 8,000 bytes.
    let path = matrix(place.path(), "F32", 4, &[600, 2000]);
    for dtype in [None, Some(DType::BF16)] {
        // Rows 150 to 300: one run of 1.2 MB, in pieces of 1 MiB and, cast, of 256 KiB.
        let (bytes, calls) = cost(&path, dtype, shard(0, 1, 4));
        assert_eq!(bytes, 1_200_000);
        assert_eq!(calls, if dtype.is_some() { 5 } else { 2 });

        // Half of each row: gaps of 4,000 bytes are read along, but not those at the ends.
        let (bytes, calls) = cost(&path, dtype, shard(1, 1, 2));
        assert!(
            bytes > 2 * 2_300_000 && bytes <= 600 * 8000 - 4000,
            "{bytes}"
        );
        assert!(calls <= 600 * 8000 / (200 << 10) + 4, "{calls}");

        // A quarter of each: gaps of 6,000 bytes cost a call each, and no bytes.
        assert_eq!(cost(&path, dtype, shard(1, 3, 4)), (1_200_000, 600));
    }
    // Part of a row that is itself larger than what is read at a time.
    let path = matrix(place.path(), "F32", 4, &[2, 1_000_000]);
    let (bytes, calls) = cost(&path, None, shard(1, 0, 2));
    assert_eq!((bytes, calls), (4_000_000, 4));
}

#[test]
fn the_first_rule_that_matches_decides() {
    let place = tempfile::tempdir().unwrap();
    let (json, bytes) = packed(&[
        ("a.norm", "F32", &[4], 16),
        ("a.up", "F32", &[4, 2], 32),
        ("b.up", "F32", &[4, 2], 32),
        ("c", "F32", &[4], 16),
    ]);
    let path = write(place.path(), "m", &file(&json, bytes));
    let options = LoadOptions {
        shards: vec![
            ShardRule::whole("*.norm"),
            ShardRule::part("b.*", shard(1, 1, 2)),
            ShardRule::part("?.*", shard(0, 0, 4)),
        ],
        ..LoadOptions::default()
    };
    let weights = Weights::load(&path, &options).unwrap();
    let shape = |name| *weights.get(name).unwrap().shape();
    assert_eq!(shape("a.norm"), Shape::from([4]));
    assert_eq!(shape("a.up"), Shape::from([1, 2]));
    assert_eq!(shape("b.up"), Shape::from([4, 1]));
    assert_eq!(shape("c"), Shape::from([4]));
    assert_eq!(weights.report().part_tensors, 2);
    // What the file says stays what it says.
    assert_eq!(
        weights.checkpoint().entry("b.up").unwrap().shape().numel(),
        8
    );
}

#[test]
fn parts_that_there_are_not_are_errors_with_numbers() {
    let place = tempfile::tempdir().unwrap();
    let path = matrix(place.path(), "F32", 4, &[6, 5]);
    let fault = |path: &Path, shard| {
        let error = Weights::load(path, &options(None, shard)).unwrap_err();
        let message = error.to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        let WeightsError::Shard { name, fault, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(name, "w");
        fault
    };
    let even = |dim, rank, world| Shard {
        uneven: false,
        ..shard(dim, rank, world)
    };
    assert_eq!(
        fault(&path, shard(2, 0, 1)),
        ShardFault::Dimension { dim: 2, rank: 2 }
    );
    for world in [0, 3] {
        assert_eq!(
            fault(&path, shard(0, 3, world)),
            ShardFault::Rank { rank: 3, world }
        );
    }
    assert_eq!(
        fault(&path, even(1, 0, 2)),
        ShardFault::Indivisible {
            dim: 1,
            size: 5,
            world: 2
        }
    );
    assert!(Weights::load(&path, &options(None, even(0, 0, 2))).is_ok());
    assert!(Weights::load(&path, &options(None, shard(0, 0, usize::MAX))).is_ok());

    // Half bytes have no place of their own, and what nobody knows has none either.
    for (tag, bytes, bits) in [("F4", 8, Some(4)), ("F128", 8, None)] {
        let (json, data) = packed(&[("odd", "U8", &[3], 3), ("w", tag, &[4, 4], bytes)]);
        let path = write(place.path(), "sub", &file(&json, data));
        assert_eq!(fault(&path, shard(0, 0, 2)), ShardFault::Elements { bits });
    }
    let (json, data) = packed(&[("odd", "U8", &[3], 3), ("w", "F32", &[], 4)]);
    let path = write(place.path(), "scalar", &file(&json, data));
    assert_eq!(
        fault(&path, shard(0, 0, 2)),
        ShardFault::Dimension { dim: 0, rank: 0 }
    );
}
