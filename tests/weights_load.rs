//! Loading: every byte in its place, whatever the threads, the shards and the cast.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;

use checkpoint_files::{awkward, file, packed, shared, write};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use tenslab::memory::{SharedAllocator, SlabAllocator, Tag};
use tenslab::types::half;
use tenslab::weights::{Checkpoint, LoadOptions, LoadProgress, Weights, WeightsError};
use tenslab::{CpuAllocator, DType, bf16, f16};

fn options(threads: usize, dtype: Option<DType>) -> LoadOptions {
    LoadOptions {
        threads,
        dtype,
        ..LoadOptions::default()
    }
}

fn load(path: &Path) -> Weights {
    Weights::load(path, &options(2, None)).unwrap()
}

/// The bytes of a tensor, whatever it is.
fn raw(weights: &Weights, name: &str) -> Vec<u8> {
    weights.raw(name).unwrap().read_bytes().unwrap().to_vec()
}

/// What a cast of the file's bytes must be, value by value.
fn cast(bytes: &[u8], from: DType, to: DType) -> Vec<u8> {
    let is_cast = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if from == to || !is_cast(from) {
        return bytes.to_vec();
    }
    let two = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    bytes
        .chunks_exact(from.bytes())
        .map(|bytes| match from {
            DType::F16 => half::f16_to_f32(f16::from_bits(two(bytes))),
            DType::BF16 => half::bf16_to_f32(bf16::from_bits(two(bytes))),
            _ => f32::from_le_bytes(bytes.try_into().unwrap()),
        })
        .flat_map(|value| match to {
            DType::F16 => half::f16_from_f32(value).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16_from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        })
        .collect()
}

#[test]
fn all_bytes_are_in_their_place_for_any_threads_and_any_cast() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let content = fs::read(&path).unwrap();
    let reference = SafeTensors::deserialize(&content).unwrap();
    for dtype in [None, Some(DType::F32), Some(DType::F16), Some(DType::BF16)] {
        for threads in [1, 2, 5] {
            let weights = Weights::load(&path, &options(threads, dtype)).unwrap();
            assert_eq!(weights.report().threads, threads);
            assert_eq!(weights.names().count(), reference.len());
            let mut casts = 0;
            for entry in weights.entries() {
                let (name, view) = (entry.name(), reference.tensor(entry.name()).unwrap());
                let host = entry.dtype().host();
                let expected = match (host, dtype) {
                    (Some(from), Some(to)) => {
                        casts += usize::from(
                            from != to && matches!(from, DType::F32 | DType::F16 | DType::BF16),
                        );
                        cast(view.data(), from, to)
                    }
                    _ => view.data().to_vec(),
                };
                let found = weights.raw(name).unwrap();
                assert_eq!(found.byte_offset() % 64, 0, "{name}");
                assert!(
                    *found.read_bytes().unwrap() == expected[..],
                    "{name} with {threads} threads to {dtype:?}"
                );
                let Some(loadable) = entry.dtype().loadable() else {
                    assert!(matches!(
                        weights.get(name),
                        Err(WeightsError::UnsupportedDType { tag, .. }) if tag == entry.dtype().tag()
                    ));
                    continue;
                };
                let tensor = weights.get(name).unwrap();
                assert_eq!(tensor.shape(), &entry.shape());
                let address = tensor.storage().as_ptr().addr() + tensor.byte_offset();
                assert_eq!(address % 64, 0, "{name}");
                let is_cast = matches!(loadable, DType::F32 | DType::F16 | DType::BF16);
                let expected = dtype.filter(|_| is_cast).unwrap_or(loadable);
                assert_eq!(tensor.dtype(), expected, "{name}");
                assert!(tensor.storage().is_frozen());
            }
            assert_eq!(weights.report().cast_tensors, casts);
        }
    }
}

#[test]
fn the_report_adds_up() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let weights = Weights::load(&path, &options(2, Some(DType::F32))).unwrap();
    let report = weights.report();
    let tensors: u64 = weights
        .names()
        .map(|name| raw(&weights, name).len() as u64)
        .sum();
    assert_eq!((report.files, report.tensors), (1, 17));
    assert_eq!(report.file_bytes, fs::metadata(&path).unwrap().len());
    assert_eq!(report.copied_bytes, tensors);
    assert_eq!(report.slab_bytes, weights.storages()[0].len());
    assert!(report.slab_bytes as u64 - tensors < 64 * 17);
    assert!(report.seconds > 0.0);
}

