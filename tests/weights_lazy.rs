//! Tensors that are read when they are asked for: once, and again when they were forgotten.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};

use checkpoint_files::{file, packed, write};
use tenslab::memory::{Budget, Limit, SharedAllocator, Tag};
use tenslab::weights::{
    Choice, LazyWeights, LoadOptions, NonFinite, Shard, ShardRule, Weights, WeightsError,
};
use tenslab::{CpuAllocator, DType};

fn model(directory: &Path) -> PathBuf {
    let (json, bytes) = packed(&[
        ("a", "BF16", &[700, 1000], 1_400_000),
        ("b", "F32", &[30, 10], 1200),
        ("c", "F8_E4M3", &[9], 9),
        ("nothing", "F32", &[0, 3], 0),
        ("d", "I64", &[200_000], 1_600_000),
    ]);
    write(directory, "model.safetensors", &file(&json, bytes))
}

#[test]
fn each_tensor_is_what_a_load_of_all_makes_of_it() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let shard = Shard {
        dim: 1,
        rank: 1,
        world: 3,
        uneven: true,
    };
    for dtype in [None, Some(DType::F16)] {
        let options = LoadOptions {
            dtype,
            choice: Choice::by(|entry| entry.name() != "d"),
            shards: vec![ShardRule::part("a", shard)],
            ..LoadOptions::default()
        };
        let all = Weights::load(&path, &options).unwrap();
        let lazy = LazyWeights::open(&path, &options).unwrap();
        assert_eq!(lazy.report(), Default::default());
        assert!(lazy.names().eq(all.names()));
        for name in all.names() {
            assert!(!lazy.is_read(name));
            let (raw, expected) = (lazy.raw(name).unwrap(), all.raw(name).unwrap());
            assert!(
                *raw.read_bytes().unwrap() == *expected.read_bytes().unwrap(),
                "{name}"
            );
            assert!(lazy.is_read(name) && lazy.contains(name));
            match all.get(name) {
                Ok(expected) => {
                    let tensor = lazy.get(name).unwrap();
                    assert_eq!(tensor.shape(), expected.shape());
                    assert_eq!(tensor.dtype(), expected.dtype());
                    assert!(tensor.storage().is_frozen());
                    assert_eq!(tensor.storage().tag(), Tag::Weights);
                }
                Err(_) => assert!(matches!(
                    lazy.get(name),
                    Err(WeightsError::UnsupportedDType { tag, .. }) if tag == "F8_E4M3"
                )),
            }
        }
        let (report, of_all) = (lazy.report(), all.report());
        assert_eq!((report.tensors, report.read_bytes), (4, of_all.read_bytes));
        assert!(matches!(lazy.get("d"), Err(WeightsError::LeftOut { .. })));
        assert!(matches!(lazy.get("e"), Err(WeightsError::NotFound { .. })));
        assert_eq!(lazy.report(), report);

        // A part of the tensor in the file, whatever the rules say; it is not kept.
        let before = lazy.get("a").unwrap();
        let part = lazy
            .shard(
                "a",
                Shard {
                    dim: 0,
                    rank: 6,
                    world: 7,
                    uneven: false,
                },
            )
            .unwrap();
        assert_eq!(part.shape().dims(), [100, 1000]);
        assert_eq!(lazy.report().read_bytes, report.read_bytes + 200_000);
        assert!(before.storage().is_same(lazy.get("a").unwrap().storage()));
    }
}

#[test]
fn two_threads_that_ask_for_one_tensor_read_it_once() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    for _ in 0..20 {
        let lazy = LazyWeights::open(&path, &LoadOptions::default()).unwrap();
        let start = Barrier::new(4);
        let tensors: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        lazy.get("a").unwrap()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        for tensor in &tensors {
            assert!(tensor.storage().is_same(tensors[0].storage()));
        }
        assert_eq!(
            (lazy.report().tensors, lazy.report().read_bytes),
            (1, 1_400_000)
        );
    }
}

