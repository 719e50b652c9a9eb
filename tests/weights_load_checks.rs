//! What a load checks and does by choice: numbers, digests, pages, the page cache.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::path::{Path, PathBuf};

use checkpoint_files::{file, packed, write};
use tenslab::memory::SharedAllocator;
use tenslab::weights::{
    LoadOptions, NonFinite, NonFiniteTensor, Shard, ShardRule, Weights, WeightsError,
};
use tenslab::{CpuAllocator, DType, bf16};

/// Finite numbers but for some of `"b"` and `"c"`, which take several pieces.
fn model(directory: &Path) -> PathBuf {
    let (json, _) = packed(&[
        ("a", "BF16", &[3], 6),
        ("b", "BF16", &[1000, 1000], 2_000_000),
        ("c", "F32", &[500, 1000], 2_000_000),
        ("d", "F64", &[2], 16),
        ("bits", "I64", &[1], 8),
    ]);
    let mut b = vec![bf16::ONE; 1_000_000];
    for at in [999_999, 400_000, 700_123] {
        b[at] = bf16::NAN;
    }
    b[400_001] = bf16::NEG_INFINITY;
    let mut c = vec![1.0_f32; 500_000];
    c[270_000] = f32::INFINITY;
    // Finite, but not as f16.
    c[270_001] = 1e6;
    let mut content = file(&json, 0);
    content.extend([bf16::ONE; 3].iter().flat_map(|value| value.to_le_bytes()));
    content.extend(b.iter().flat_map(|value| value.to_le_bytes()));
    content.extend(c.iter().flat_map(|value| value.to_le_bytes()));
    content.extend(
        [1.0_f64, f64::MAX]
            .iter()
            .flat_map(|value| value.to_le_bytes()),
    );
    content.extend([0xff; 8]);
    write(directory, "model.safetensors", &content)
}

fn found(name: &str, count: u64, first: usize) -> NonFiniteTensor {
    NonFiniteTensor {
        name: name.into(),
        count,
        first,
    }
}

#[test]
fn values_that_are_no_numbers_are_counted_where_they_are_in_memory() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let scan = |threads, dtype| LoadOptions {
        threads,
        dtype,
        non_finite: NonFinite::Report,
        ..LoadOptions::default()
    };
    for threads in [1, 4] {
        let report = |dtype| {
            let weights = Weights::load(&path, &scan(threads, dtype)).unwrap();
            weights.report().non_finite.clone()
        };
        let (b, c) = (found("b", 4, 400_000), found("c", 1, 270_000));
        assert_eq!(report(None), [b.clone(), c.clone()]);
        assert_eq!(report(Some(DType::F32)), [b.clone(), c]);
        assert_eq!(report(Some(DType::F16)), [b, found("c", 2, 270_000)]);
    }
    let weights = Weights::load(&path, &LoadOptions::default()).unwrap();
    assert_eq!(weights.report().non_finite, []);

    // Of a part, counted in the part: columns 100 to 200 of 1,000.
    let shard = Shard {
        dim: 1,
        rank: 1,
        world: 10,
        uneven: false,
    };
    let options = LoadOptions {
        shards: vec![ShardRule::part("b", shard)],
        ..scan(2, None)
    };
    let weights = Weights::load(&path, &options).unwrap();
    let expected = [found("b", 1, 700 * 100 + 23), found("c", 1, 270_000)];
    assert_eq!(weights.report().non_finite, expected);
}

#[test]
fn a_value_that_is_no_number_is_refused_by_choice() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let allocator = SharedAllocator::new(CpuAllocator::new());
    let options = LoadOptions {
        allocator: allocator.clone(),
        non_finite: NonFinite::Refuse,
        ..LoadOptions::default()
    };
    let error = Weights::load(&path, &options).unwrap_err();
    let message = error.to_string();
    assert!(
        message.ends_with(
            "4 values of tensor \"b\" are NaN or infinite, element 400000 is the first; \
             2 tensors have some"
        ),
        "{message}"
    );
    assert!(matches!(error, WeightsError::NonFinite { tensors: 2, .. }));
    assert_eq!(allocator.outstanding(), 0);
}

