//! What is mapped is what is loaded, under each policy.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tenslab::tensor::TensorError;
use tenslab::weights::{
    Backing, Checkpoint, LoadMode, LoadOptions, MapOptions, Misaligned, Weights, WeightsError,
};

use crate::checkpoint_files::{awkward, entry, file, object, packed, shared, write};
use crate::holdings::mappings;

const POLICIES: [Misaligned; 3] = [
    Misaligned::Realign,
    Misaligned::Error,
    Misaligned::BytesOnly,
];

pub(crate) fn map(path: &Path, misaligned: Misaligned) -> Result<Weights, WeightsError> {
    let options = MapOptions {
        misaligned,
        ..MapOptions::default()
    };
    // SAFETY: the file is this test's alone, or one that nobody writes to.
    unsafe { Weights::map(path, &options) }
}

pub(crate) fn load(path: &Path) -> Weights {
    Weights::load(path, &LoadOptions::default()).unwrap()
}

pub(crate) fn raw(weights: &Weights, name: &str) -> Vec<u8> {
    weights.raw(name).unwrap().read_bytes().unwrap().to_vec()
}

/// Names of tensors that do not begin at a multiple of their width.
pub(crate) fn misaligned(checkpoint: &Checkpoint) -> Vec<&str> {
    let entries = checkpoint.entries().filter(|entry| {
        let dtype = entry.dtype().loadable();
        dtype.is_some_and(|dtype| !entry.offset().is_multiple_of(dtype.bytes() as u64))
            && entry.nbytes() > 0
    });
    entries.map(|entry| entry.name()).collect()
}

/// Maps it under each policy and compares all that can be had with a load.
pub(crate) fn is_mapped_as_it_is_loaded(path: &Path) {
    let loaded = load(path);
    let wrong: BTreeSet<_> = misaligned(loaded.checkpoint()).into_iter().collect();
    let wrong_bytes: u64 = wrong
        .iter()
        .map(|name| raw(&loaded, name).len() as u64)
        .sum();
    for policy in POLICIES {
        let what = format!("{}, {policy:?}", path.display());
        let weights = match map(path, policy) {
            Err(WeightsError::MisalignedTensors { count, bytes, .. }) => {
                assert_eq!(policy, Misaligned::Error, "{what}");
                assert_eq!((count, bytes), (wrong.len(), wrong_bytes), "{what}");
                continue;
            }
            other => other.unwrap_or_else(|error| panic!("{what}: {error}")),
        };
        let copied = policy == Misaligned::Realign;
        let report = weights.report();
        assert_eq!(report.mode, LoadMode::Map);
        assert_eq!(
            (report.files, report.tensors),
            (loaded.report().files, loaded.report().tensors)
        );
        assert_eq!(report.mapped_bytes, weights.checkpoint().tensor_bytes());
        assert_eq!(
            report.realigned_tensors,
            if copied { wrong.len() } else { 0 },
            "{what}"
        );
        assert_eq!(
            report.realigned_bytes,
            if copied { wrong_bytes } else { 0 },
            "{what}"
        );
        assert_eq!(report.copied_bytes, report.realigned_bytes);
        assert!(report.slab_bytes as u64 - report.copied_bytes <= 64 * wrong.len() as u64);
        assert!(weights.names().eq(loaded.names()) && weights.metadata() == loaded.metadata());
        for entry in weights.entries() {
            let name = entry.name();
            assert!(
                raw(&weights, name) == raw(&loaded, name),
                "{what}: {name:?}"
            );
            let backing = weights.backing(name).unwrap();
            let is_wrong = wrong.contains(name);
            if is_wrong && copied {
                assert_eq!(backing, Backing::Realigned, "{what}: {name:?}");
            } else {
                assert_eq!(backing, Backing::Mapped, "{what}: {name:?}");
            }
            let Some(dtype) = entry.dtype().loadable() else {
                let error = weights.get(name).unwrap_err();
                assert!(
                    matches!(error, WeightsError::UnsupportedDType { .. }),
                    "{error}"
                );
                continue;
            };
            if is_wrong && policy == Misaligned::BytesOnly {
                let error = weights.get(name).unwrap_err();
                let WeightsError::Misaligned {
                    offset,
                    dtype: found,
                    ..
                } = &error
                else {
                    panic!("{error}");
                };
                assert_eq!((*offset, *found), (entry.offset(), dtype));
                continue;
            }
            let tensor = weights.get(name).unwrap();
            assert_eq!((tensor.shape(), tensor.dtype()), (&entry.shape(), dtype));
            assert!(tensor.storage().is_frozen() && tensor.is_contiguous());
            assert_eq!(tensor.storage().is_mapped(), backing == Backing::Mapped);
            let address = tensor.storage().as_ptr().addr() + tensor.byte_offset();
            assert!(address.is_multiple_of(dtype.bytes()), "{what}: {name:?}");
            assert!(address > 0);
        }
    }
}

