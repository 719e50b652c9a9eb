//! What is mapped, resident, copied and read, and what becomes of who does not keep the contract.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use tenslab::memory::{Advice, SharedAllocator};
use tenslab::weights::{Checkpoint, LoadOptions, MapOptions, Misaligned, Weights, WeightsError};
use tenslab::{CpuAllocator, DType};

use crate::checkpoint_files::{awkward, file, packed, write};
use crate::files::{load, map, raw, three_shards};

/// Lines of `/proc/self/maps` that name something below a path.
pub(crate) fn mappings(path: &Path) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let name = path.to_str().unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// Resident bytes of the mappings of a file.
fn resident(path: &Path) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (name, mut ours, mut resident) = (path.to_str().unwrap(), false, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap();
        if !first.ends_with(':') {
            ours = line.contains(name);
        } else if ours && first == "Rss:" {
            resident += words.next().unwrap().parse::<usize>().unwrap() << 10;
        }
    }
    resident
}

#[test]
fn tensors_outlive_their_weights_and_the_last_one_unmaps() {
    let place = tempfile::tempdir().unwrap();
    let path = three_shards(place.path());
    let loaded = load(&path);
    let weights = map(&path, Misaligned::Realign).unwrap();
    let (mapped, copied) = (weights.get("b.0").unwrap(), weights.get("b.1").unwrap());
    drop(weights);
    assert_eq!(mappings(place.path()), 1);
    // The files may go, and others take their names: the mapping keeps them.
    for shard in 0..3 {
        let name = format!("model-{shard}.safetensors");
        let other = write(place.path(), "other", &[0; 10_000]);
        fs::rename(other, place.path().join(name)).unwrap();
    }
    assert!(*mapped.read_bytes().unwrap() == raw(&loaded, "b.0")[..]);
    assert!(*copied.read_bytes().unwrap() == raw(&loaded, "b.1")[..]);
    assert!(mapped.write::<f32>().is_err() && copied.write::<f32>().is_err());
    drop(mapped);
    assert_eq!(mappings(place.path()), 0);
}

#[test]
fn a_load_maps_nothing_and_a_mapping_copies_nothing() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut looked = 0;
    let options = LoadOptions {
        threads: 1,
        ..LoadOptions::default()
    };
    Weights::load_checkpoint(checkpoint, &options, &mut |_| {
        assert_eq!(mappings(&path), 0);
        looked += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(looked > 5);

    let allocator = SharedAllocator::new(CpuAllocator::new());
    let options = MapOptions {
        misaligned: Misaligned::BytesOnly,
        allocator: allocator.clone(),
        ..MapOptions::default()
    };
    // SAFETY: the file is this test's alone.
    let weights = unsafe { Weights::map(&path, &options) }.unwrap();
    assert_eq!((mappings(&path), resident(&path)), (1, 0));
    assert_eq!(allocator.outstanding(), 0);
    drop(weights);
    let options = MapOptions {
        misaligned: Misaligned::Realign,
        ..options
    };
    // SAFETY: the file is this test's alone.
    let weights = unsafe { Weights::map(&path, &options) }.unwrap();
    assert_eq!(allocator.outstanding(), 1);
    // What was copied was read, not touched.
    assert_eq!(resident(&path), 0);
    drop(weights);
    assert_eq!(allocator.outstanding(), 0);
}

#[test]
fn advice_changes_no_byte_and_populate_makes_all_of_it_resident() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let loaded = load(&path);
    for advice in [
        Advice::Normal,
        Advice::Sequential,
        Advice::Random,
        Advice::WillNeed,
        Advice::Populate,
    ] {
        let options = MapOptions {
            advice: Some(advice),
            ..MapOptions::default()
        };
        // SAFETY: the file is this test's alone.
        let weights = unsafe { Weights::map(&path, &options) }.unwrap();
        let mapped = usize::try_from(weights.report().mapped_bytes).unwrap();
        let resident = resident(&path);
        if advice == Advice::Populate {
            assert!(resident >= mapped, "{resident} of {mapped}");
        } else {
            assert_eq!(resident, 0, "{advice:?}");
        }
        for name in loaded.names() {
            assert!(
                raw(&weights, name) == raw(&loaded, name),
                "{advice:?}: {name:?}"
            );
        }
    }
}

#[test]
fn a_file_that_is_no_longer_the_one_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let length = fs::metadata(&path).unwrap().len();
    let refused = || {
        let (checkpoint, options) = (checkpoint.clone(), MapOptions::default());
        // SAFETY: the file is this test's alone.
        unsafe { Weights::map_checkpoint(checkpoint, &options) }.unwrap_err()
    };
    let cut = File::options().write(true).open(&path).unwrap();
    cut.set_len(length - 1).unwrap();
    let WeightsError::FileChanged { what, .. } = refused() else {
        panic!("another error");
    };
    assert_eq!(
        what,
        format!("it had {length} bytes and has {}", length - 1)
    );
    let copy = place.path().join("copy");
    cut.set_len(length).unwrap();
    fs::copy(&path, &copy).unwrap();
    fs::rename(&copy, &path).unwrap();
    assert!(matches!(refused(), WeightsError::FileChanged { .. }));
    assert_eq!(mappings(&path), 0);
}

#[test]
fn no_memory_for_what_is_copied_is_an_error_that_holds_nothing() {
    use tenslab::SlabAllocator;
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let allocator = SharedAllocator::new(SlabAllocator::new(4096, 2).unwrap());
    let options = MapOptions {
        allocator: allocator.clone(),
        ..MapOptions::default()
    };
    // SAFETY: the file is this test's alone.
    let error = unsafe { Weights::map(&path, &options) }.unwrap_err();
    assert!(matches!(error, WeightsError::Memory { .. }), "{error}");
    assert_eq!((allocator.outstanding(), mappings(&path)), (0, 0));
}