#[test]
fn the_slab_is_one_allocation_that_outlives_everything_but_its_tensors() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let allocator = SharedAllocator::new(CpuAllocator::new());
    let weights = Weights::load(
        &path,
        &LoadOptions {
            allocator: allocator.clone(),
            ..LoadOptions::default()
        },
    )
    .unwrap();
    assert_eq!(allocator.outstanding(), 1);
    assert_eq!(weights.storages()[0].tag(), Tag::Weights);
    let tensor = weights.get("f32").unwrap();
    let expected = raw(&weights, "f32");
    drop(weights);
    assert_eq!(allocator.outstanding(), 1);
    assert_eq!(*tensor.read_bytes().unwrap(), expected[..]);
    drop(tensor);
    assert_eq!(allocator.outstanding(), 0);
}

#[test]
fn weights_are_shared_by_threads() {
    fn shared_by_threads<T: Send + Sync>(_: &T) {}
    let place = tempfile::tempdir().unwrap();
    let weights = load(&awkward(place.path()));
    shared_by_threads(&weights);
    let expected = raw(&weights, "integers");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(raw(&weights, "integers") == expected));
        }
    });
}

#[test]
fn progress_grows_to_the_total() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let total_bytes = checkpoint.tensor_bytes();
    let mut seen: Vec<LoadProgress> = Vec::new();
    Weights::load_checkpoint(checkpoint, &options(1, None), &mut |p| {
        seen.push(p);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(seen.len() > 5, "{} calls", seen.len());
    assert!(seen.is_sorted_by(|a, b| a.done_bytes < b.done_bytes));
    assert!(seen.iter().all(|p| p.total_bytes == total_bytes));
    assert_eq!(seen.last().unwrap().done_bytes, total_bytes);
}

#[test]
fn a_name_that_is_not_there_brings_those_that_are_like_it() {
    let place = tempfile::tempdir().unwrap();
    let weights = load(&awkward(place.path()));
    let Err(WeightsError::NotFound { tensors, close, .. }) = weights.get("f33") else {
        panic!("another error");
    };
    assert_eq!(tensors, 17);
    assert!(close.contains(&"f32".to_string()), "{close:?}");
    let message = weights.get("model.norm.weight").unwrap_err().to_string();
    assert!(message.contains("among the 17"), "{message}");
}

#[test]
fn options_that_make_no_sense_are_errors() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    assert!(matches!(
        Weights::load(&path, &options(0, None)),
        Err(WeightsError::NoThreads)
    ));
    for dtype in [DType::I8, DType::F64, DType::F8E4M3] {
        assert!(matches!(
            Weights::load(&path, &options(1, Some(dtype))),
            Err(WeightsError::CastTarget { dtype: found }) if found == dtype
        ));
    }
}

