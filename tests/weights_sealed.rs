//! Sealed weights: those of a load, in one copy for several processes, and never believed.
#![cfg(all(target_os = "linux", not(loom), not(tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use checkpoint_files::{awkward, file, packed, shared, write};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tenslab::DType;
use tenslab::memory::{MapError, UnsealedMemory};
use tenslab::weights::{
    Backing, Checkpoint, Choice, HeaderLimits, LoadMode, LoadOptions, LoadProgress, SealedFault,
    SealedWeights, Shard, ShardRule, Weights, WeightsError,
};

fn options(threads: usize, dtype: Option<DType>) -> LoadOptions {
    LoadOptions {
        threads,
        dtype,
        ..LoadOptions::default()
    }
}

fn go_on(_: LoadProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn seal(path: &Path) -> SealedWeights {
    Weights::seal(path, &LoadOptions::default()).unwrap()
}

fn map(sealed: &SealedWeights) -> Weights {
    Weights::map_sealed(sealed.try_clone().unwrap()).unwrap()
}

fn raw(weights: &Weights, name: &str) -> Vec<u8> {
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
fn small(directory: &Path) -> PathBuf {
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

// ---- memory from a stranger

/// All bytes of sealed weights.
fn image(path: &Path) -> Vec<u8> {
    let sealed = seal(path);
    let mut bytes = vec![0; usize::try_from(sealed.bytes()).unwrap()];
    let file = File::from(OwnedFd::from(sealed));
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Maps these bytes, sealed.
fn map_bytes(bytes: &[u8]) -> Result<Weights, WeightsError> {
    let mut memory = UnsealedMemory::new("stranger", bytes.len()).unwrap();
    memory.as_mut_slice().copy_from_slice(bytes);
    Weights::map_sealed(memory.seal().unwrap())
}

/// Reads all there is to be had, if something is.
fn touch(weights: &Weights) -> usize {
    let mut bytes = 0;
    for name in weights.names() {
        bytes += raw(weights, name).len();
        if let Ok(tensor) = weights.get(name) {
            bytes += tensor.read_bytes().unwrap().len();
        }
        assert!(weights.checkpoint().entry(name).is_some());
    }
    bytes
}

fn fault(bytes: &[u8]) -> SealedFault {
    match map_bytes(bytes) {
        Err(WeightsError::Sealed { fault }) => *fault,
        other => panic!("{other:?}"),
    }
}

fn word(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// Where the record of the first tensor, an f32 of 24 bytes, begins in the image of [`small`].
fn first_record(image: &[u8]) -> usize {
    let words = [2_u64, 0, 24, 0].map(u64::to_le_bytes).concat();
    let found = image.windows(32).position(|window| window == words);
    found.unwrap()
}

#[test]
fn what_is_no_sealed_memory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = small(place.path());
    let plain = Weights::map_sealed(File::open(&path).unwrap()).unwrap_err();
    let WeightsError::Sealed { fault } = plain else {
        panic!("{plain}");
    };
    assert!(matches!(
        *fault,
        SealedFault::Memory(MapError::NoSeals { .. } | MapError::NotSealed { .. })
    ));
    // The right bytes, and no seals.
    let fd = memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    let bytes = image(&path);
    let unsealed = File::from(fd);
    unsealed.write_all_at(&bytes, 0).unwrap();
    let error = Weights::map_sealed(unsealed.try_clone().unwrap()).unwrap_err();
    assert!(
        error.to_string().contains("not sealed against writing"),
        "{error}"
    );
    let needed = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fcntl_add_seals(&unsealed, needed).unwrap();
    assert_eq!(
        touch(&Weights::map_sealed(unsealed).unwrap()),
        24 * 2 + 3 * 2 + 10 * 2 + 3
    );
}

/// There may be no memory for a page that was never made, and its touch would be a signal.
#[test]
fn memory_with_holes_is_refused() {
    let fd = memfd_create("sparse", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 40).unwrap();
    let needed = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fcntl_add_seals(&fd, needed).unwrap();
    let error = Weights::map_sealed(fd).unwrap_err().to_string();
    assert!(
        error.contains("1099511627776 bytes, and pages for 0"),
        "{error}"
    );
}

#[test]
fn a_wrong_number_in_the_index_is_an_error_with_what_is_wrong() {
    let place = tempfile::tempdir().unwrap();
    let good = image(&small(place.path()));
    assert!(map_bytes(&good).is_ok());
    let with = |at: usize, number: u64| {
        let mut bytes = good.clone();
        word(&mut bytes, at, number);
        bytes
    };
    assert!(matches!(fault(&[]), SealedFault::NotWeights { bytes: 0 }));
    assert!(matches!(fault(&with(0, 7)), SealedFault::NotWeights { .. }));
    assert!(matches!(
        fault(&with(8, 2)),
        SealedFault::Version { found: 2, known: 1 }
    ));
    let long = [&good[..], &[0; 64]].concat();
    assert!(matches!(fault(&long), SealedFault::Length { .. }));
    assert!(matches!(
        fault(&with(24, 31)),
        SealedFault::Index { at: 24, .. }
    ));
    assert!(matches!(
        fault(&with(24, u64::MAX)),
        SealedFault::Index { .. }
    ));
    assert!(matches!(fault(&with(32, 5000)), SealedFault::Index { .. }));

    let record = first_record(&good);
    let at = |number: usize| record + 8 * number;
    assert!(matches!(
        fault(&with(at(0), 1)),
        SealedFault::WrongDType { found: None, .. }
    ));
    assert!(matches!(
        fault(&with(at(0), 2 + u64::from(DType::I32.code()))),
        SealedFault::WrongDType {
            found: Some(DType::I32),
            ..
        }
    ));
    assert!(matches!(
        fault(&with(at(0), 300)),
        SealedFault::Index { .. }
    ));
    assert!(matches!(fault(&with(at(0), 99)), SealedFault::Index { .. }));
    assert!(matches!(
        fault(&with(at(1), 1 << 40)),
        SealedFault::OutOfBounds {
            offset: 0x100_0000_0000,
            nbytes: 24,
            ..
        }
    ));
    assert!(matches!(
        fault(&with(at(1), u64::MAX)),
        SealedFault::OutOfBounds { .. }
    ));
    assert!(matches!(
        fault(&with(at(1), 4)),
        SealedFault::Unaligned { offset: 4, .. }
    ));
    assert!(matches!(
        fault(&with(at(2), 20)),
        SealedFault::WrongLength {
            nbytes: 20,
            expected_bytes: 24,
            ..
        }
    ));
    // Cast to two bytes each, and as many bytes as before.
    assert!(matches!(
        fault(&with(at(0), 2 + u64::from(DType::F16.code()))),
        SealedFault::WrongLength {
            nbytes: 24,
            expected_bytes: 12,
            ..
        }
    ));
    assert!(matches!(
        fault(&with(at(3), 3)),
        SealedFault::OutOfBounds { .. } | SealedFault::WrongPart { .. }
    ));
    assert!(matches!(
        fault(&with(at(3), 2)),
        SealedFault::WrongPart { .. }
    ));
    // Left out, and the rest of the record is read as the next one.
    assert!(map_bytes(&with(at(0), 0)).is_err());
    for error in [with(8, 2), with(at(1), 4), with(at(2), 20)] {
        let message = map_bytes(&error).unwrap_err().to_string();
        assert!(message.starts_with("sealed weights: "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn headers_in_it_are_checked_as_those_of_files_are() {
    let place = tempfile::tempdir().unwrap();
    let good = image(&small(place.path()));
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = good
            .windows(from.len())
            .position(|window| window == from.as_bytes());
        let mut bytes = good.clone();
        bytes[at.unwrap()..][..to.len()].copy_from_slice(to.as_bytes());
        map_bytes(&bytes).unwrap_err().to_string()
    };
    // A name twice in one file, and in two.
    let error = replaced(r#""odd":{"#, r#""a"  :{"#);
    assert!(error.contains("tensor \"a\" is listed twice"), "{error}");
    let error = replaced(r#""b":{"#, r#""a":{"#);
    assert!(
        error.contains("\"a\"") && error.contains("two.safetensors"),
        "{error}"
    );
    let error = replaced(r#"[0,24]"#, r#"[0,23]"#);
    assert!(error.contains("one.safetensors"), "{error}");

    let sealed = seal(&small(place.path()));
    let limits = HeaderLimits {
        max_tensors: 4,
        ..HeaderLimits::default()
    };
    let fd = sealed.try_clone().unwrap();
    let error = Weights::map_sealed_with(fd, &limits).unwrap_err();
    assert!(matches!(error, WeightsError::Set { .. }), "{error}");
    let limits = HeaderLimits {
        max_header_bytes: 100,
        ..HeaderLimits::default()
    };
    let error = Weights::map_sealed_with(sealed, &limits).unwrap_err();
    assert!(matches!(error, WeightsError::Sealed { .. }), "{error}");
}

#[test]
fn every_length_but_the_right_one_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let good = image(&small(place.path()));
    for length in 0..good.len() {
        assert!(map_bytes(&good[..length]).is_err(), "{length}");
        if length < 24 {
            continue;
        }
        // Also where it says so itself.
        let mut bytes = good[..length].to_vec();
        word(&mut bytes, 16, length as u64);
        if let Ok(weights) = map_bytes(&bytes) {
            // Only padding behind the last tensor may be gone, and there is none.
            panic!("{length}: {weights:?}");
        }
    }
}

/// A number of every kind at every place: an error, or weights that can be read.
#[test]
fn any_number_at_any_place_is_an_error_or_harmless() {
    let place = tempfile::tempdir().unwrap();
    let good = image(&small(place.path()));
    let length = good.len() as u64;
    let (mut refused, mut taken) = (0, 0);
    for at in 0..good.len() - 8 {
        for number in [
            0,
            1,
            64,
            length - 1,
            length,
            1 << 32,
            1 << 63,
            u64::MAX - 63,
            u64::MAX,
        ] {
            let mut bytes = good.clone();
            word(&mut bytes, at, number);
            match map_bytes(&bytes) {
                Ok(weights) => {
                    touch(&weights);
                    taken += 1;
                }
                Err(error) => {
                    assert_eq!(error.to_string().lines().count(), 1, "{error}");
                    refused += 1;
                }
            }
        }
    }
    println!("{refused} refused, {taken} taken");
    // Paths, padding and data may be anything.
    assert!(refused > 5000 && taken > 500, "{refused} {taken}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_anywhere_are_an_error_or_harmless(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let place = tempfile::tempdir().unwrap();
        let mut bytes = image(&small(place.path()));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(weights) = map_bytes(&bytes) {
            touch(&weights);
        }
    }
}

// ---- one copy

/// The built example.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let binary = profile.join("examples/sealed");
    assert!(
        binary.exists(),
        "{} is not there; `cargo test` or `cargo build --example sealed` builds it",
        binary.display()
    );
    binary
}

/// The number behind a word.
fn number(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace().skip_while(|found| *found != word);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap()
}

/// The example's own numbers: each of two workers has all pages, half of each is its own, and
/// the memory has no more of them than when it was sealed.
#[test]
#[cfg_attr(tenslab_asan, ignore = "the example is not built")]
fn two_processes_have_one_copy() {
    let output = Command::new(example())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    println!("{said}");
    let line = |begin: &str| {
        let found = said.lines().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("no {begin:?} in {said}"))
    };
    let bytes = number(line("sealed"), "sealed");
    assert!(bytes > 64 << 20);
    let pages = bytes.next_multiple_of(4096);
    let (one, other) = (line("worker 0"), line("worker 1"));
    assert_eq!(
        one.split(' ').nth(3),
        other.split(' ').nth(3),
        "the checksums"
    );
    for worker in [one, other] {
        assert_eq!(
            (number(worker, "Rss"), number(worker, "Pss")),
            (pages, pages / 2)
        );
    }
    assert_eq!(number(line("both"), "Pss"), pages);
    let counts = line("pages of the memory");
    assert_eq!(
        counts,
        format!("pages of the memory: {pages} when it was sealed, {pages} with two workers")
    );
}

/// Says what a child has to seal.
const CHILD: &str = "TENSLAB_SEAL_CHILD";

/// Sealing holds the tensors once, also with a cast: the mark of a child's memory, shared pages
/// included, says so, and the memory's own pages.
#[test]
#[cfg_attr(tenslab_asan, ignore = "the sanitizer's own memory is counted too")]
fn sealing_holds_the_tensors_once_also_with_a_cast() {
    const SLACK: u64 = 16 << 20;
    if let Ok(task) = std::env::var(CHILD) {
        let (dtype, path) = task.split_once(' ').unwrap();
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = status("VmHWM:");
        let sealed = Weights::seal(path, &options(2, dtype.parse().ok())).unwrap();
        let rise = status("VmHWM:") - before;
        let file = File::from(sealed.as_fd().try_clone_to_owned().unwrap());
        let pages = file.metadata().unwrap().blocks() * 512;
        println!("RISE {rise} {pages} {}", sealed.report().copied_bytes);
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let shape = [25 << 20];
    let (json, bytes) = packed(&[("a", "F32", &shape, 100 << 20), ("b", "U8", &[7], 7)]);
    let path = write(place.path(), "x", &file(&json, bytes));
    for (dtype, expected) in [("none", bytes as u64), ("bfloat16", (50 << 20) + 7)] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "sealing_holds_the_tensors_once_also_with_a_cast",
                "--nocapture",
            ])
            .env(CHILD, format!("{dtype} {}", path.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let line = said.lines().find_map(|line| line.split_once("RISE "));
        let line = line.unwrap_or_else(|| panic!("{said}{output:?}")).1;
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        println!("{dtype}: {numbers:?}");
        assert_eq!(numbers[2], expected);
        assert!(
            numbers[1] >= expected && numbers[1] < expected + 65536,
            "{numbers:?}"
        );
        assert!(
            numbers[0] >= expected && numbers[0] < expected + SLACK,
            "{numbers:?}"
        );
    }
}

/// A field of `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}