#[test]
fn an_awkward_file_is_mapped_as_it_is_loaded_wherever_its_data_begins() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let content = fs::read(&path).unwrap();
    let (length, rest) = content.split_first_chunk().unwrap();
    let (json, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
    let mut wrong = 0;
    for spaces in 0..8 {
        let header_bytes = (json.len() + spaces) as u64;
        let spaces = vec![b' '; spaces];
        let bytes = [&header_bytes.to_le_bytes(), json, &spaces, data].concat();
        fs::write(&path, bytes).unwrap();
        wrong += misaligned(&Checkpoint::open(&path).unwrap()).len();
        is_mapped_as_it_is_loaded(&path);
    }
    assert!(wrong > 20, "{wrong}");
}

#[test]
fn files_of_other_projects_are_mapped_as_they_are_loaded() {
    let (Some(root), Some(models)) = (shared("weights"), shared("models/tiny-llama")) else {
        return;
    };
    let (mut left, mut mapped) = (vec![root, models], 0);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|end| end == "safetensors")
                || path.ends_with("model.safetensors.index.json")
            {
                is_mapped_as_it_is_loaded(&path);
                mapped += 1;
            }
        }
    }
    assert!(mapped >= 14, "{mapped} checkpoints");
}

/// Rows 6, 7, 9 and 11 of the complaints: an odd tensor in front, a header of odd length,
/// and no panic and no misaligned slice of either.
#[test]
fn what_lies_at_an_odd_byte_is_copied_refused_or_bytes() {
    let place = tempfile::tempdir().unwrap();
    let (json, bytes) = packed(&[("odd", "U8", &[1], 1), ("f32", "F32", &[3], 12)]);
    let spaces = (8 + json.len()).next_multiple_of(8) - 8 - json.len();
    let behind_one_byte = json.clone() + &" ".repeat(spaces);
    let (json, _) = packed(&[("f32", "F32", &[3], 12), ("odd", "U8", &[1], 1)]);
    let odd_header = json.clone() + &" ".repeat(usize::from(json.len() % 2 == 0));
    for (name, json) in [("a", behind_one_byte), ("b", odd_header)] {
        let path = write(place.path(), name, &file(&json, bytes));
        is_mapped_as_it_is_loaded(&path);
        let whole = map(&path, Misaligned::Realign).unwrap();
        assert_eq!(whole.get("f32").unwrap().read::<f32>().unwrap().len(), 3);
        let offset = whole.checkpoint().entry("f32").unwrap().offset();
        let message = map(&path, Misaligned::Error).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "{}: 1 of 2 tensors (12 bytes) are not aligned to their elements in the \
                 file: \"f32\" (float32) at byte {offset}; load it, or have them copied with \
                 Misaligned::Realign",
                path.display()
            )
        );
        let bytes = map(&path, Misaligned::BytesOnly).unwrap();
        assert_eq!(
            bytes.get("f32").unwrap_err().to_string(),
            format!(
                "tensor \"f32\" begins at byte {offset} of {}, and float32 elements need a \
                 multiple of 4; its bytes can be had raw, or load it",
                path.display()
            )
        );
        // Nor is there a slice to be had through the bytes.
        let raw = bytes.raw("f32").unwrap();
        let error = raw.read::<f32>().unwrap_err();
        assert!(
            matches!(error, TensorError::DTypeMismatch { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_refusal_counts_all_and_names_ten_thousand() {
    let place = tempfile::tempdir().unwrap();
    let mut entries = vec![entry("odd", "U8", &[1], 0, 1)];
    for at in 0..10_001 {
        let begin = 1 + at * 2;
        entries.push(entry(&format!("t{at}"), "F16", &[1], begin, begin + 2));
    }
    let json = object(&entries);
    let json = json.clone() + &" ".repeat(json.len() % 2);
    let path = write(place.path(), "x", &file(&json, 20_003));
    let error = map(&path, Misaligned::Error).unwrap_err();
    let message = error.to_string();
    let WeightsError::MisalignedTensors {
        misaligned,
        count,
        bytes,
        tensors,
        ..
    } = error
    else {
        panic!("{message}");
    };
    assert_eq!((misaligned.len(), count), (10_000, 10_001));
    assert_eq!((bytes, tensors), (20_002, 10_002));
    assert!(
        message.contains("\"t7\"") && message.contains("and 9993 more"),
        "{message}"
    );
}

#[test]
fn no_tensors_and_no_bytes_are_fine() {
    let place = tempfile::tempdir().unwrap();
    let none = write(place.path(), "none", &file("{}", 0));
    let weights = map(&none, Misaligned::Realign).unwrap();
    assert_eq!(weights.names().count(), 0);
    let (json, _) = packed(&[("a", "F64", &[0, 3], 0), ("b", "BF16", &[0], 0)]);
    for spaces in 0..8 {
        let json = json.clone() + &" ".repeat(spaces);
        let path = write(place.path(), "empty", &file(&json, 0));
        for policy in POLICIES {
            let weights = map(&path, policy).unwrap();
            assert!(weights.get("a").unwrap().read::<f64>().unwrap().is_empty());
            assert!(weights.get("b").unwrap().numel() == 0);
            assert_eq!(weights.report().copied_bytes, 0);
        }
    }
}

/// A checkpoint of three shards, with an odd byte in the second.
pub(crate) fn three_shards(directory: &Path) -> PathBuf {
    let mut map = Vec::new();
    for shard in 0..3_u64 {
        let [a, b, c] = ["a", "b", "c"].map(|name| format!("{name}.{shard}"));
        let (json, bytes) = packed(&[
            (&a, "U8", &[shard * 4 + shard % 2], shard * 4 + shard % 2),
            (&b, "F32", &[1000], 4000),
            (&c, "BF16", &[77], 154),
        ]);
        let spaces = (8 + json.len()).next_multiple_of(8) - 8 - json.len();
        let json = json.clone() + &" ".repeat(spaces);
        let name = format!("model-{shard}.safetensors");
        write(directory, &name, &file(&json, bytes));
        map.extend([a, b, c].map(|tensor| format!("{tensor:?}:{name:?}")));
    }
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
    write(directory, "model.safetensors.index.json", index.as_bytes())
}

#[test]
fn three_shards_are_three_mappings_and_one_slab() {
    let place = tempfile::tempdir().unwrap();
    let path = three_shards(place.path());
    is_mapped_as_it_is_loaded(&path);
    let weights = map(&path, Misaligned::Realign).unwrap();
    assert_eq!(weights.report().realigned_tensors, 2);
    // Three mappings, the slab, and the place of what has no bytes.
    let mapped = weights
        .storages()
        .iter()
        .filter(|storage| storage.is_mapped());
    assert_eq!((weights.storages().len(), mapped.count()), (5, 4));
    assert_eq!(weights.report().slab_bytes, 4032 + 154);
    assert_eq!(mappings(place.path()), 3);
    drop(weights);
    assert_eq!(mappings(place.path()), 0);
}
