//! Sealed weights: those of a load, in one copy for several processes, and never believed.
#![cfg(all(target_os = "linux", not(loom), not(tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../checkpoint_files/mod.rs"]
mod checkpoint_files;
mod one_copy;
#[path = "../peak_memory/mod.rs"]
mod peak_memory;
mod stranger;

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use checkpoint_files::{awkward, file, packed, shared, write};
use tenslab::DType;
use tenslab::weights::{
    Backing, Checkpoint, Choice, HeaderLimits, LoadMode, LoadOptions, LoadProgress, SealedWeights,
    Shard, ShardRule, Weights, WeightsError,
};

pub(crate) fn options(threads: usize, dtype: Option<DType>) -> LoadOptions {
    LoadOptions {
        threads,
        dtype,
        ..LoadOptions::default()
    }
}

pub(crate) fn go_on(_: LoadProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(crate) fn seal(path: &Path) -> SealedWeights {
    Weights::seal(path, &LoadOptions::default()).unwrap()
}

pub(crate) fn map(sealed: &SealedWeights) -> Weights {
    Weights::map_sealed(sealed.try_clone().unwrap()).unwrap()
}

pub(crate) fn raw(weights: &Weights, name: &str) -> Vec<u8> {
    weights.raw(name).unwrap().read_bytes().unwrap().to_vec()
}

/// Seals it, maps it and compares all that can be had with a load.
fn is_sealed_as_it_is_loaded(path: &Path, options: &LoadOptions) {
    let loaded = Weights::load(path, options).unwrap();
    let sealed = Weights::seal(path, options).unwrap();
    let weights = map(&sealed);
    let what = format!("{} to {:?}", path.display(), options.dtype);
    for report in [sealed.report(), weights.report()] {
        assert_eq!(report.mode, LoadMode::Sealed);
        assert_eq!(report.files, loaded.report().files);
        assert_eq!(report.tensors, loaded.report().tensors);
        assert_eq!(report.file_bytes, loaded.report().file_bytes);
        assert_eq!(report.cast_tensors, loaded.report().cast_tensors, "{what}");
    }
    assert_eq!(sealed.report().copied_bytes, loaded.report().copied_bytes);
    assert_eq!(sealed.report().threads, loaded.report().threads);
    assert_eq!(weights.report().copied_bytes, 0);
    assert_eq!(weights.report().mapped_bytes, sealed.bytes());
    assert!(weights.names().eq(loaded.names()), "{what}");
    assert!(weights.entries().eq(loaded.entries()), "{what}");
    assert_eq!(weights.metadata(), loaded.metadata(), "{what}");
    assert_eq!(weights.checkpoint().path(), loaded.checkpoint().path());
    let files = |weights: &Weights| -> Vec<_> {
        let files = weights.checkpoint().files().iter();
        files
            .map(|file| (file.path().to_owned(), file.header().clone()))
            .collect()
    };
    assert_eq!(files(&weights), files(&loaded), "{what}");
    for name in loaded.names() {
        assert_eq!(weights.backing(name).unwrap(), Backing::Sealed);
        assert!(
            raw(&weights, name) == raw(&loaded, name),
            "{what}: {name:?}"
        );
        match (weights.get(name), loaded.get(name)) {
            (Ok(tensor), Ok(expected)) => {
                assert_eq!(tensor.shape(), expected.shape(), "{what}: {name:?}");
                assert_eq!(tensor.dtype(), expected.dtype(), "{what}: {name:?}");
                let address = tensor.storage().as_ptr().addr() + tensor.byte_offset();
                assert_eq!(address % 64, 0, "{what}: {name:?}");
                assert!(tensor.storage().is_frozen() && tensor.storage().is_mapped());
            }
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected.to_string()),
            (tensor, expected) => panic!("{what}: {name:?}: {tensor:?}, {expected:?}"),
        }
    }
    assert_eq!(
        weights.get("no such name").unwrap_err().to_string(),
        loaded.get("no such name").unwrap_err().to_string()
    );
}

#[test]
fn sealed_weights_are_those_of_a_load_for_any_threads_and_any_cast() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    for dtype in [None, Some(DType::F32), Some(DType::F16), Some(DType::BF16)] {
        for threads in [1, 2, 5] {
            is_sealed_as_it_is_loaded(&path, &options(threads, dtype));
        }
    }
}

#[test]
fn files_of_other_projects_are_sealed_as_they_are_loaded() {
    let (Some(root), Some(models)) = (shared("weights"), shared("models/tiny-llama")) else {
        return;
    };
    let (mut left, mut sealed) = (vec![root, models], 0);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|end| end == "safetensors")
                || path.ends_with("model.safetensors.index.json")
            {
                is_sealed_as_it_is_loaded(&path, &LoadOptions::default());
                sealed += 1;
            }
        }
    }
    assert!(sealed >= 14, "{sealed} checkpoints");
}