#[test]
fn an_allocator_that_cannot_is_an_error_that_holds_nothing() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let allocator = SharedAllocator::new(SlabAllocator::new(4096, 2).unwrap());
    let options = LoadOptions {
        allocator: allocator.clone(),
        ..LoadOptions::default()
    };
    let error = Weights::load(&path, &options).unwrap_err();
    let WeightsError::Memory {
        bytes,
        what: "weights",
        ..
    } = error
    else {
        panic!("{error:?}");
    };
    assert!(bytes > 30_000_000);
    assert_eq!(allocator.outstanding(), 0);

    // A small checkpoint fits a block, and the slab may hand out old bytes.
    let (json, data) = packed(&[("a", "U8", &[3], 3), ("b", "F32", &[2], 8)]);
    let small = write(place.path(), "small.safetensors", &file(&json, data));
    let weights = Weights::load(&small, &options).unwrap();
    assert_eq!(raw(&weights, "b"), [4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(allocator.outstanding(), 1);
}

#[test]
fn a_tensor_of_more_bytes_than_one_read_moves_is_read() {
    // 2.1 GiB, nearly all of it a hole in the file.
    if std::env::var_os("TENSLAB_LONG").is_none() || cfg!(tenslab_asan) {
        eprintln!("skipped: takes 2.1 GiB of memory; set TENSLAB_LONG to run it");
        return;
    }
    use std::os::unix::fs::FileExt;
    let place = tempfile::tempdir().unwrap();
    let bytes = 0x8600_0000_u64;
    let (json, _) = packed(&[("large", "U8", &[bytes], bytes)]);
    let path = write(place.path(), "large.safetensors", &file(&json, 0));
    let start = fs::metadata(&path).unwrap().len();
    let out = File::options().write(true).open(&path).unwrap();
    out.set_len(start + bytes).unwrap();
    let marks = [0, 0x7fff_efff, 0x7fff_f000, 0x8000_0000, bytes - 1];
    for (at, mark) in marks.into_iter().zip(1..) {
        out.write_all_at(&[mark], start + at).unwrap();
    }
    let weights = load(&path);
    let large = weights.raw("large").unwrap();
    let read = large.read_bytes().unwrap();
    for (at, mark) in marks.into_iter().zip(1..) {
        assert_eq!(read[usize::try_from(at).unwrap()], mark);
    }
    assert_eq!(read.iter().filter(|&&byte| byte != 0).count(), marks.len());
}

#[test]
fn the_files_of_other_projects_open_load_and_are_read_as_the_reference_reads_them() {
    let Some(root) = shared("weights") else {
        return;
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(&root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            files.push(path);
        }
    }
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "safetensors")
    });
    assert!(files.len() >= 9, "{} files", files.len());
    for path in files {
        let content = fs::read(&path).unwrap();
        let reference = SafeTensors::deserialize(&content).unwrap();
        let weights = load(&path);
        assert_eq!(
            weights.names().count(),
            reference.len(),
            "{}",
            path.display()
        );
        for name in weights.names() {
            let view = reference.tensor(name).unwrap();
            assert!(
                raw(&weights, name) == view.data(),
                "{}: {name:?}",
                path.display()
            );
        }
    }
}

#[test]
fn all_dtypes_of_the_format_are_listed_and_equal_their_digests() {
    let (Some(path), Some(digests)) = (
        shared("weights/all_dtypes.safetensors"),
        shared("oracle/tensor_digests.json"),
    ) else {
        return;
    };
    let digests: serde_json::Value = serde_json::from_slice(&fs::read(digests).unwrap()).unwrap();
    let digests = digests["all_dtypes (mk_awkward.py), matrices only"]["tensors"]
        .as_object()
        .unwrap();
    let weights = load(&path);
    for (name, expected) in digests {
        let entry = weights.checkpoint().entry(name).unwrap();
        let hash = Sha256::digest(raw(&weights, name));
        let hex: String = hash
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let found = serde_json::json!([entry.dtype().tag(), entry.shape().dims(), hex]);
        assert_eq!(&found, expected, "{name}");
    }
    assert_eq!(digests.len(), 22);

    let tags: std::collections::BTreeSet<_> =
        weights.entries().map(|entry| entry.dtype().tag()).collect();
    assert_eq!(tags.len(), 22);
    // A tensor can be had of each dtype that the crate has tensors of, also empty ones.
    let loaded = weights.entries().filter(|e| e.dtype().loadable().is_some());
    let mut count = 0;
    for entry in loaded {
        assert_eq!(weights.get(entry.name()).unwrap().shape(), &entry.shape());
        count += 1;
    }
    assert!(count > 2000, "{count} tensors");
}

#[test]
fn one_file_and_two_shards_are_the_same_weights() {
    let (Some(one), Some(two)) = (
        shared("models/tiny-llama/bf16"),
        shared("models/tiny-llama/bf16-2shard"),
    ) else {
        return;
    };
    for dtype in [None, Some(DType::F32)] {
        let one = Weights::load(&one, &options(1, dtype)).unwrap();
        let two = Weights::load(&two, &options(2, dtype)).unwrap();
        assert_eq!((one.report().files, two.report().files), (1, 2));
        let mut names: Vec<_> = one.names().collect();
        let mut of_two: Vec<_> = two.names().collect();
        names.sort_unstable();
        of_two.sort_unstable();
        assert_eq!(names, of_two);
        for name in names {
            let (a, b) = (one.get(name).unwrap(), two.get(name).unwrap());
            assert_eq!((a.shape(), a.dtype()), (b.shape(), b.dtype()), "{name}");
            assert!(
                *a.read_bytes().unwrap() == *b.read_bytes().unwrap(),
                "{name}"
            );
        }
    }
}
