//! What is left out costs no read, and a pattern that matches nothing is heard of.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::path::{Path, PathBuf};

use checkpoint_files::{file, packed, write};
use tenslab::DType;
use tenslab::weights::{
    Choice, HeaderLimits, LoadOptions, Shard, ShardRule, Weights, WeightsError,
};

/// Two layers, of which every tensor is larger than what is read at a time, and small ones.
fn model(directory: &Path) -> PathBuf {
    let (json, bytes) = packed(&[
        ("layers.0.up.weight", "BF16", &[1024, 600], 1_228_800),
        ("layers.0.norm", "BF16", &[600], 1200),
        ("layers.1.up.weight", "BF16", &[1024, 600], 1_228_800),
        ("layers.1.norm", "BF16", &[600], 1200),
        ("layers.10.norm", "BF16", &[600], 1200),
        ("norm", "BF16", &[600], 1200),
        ("nothing", "BF16", &[0], 0),
    ]);
    write(directory, "model.safetensors", &file(&json, bytes))
}

fn chosen(choice: Choice) -> LoadOptions {
    LoadOptions {
        choice,
        threads: 2,
        ..LoadOptions::default()
    }
}

#[test]
fn what_is_left_out_is_not_read_and_says_so() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let all = Weights::load(&path, &LoadOptions::default()).unwrap();
    let cases: [(Choice, &[&str]); 6] = [
        (
            Choice::matching(["layers.?.norm", "norm"]),
            &["layers.0.norm", "layers.1.norm", "norm"],
        ),
        (
            Choice::matching(["layers.1.*"]),
            &["layers.1.up.weight", "layers.1.norm"],
        ),
        (
            Choice::by(|entry| entry.shape().rank() == 2),
            &["layers.0.up.weight", "layers.1.up.weight"],
        ),
        // In the file's order, and twice is once.
        (
            Choice::matching(["norm", "layers.0.norm", "norm"]),
            &["layers.0.norm", "norm"],
        ),
        (Choice::matching(["nothing"]), &["nothing"]),
        (Choice::matching(Vec::<String>::new()), &[]),
    ];
    for (choice, names) in cases {
        for dtype in [None, Some(DType::F32)] {
            let options = LoadOptions {
                dtype,
                ..chosen(choice.clone())
            };
            let weights = Weights::load(&path, &options).unwrap();
            assert_eq!(weights.names().collect::<Vec<_>>(), names, "{choice:?}");
            let wanted = names.iter().map(|name| {
                weights.get(name).unwrap();
                weights.checkpoint().entry(name).unwrap().nbytes()
            });
            let wanted: u64 = wanted.sum();
            let report = weights.report();
            assert_eq!(report.read_bytes, wanted);
            let width = dtype.map_or(1, |_| 2);
            assert_eq!(report.copied_bytes, wanted * width);
            assert!(report.slab_bytes as u64 <= wanted * width + 64 * names.len() as u64);
            assert_eq!(
                (report.tensors, report.left_out),
                (names.len(), 7 - names.len())
            );
        }
        let weights = Weights::load(&path, &chosen(choice)).unwrap();
        for entry in weights.entries() {
            let name = entry.name();
            assert_eq!(weights.contains(name), names.contains(&name));
            match names.contains(&name) {
                true => assert!(
                    *weights.raw(name).unwrap().read_bytes().unwrap()
                        == *all.raw(name).unwrap().read_bytes().unwrap()
                ),
                false => assert!(matches!(
                    weights.get(name),
                    Err(WeightsError::LeftOut { name: found, .. }) if found == name
                )),
            }
        }
    }
}

#[test]
fn small_neighbours_are_one_call_and_others_are_not_read_along() {
    let place = tempfile::tempdir().unwrap();
    let (json, bytes) = packed(&[
        ("a", "U8", &[100], 100),
        ("b", "U8", &[3], 3),
        ("empty", "F32", &[0], 0),
        ("c", "U8", &[1000], 1000),
        ("d", "U8", &[10], 10),
    ]);
    let path = write(place.path(), "m", &file(&json, bytes));
    let calls = |choice| {
        let weights = Weights::load(&path, &chosen(choice)).unwrap();
        (weights.report().read_calls, weights.report().read_bytes)
    };
    if cfg!(all(target_os = "linux", not(tenslab_portable))) {
        assert_eq!(calls(Choice::all()), (1, 1113));
        assert_eq!(calls(Choice::by(|entry| entry.name() != "b")), (2, 1110));
    }
    assert_eq!(calls(Choice::matching(["a", "c"])), (2, 1100));
    assert_eq!(calls(Choice::matching(["empty"])), (0, 0));
}