#[cfg(feature = "sha256")]
mod digests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::ops::ControlFlow;

    use sha2::{Digest, Sha256};
    use tenslab::weights::{Checkpoint, HeaderLimits, LoadProgress, Sha256Digest};

    use super::*;

    fn digest(path: &Path) -> Sha256Digest {
        Sha256Digest::from_bytes(Sha256::digest(fs::read(path).unwrap()).into())
    }

    /// Lessons, complaint 34 of weights: bytes that rotted are found.
    #[test]
    fn one_byte_that_differs_is_found() {
        let place = tempfile::tempdir().unwrap();
        let path = model(place.path());
        let expected = digest(&path);
        let allocator = SharedAllocator::new(CpuAllocator::new());
        let options = |name: &str, digest| LoadOptions {
            allocator: allocator.clone(),
            sha256: Some(BTreeMap::from([(name.into(), digest)])),
            ..LoadOptions::default()
        };
        let weights = Weights::load(&path, &options("model.safetensors", expected)).unwrap();
        let digests = &weights.report().digests;
        assert_eq!((digests.len(), digests[0].sha256), (1, expected));
        assert_eq!(digests[0].path, path);
        drop(weights);

        let mut content = fs::read(&path).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        fs::write(&path, &content).unwrap();
        let error = Weights::load(&path, &options("model.safetensors", expected)).unwrap_err();
        let WeightsError::Digest {
            expected: wanted,
            found,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((**wanted, **found), (expected, digest(&path)));
        assert_eq!(allocator.outstanding(), 0);

        let error = Weights::load(&path, &options("model.safetensor", expected)).unwrap_err();
        assert!(matches!(error, WeightsError::NoSuchFile { .. }), "{error}");
        assert!(matches!(
            Weights::load(&path, &LoadOptions { sha256: Some(BTreeMap::new()), ..LoadOptions::default() }),
            Ok(weights) if weights.report().digests.len() == 1
        ));
    }

    #[test]
    fn files_are_hashed_and_loaded_as_one_progress() {
        let place = tempfile::tempdir().unwrap();
        let (mut files, mut expected) = (Vec::new(), BTreeMap::new());
        for number in 0..3_u64 {
            let bytes = number * 1_000_000;
            let (json, data) = packed(&[(&*format!("t{number}"), "U8", &[bytes], bytes)]);
            let name = format!("{number}.safetensors");
            files.push(write(place.path(), &name, &file(&json, data)));
            expected.insert(name, digest(&files[files.len() - 1]));
        }
        let checkpoint = Checkpoint::open_files(&files, &HeaderLimits::default()).unwrap();
        let total = checkpoint.file_bytes() + checkpoint.tensor_bytes();
        for threads in [1, 3] {
            let options = LoadOptions {
                threads,
                sha256: Some(expected.clone()),
                ..LoadOptions::default()
            };
            let mut seen: Vec<LoadProgress> = Vec::new();
            let weights = Weights::load_checkpoint(checkpoint.clone(), &options, &mut |at| {
                seen.push(at);
                ControlFlow::Continue(())
            });
            let weights = weights.unwrap();
            assert!(seen.is_sorted_by_key(|at| at.done_bytes));
            assert_eq!((seen[0].done_bytes, seen[0].total_bytes), (0, total));
            assert_eq!(seen[seen.len() - 1].done_bytes, total);
            let found: Vec<_> = weights.report().digests.iter().map(|d| d.sha256).collect();
            assert_eq!(found, expected.values().copied().collect::<Vec<_>>());

            // Cancelled within the digests.
            let error = Weights::load_checkpoint(checkpoint.clone(), &options, &mut |at| match at
                .done_bytes
                > 0
            {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            });
            assert!(matches!(error, Err(WeightsError::Cancelled { .. })));
        }
    }
}

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod pages {
    use std::fs::{self, File};

    use tenslab::memory::{Tag, map_file, resident_bytes};

    use super::*;

    #[test]
    fn pages_are_read_only_by_choice() {
        let place = tempfile::tempdir().unwrap();
        let path = model(place.path());
        let options = LoadOptions {
            protect: true,
            ..LoadOptions::default()
        };
        let weights = Weights::load(&path, &options).unwrap();
        let report = weights.report();
        assert!(report.protected_bytes >= report.slab_bytes);
        // The kernel says so, too.
        let address = weights.storages()[0].as_ptr().addr();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (begin, rest) = line.split_once('-').unwrap();
            let (end, _) = rest.split_once(' ').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(begin)..number(end)).contains(&address)
        });
        assert!(line.unwrap().contains(" r--p "), "{line:?}");
        let plain = Weights::load(&path, &LoadOptions::default()).unwrap();
        assert_eq!(plain.report().protected_bytes, 0);
    }

    /// Bytes of a file that are in the page cache.
    fn cached(path: &Path) -> usize {
        let file = File::open(path).unwrap();
        let bytes = file.metadata().unwrap().len();
        // SAFETY: nobody changes the file.
        let mapped = unsafe { map_file(&file, 0..bytes, Tag::Other) }.unwrap();
        let tensor = tenslab::Tensor::from_storage(&mapped, 0, [mapped.len()], DType::U8).unwrap();
        resident_bytes(&tensor.read_bytes().unwrap()).unwrap()
    }

    #[test]
    fn the_page_cache_is_dropped_by_choice() {
        // Beside the package: a file system in memory has no cache to drop.
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = model(place.path());
        File::open(&path).unwrap().sync_all().unwrap();
        Weights::load(&path, &LoadOptions::default()).unwrap();
        let before = cached(&path);
        assert!(before > 3_900_000, "{before}");
        let options = LoadOptions {
            drop_page_cache: true,
            ..LoadOptions::default()
        };
        let weights = Weights::load(&path, &options).unwrap();
        let after = cached(&path);
        assert!(
            after < before / 4,
            "{after} of {before} bytes are cached still"
        );
        assert_eq!(weights.get("d").unwrap().numel(), 2);
    }

    /// Complaints 15 and 18 of the lessons: nothing of the file is mapped, not even while it is
    /// read.
    #[test]
    fn a_load_does_not_map_the_file() {
        use std::ops::ControlFlow;
        use tenslab::weights::Checkpoint;
        let place = tempfile::tempdir().unwrap();
        let path = model(place.path());
        let name = path.to_str().unwrap();
        let mut looked = 0;
        let checkpoint = Checkpoint::open(&path).unwrap();
        let options = LoadOptions {
            threads: 1,
            ..LoadOptions::default()
        };
        let weights = Weights::load_checkpoint(checkpoint, &options, &mut |_| {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            assert!(!maps.contains(name));
            looked += 1;
            ControlFlow::Continue(())
        });
        assert!(weights.is_ok() && looked > 4, "{looked}");
        // What is mapped would be seen.
        let file = File::open(&path).unwrap();
        // SAFETY: nobody changes the file.
        let _mapped = unsafe { map_file(&file, 0..4096, Tag::Other) }.unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains(name));
    }
}