/// Says what a child has to do.
const CHILD: &str = "TENSLAB_MAP_CHILD";

fn child(name: &str, task: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, task)
        .output()
        .unwrap()
}

/// Rows 15 and 16 of the complaints. The contract is there for a reason: this is what becomes
/// of a process whose mapped file is cut, and of one that loads it.
#[test]
fn a_file_that_is_cut_ends_who_has_it_mapped_and_is_an_error_to_who_loads_it() {
    if let Ok(task) = std::env::var(CHILD) {
        let (mode, path) = task.split_once(' ').unwrap();
        let checkpoint = Checkpoint::open(path).unwrap();
        let cut = File::options().write(true).open(path).unwrap();
        if mode == "map" {
            let misaligned = Misaligned::BytesOnly;
            let options = MapOptions {
                misaligned,
                ..MapOptions::default()
            };
            // SAFETY: none of it: the file is cut while it is mapped, which has to end this.
            let weights = unsafe { Weights::map_checkpoint(checkpoint, &options) }.unwrap();
            let last = weights.raw("integers").unwrap();
            cut.set_len(4096).unwrap();
            println!(
                "touching {}",
                last.read_bytes().unwrap().iter().max().unwrap()
            );
        } else {
            let mut cut = Some(cut);
            let options = LoadOptions {
                threads: 1,
                ..LoadOptions::default()
            };
            let loaded = Weights::load_checkpoint(checkpoint, &options, &mut |at| {
                if at.done_bytes > 0
                    && let Some(cut) = cut.take()
                {
                    cut.set_len(4096).unwrap();
                }
                ControlFlow::Continue(())
            });
            println!("an error: {}", loaded.unwrap_err());
        }
        return;
    }
    let name =
        "holdings::a_file_that_is_cut_ends_who_has_it_mapped_and_is_an_error_to_who_loads_it";
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let died = child(name, &format!("map {}", path.display()));
    let errors = String::from_utf8_lossy(&died.stderr);
    let reported = cfg!(tenslab_asan) && errors.contains("AddressSanitizer: BUS");
    // 7 is SIGBUS.
    assert!(
        died.status.signal() == Some(7) || reported,
        "{}: {errors}",
        died.status
    );
    assert!(!String::from_utf8_lossy(&died.stdout).contains("touching"));
    let path = awkward(place.path());
    let lived = child(name, &format!("load {}", path.display()));
    let said = String::from_utf8_lossy(&lived.stdout);
    assert!(
        lived.status.success() && said.contains("an error: "),
        "{said}"
    );
    assert!(said.contains("the file ended at byte 4096"), "{said}");
}

/// A number of a file in `/proc/self`.
fn number(file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// 10 GB of a sparse file are open at once: nothing of them is read, and nothing is in memory.
#[test]
fn ten_gigabytes_are_mapped_without_reading_them() {
    const GB: u64 = 1_000_000_000;
    if let Ok(path) = std::env::var(CHILD) {
        let (before, reads) = (number("status", "VmRSS:"), number("io", "syscr:"));
        let (bytes, began) = (number("io", "rchar:"), Instant::now());
        let weights = map(Path::new(&path), Misaligned::Error).unwrap();
        let micros = began.elapsed().as_micros();
        let reads = number("io", "syscr:") - reads;
        let bytes = number("io", "rchar:") - bytes;
        let grown = number("status", "VmRSS:").saturating_sub(before) << 10;
        let layer = weights.get("layer.99").unwrap();
        let last = layer.read::<f32>().unwrap();
        assert_eq!(last.last().unwrap().to_bits(), 0x4048_f5c3);
        println!("MAPPED {micros} {grown} {reads} {bytes}");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..100).map(|at| format!("layer.{at}")).collect();
    let shape = [GB / 40];
    let tensors: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "F32", &shape[..], GB / 10))
        .collect();
    let (json, bytes) = packed(&tensors);
    let spaces = (8 + json.len()).next_multiple_of(64) - 8 - json.len();
    let json = json + &" ".repeat(spaces);
    let path = write(place.path(), "sparse", &file(&json, 0));
    let out = File::options().write(true).open(&path).unwrap();
    let length = (8 + json.len() + bytes) as u64;
    out.set_len(length).unwrap();
    out.write_all_at(&0x4048_f5c3_u32.to_le_bytes(), length - 4)
        .unwrap();
    assert!(length > 10 * GB && out.metadata().unwrap().blocks() * 512 < 1 << 20);
    let output = child(
        "holdings::ten_gigabytes_are_mapped_without_reading_them",
        path.to_str().unwrap(),
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find_map(|line| line.split_once("MAPPED "));
    let line = line.unwrap_or_else(|| panic!("{said}{errors}")).1;
    let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    let [micros, grown, reads, bytes] = numbers[..] else {
        panic!("{line}");
    };
    println!("10 GB: {micros} us, {grown} bytes of memory, {reads} reads of {bytes} bytes");
    assert!(grown < 8 << 20, "{grown} bytes");
    // Of the header, and of what this test asks /proc.
    assert!(
        reads < 24 && bytes < 64 << 10,
        "{reads} reads of {bytes} bytes"
    );
}

#[test]
fn a_mapped_dtype_is_the_files_own() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let weights = map(&path, Misaligned::Realign).unwrap();
    assert_eq!(weights.get("f16").unwrap().dtype(), DType::F16);
    assert_eq!(weights.report().cast_tensors, 0);
}