/// A small checkpoint of two files with metadata, an alias of it all.
pub(crate) fn small(directory: &Path) -> PathBuf {
    let (json, bytes) = packed(&[
        ("a", "F32", &[2, 3], 24),
        ("odd", "U8", &[3], 3),
        ("nothing", "BF16", &[0, 4], 0),
    ]);
    let json = json.replacen('{', r#"{"__metadata__":{"format":"pt"},"#, 1);
    write(directory, "one.safetensors", &file(&json, bytes));
    let (json, bytes) = packed(&[("b", "BF16", &[5], 10), ("raw", "F4", &[6], 3)]);
    write(directory, "two.safetensors", &file(&json, bytes));
    let index = r#"{"weight_map":{"a":"one.safetensors","odd":"one.safetensors",
        "nothing":"one.safetensors","b":"two.safetensors","raw":"two.safetensors"}}"#;
    write(directory, "model.safetensors.index.json", index.as_bytes())
}

#[test]
fn no_tensors_no_bytes_and_several_files_are_fine() {
    let place = tempfile::tempdir().unwrap();
    is_sealed_as_it_is_loaded(&small(place.path()), &LoadOptions::default());
    let none = write(place.path(), "none", &file("{}", 0));
    is_sealed_as_it_is_loaded(&none, &LoadOptions::default());
    let (json, _) = packed(&[("a", "F64", &[0, 3], 0)]);
    let empty = write(place.path(), "empty", &file(&json, 0));
    is_sealed_as_it_is_loaded(&empty, &LoadOptions::default());
}

#[test]
fn a_file_with_trailing_bytes_is_taken_by_who_maps_it_with_any_limits() {
    let place = tempfile::tempdir().unwrap();
    let (json, bytes) = packed(&[("a", "U8", &[4], 4)]);
    let path = write(place.path(), "x", &file(&json, bytes + 9));
    let limits = HeaderLimits {
        allow_trailing: true,
        ..HeaderLimits::default()
    };
    let options = LoadOptions {
        limits,
        ..LoadOptions::default()
    };
    let weights = map(&Weights::seal(&path, &options).unwrap());
    assert_eq!(raw(&weights, "a"), [1, 2, 3, 4]);
}

#[test]
fn tensors_outlive_everything_and_nobody_writes_to_them() {
    let place = tempfile::tempdir().unwrap();
    let sealed = seal(&awkward(place.path()));
    drop(place);
    let file = File::from(sealed.try_clone().unwrap());
    assert!(file.write_all_at(&[1], 0).is_err() && file.set_len(0).is_err());
    let weights = map(&sealed);
    let again = Weights::map_sealed(sealed).unwrap();
    let tensor = weights.get("f32").unwrap();
    let expected = raw(&again, "f32");
    drop((weights, again, file));
    assert_eq!(*tensor.read_bytes().unwrap(), expected[..]);
    assert!(tensor.write::<f32>().is_err());
}

/// What was chosen and what is one rank's part are that in every process.
#[test]
fn a_choice_and_a_part_are_sealed_as_they_are_loaded() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    for (rank, dtype) in [(0, None), (1, Some(DType::F32))] {
        let shard = Shard {
            dim: 0,
            rank,
            world: 2,
            uneven: true,
        };
        let options = LoadOptions {
            choice: Choice::matching(["*many threads*", "other", "last"]),
            shards: vec![ShardRule::part("f16*", shard)],
            ..options(2, dtype)
        };
        is_sealed_as_it_is_loaded(&path, &options);
        let weights = map(&Weights::seal(&path, &options).unwrap());
        let part = weights.get("f16 of many threads").unwrap();
        assert_eq!(part.shape().dims(), [500, 2100]);
        let error = weights.get("small").unwrap_err();
        assert!(matches!(error, WeightsError::LeftOut { .. }), "{error}");
        assert!(weights.report().left_out > 5);
    }
}

#[test]
fn progress_grows_to_the_total_and_what_cannot_be_loaded_is_not_sealed() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut seen: Vec<LoadProgress> = Vec::new();
    Weights::seal_checkpoint(&checkpoint, &options(1, None), &mut |p| {
        seen.push(p);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(seen.len() > 5 && seen.is_sorted_by(|a, b| a.done_bytes < b.done_bytes));
    let stopped = Weights::seal_checkpoint(&checkpoint, &options(2, None), &mut |p| match p
        .done_bytes
        > 0
    {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    let stopped = stopped.unwrap_err();
    assert!(
        matches!(stopped, WeightsError::Cancelled { .. }),
        "{stopped}"
    );
    assert_eq!(seen.last().unwrap().done_bytes, checkpoint.tensor_bytes());
    let error = Weights::seal(&path, &options(0, None)).unwrap_err();
    assert!(matches!(error, WeightsError::NoThreads), "{error}");
    let error = Weights::seal(&path, &options(1, Some(DType::I8))).unwrap_err();
    assert!(matches!(error, WeightsError::CastTarget { .. }), "{error}");
    let cut = File::options().write(true).open(&path).unwrap();
    cut.set_len(1_000_000).unwrap();
    let error = Weights::seal_checkpoint(&checkpoint, &options(2, None), &mut go_on).unwrap_err();
    assert!(matches!(error, WeightsError::FileChanged { .. }), "{error}");
}

#[test]
fn a_checkpoint_from_sealed_memory_is_of_no_file() {
    let place = tempfile::tempdir().unwrap();
    let path = small(place.path());
    let checkpoint = map(&seal(&path)).checkpoint().clone();
    let error = Weights::load_checkpoint(checkpoint, &LoadOptions::default(), &mut go_on);
    let message = error.unwrap_err().to_string();
    assert!(
        message.contains("its header came in sealed memory"),
        "{message}"
    );
}