#[test]
fn what_is_forgotten_goes_back_with_its_last_handle() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let allocator = SharedAllocator::new(CpuAllocator::new());
    let options = LoadOptions {
        allocator: allocator.clone(),
        ..LoadOptions::default()
    };
    let lazy = LazyWeights::open(&path, &options).unwrap();
    assert!(!lazy.forget("a") && !lazy.forget("no such") && lazy.forget_all() == 0);
    let (a, _) = (lazy.get("a").unwrap(), lazy.get("b").unwrap());
    assert_eq!(allocator.outstanding(), 2);
    assert!(lazy.forget("b") && !lazy.forget("b"));
    assert_eq!(allocator.outstanding(), 1);
    assert_eq!(lazy.forget_all(), 1);
    assert_eq!(allocator.outstanding(), 1, "a handle is there");
    drop(a);
    assert_eq!(allocator.outstanding(), 0);
    lazy.get("a").unwrap();
    assert_eq!(lazy.report().tensors, 3);
    drop(lazy);
    assert_eq!(allocator.outstanding(), 0);
}

/// A limit that is short asks; the answer is to forget, in the middle of a read of another.
#[test]
fn a_limit_that_is_short_makes_room_by_forgetting() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let limit = Limit::new(2_000_000);
    let options = LoadOptions {
        allocator: SharedAllocator::new(Budget::new(CpuAllocator::new(), &limit)),
        ..LoadOptions::default()
    };
    let lazy = Arc::new(LazyWeights::open(&path, &options).unwrap());
    lazy.get("a").unwrap();
    assert!(matches!(lazy.get("d"), Err(WeightsError::Memory { .. })));
    let asked = Arc::clone(&lazy);
    let guard = limit.on_pressure(move |_| asked.forget_all());
    assert_eq!(lazy.get("d").unwrap().numel(), 200_000);
    assert!(lazy.is_read("d") && !lazy.is_read("a"));
    drop(guard);
}

#[test]
fn a_read_that_fails_is_tried_again() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let lazy = LazyWeights::open(&path, &LoadOptions::default()).unwrap();
    let away = path.with_extension("away");
    fs::rename(&path, &away).unwrap();
    for _ in 0..2 {
        assert!(matches!(lazy.get("a"), Err(WeightsError::Io { .. })));
    }
    fs::copy(&away, &path).unwrap();
    assert!(matches!(
        lazy.get("a"),
        Err(WeightsError::FileChanged { .. })
    ));
    assert!(!lazy.is_read("a"));
}

#[test]
fn checks_are_made_of_what_is_read() {
    let place = tempfile::tempdir().unwrap();
    let (json, _) = packed(&[("good", "F32", &[1], 4), ("bad", "F32", &[2], 8)]);
    let mut content = file(&json, 0);
    content.extend(
        [1.0, 2.0, f32::NAN]
            .iter()
            .flat_map(|value| value.to_le_bytes()),
    );
    let path = write(place.path(), "m", &content);
    let options = |non_finite| LoadOptions {
        non_finite,
        ..LoadOptions::default()
    };
    let lazy = LazyWeights::open(&path, &options(NonFinite::Refuse)).unwrap();
    assert!(lazy.get("good").is_ok());
    assert!(matches!(
        lazy.get("bad"),
        Err(WeightsError::NonFinite {
            first: 1,
            count: 1,
            tensors: 1,
            ..
        })
    ));
    let lazy = LazyWeights::open(&path, &options(NonFinite::Report)).unwrap();
    lazy.get("bad").unwrap();
    assert_eq!(lazy.report().non_finite[0].name, "bad");

    // What the options cannot have is said when it is opened.
    let options = LoadOptions {
        choice: Choice::matching(["goood"]),
        ..LoadOptions::default()
    };
    assert!(matches!(
        LazyWeights::open(&path, &options),
        Err(WeightsError::NothingMatches { .. })
    ));
}