#[test]
fn a_pattern_without_a_match_brings_names_like_it() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let shard = Shard {
        dim: 0,
        rank: 0,
        world: 2,
        uneven: false,
    };
    let choice = |allow_unmatched| LoadOptions {
        allow_unmatched,
        ..chosen(Choice::matching(["norm", "layers.0.nrom"]))
    };
    let rule = |allow_unmatched| LoadOptions {
        allow_unmatched,
        shards: vec![
            ShardRule::whole("*norm"),
            ShardRule::part("*.0.nrom", shard),
        ],
        ..LoadOptions::default()
    };
    for (options, wanted) in [(choice(false), "layers.0.nrom"), (rule(false), "*.0.nrom")] {
        let error = Weights::load(&path, &options).unwrap_err();
        let message = error.to_string();
        let WeightsError::NothingMatches {
            pattern,
            tensors,
            close,
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((pattern.as_str(), tensors), (wanted, 7));
        if !wanted.contains('*') {
            assert!(close.contains(&"layers.0.norm".into()), "{close:?}");
        }
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let weights = Weights::load(&path, &choice(true)).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), ["norm"]);
    let weights = Weights::load(&path, &rule(true)).unwrap();
    assert_eq!(weights.report().part_tensors, 0);
}

#[test]
fn names_of_any_text_are_chosen_and_loaded() {
    let place = tempfile::tempdir().unwrap();
    let long = "x".repeat(64 << 10);
    let names = ["", "\u{0}\n\u{1b}[31m", "a*b", &long, "ä?"];
    let tensors: Vec<_> = names
        .iter()
        .map(|name| (*name, "U8", &[2_u64][..], 2))
        .collect();
    let (json, bytes) = packed(&tensors);
    let path = write(place.path(), "m", &file(&json, bytes));
    for name in names {
        // A star or a question mark in a name is matched by itself, and maybe by more.
        let options = chosen(Choice::matching([name]));
        let weights = Weights::load(&path, &options).unwrap();
        assert_eq!(weights.names().collect::<Vec<_>>(), [name]);
        let error = Weights::load(&path, &chosen(Choice::matching([format!("{name}!")])));
        let message = error.unwrap_err().to_string();
        assert!(
            message.len() < 1500 && message.lines().count() == 1,
            "{message}"
        );
        assert!(!message.contains('\u{1b}'));
    }
    let all = Weights::load(&path, &chosen(Choice::matching(["*"]))).unwrap();
    assert_eq!(all.names().count(), 5);
}

/// Lessons row 6 of weights: by choice a file with trailing bytes is a checkpoint, and loads.
#[test]
fn a_file_with_bytes_behind_its_tensors_is_loaded_by_choice() {
    let place = tempfile::tempdir().unwrap();
    let (json, bytes) = packed(&[("a", "U8", &[5], 5)]);
    let path = write(place.path(), "m", &file(&json, bytes + 1));
    assert!(matches!(
        Weights::load(&path, &LoadOptions::default()),
        Err(WeightsError::Format { .. })
    ));
    let options = LoadOptions {
        limits: HeaderLimits {
            allow_trailing: true,
            ..HeaderLimits::default()
        },
        ..LoadOptions::default()
    };
    let weights = Weights::load(&path, &options).unwrap();
    assert_eq!(
        *weights.raw("a").unwrap().read_bytes().unwrap(),
        [1, 2, 3, 4, 5]
    );
    assert_eq!(weights.report().read_bytes, 5);
}

/// Complaint 6 and 7 of the lessons: data that begins at an odd byte, and tensors behind odd
/// ones, are loaded aligned, also where they are cast in one read with their neighbours.
#[test]
fn data_that_begins_anywhere_is_loaded_aligned() {
    let place = tempfile::tempdir().unwrap();
    for spaces in 0..8 {
        let (json, bytes) = packed(&[
            ("odd", "U8", &[1], 1),
            ("f32", "F32", &[2], 8),
            ("bf16", "BF16", &[3], 6),
            ("f32 behind", "F32", &[1], 4),
        ]);
        let json = json + &" ".repeat(spaces);
        let path = write(place.path(), "m", &file(&json, bytes));
        let plain = Weights::load(&path, &LoadOptions::default()).unwrap();
        assert_eq!(plain.get("f32").unwrap().read::<f32>().unwrap().len(), 2);
        assert_eq!(
            *plain.raw("f32").unwrap().read_bytes().unwrap(),
            [2, 3, 4, 5, 6, 7, 8, 9]
        );
        let options = LoadOptions {
            dtype: Some(DType::F32),
            ..LoadOptions::default()
        };
        let cast = Weights::load(&path, &options).unwrap();
        for name in ["f32", "bf16", "f32 behind"] {
            let (cast, plain) = (cast.get(name).unwrap(), plain.get(name).unwrap());
            assert_eq!(cast.byte_offset() % 64, 0);
            let expected = tenslab::ops::cast(&plain, DType::F32, tenslab::memory::cpu()).unwrap();
            assert!(
                *cast.read_bytes().unwrap() == *expected.read_bytes().unwrap(),
                "{name}"
            );
        }
    }
}
