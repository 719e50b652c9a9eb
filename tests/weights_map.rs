//! Mapped weights: byte for byte those of a load, wherever they lie in the file; what is copied
//! is counted; and what happens to whoever does not keep the contract.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod checkpoint_files;

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod here {
    use std::collections::BTreeSet;
    use std::fs::{self, File};
    use std::ops::ControlFlow;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::os::unix::process::ExitStatusExt;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};
    use std::time::Instant;

    use tenslab::memory::{Advice, SharedAllocator};
    use tenslab::tensor::TensorError;
    use tenslab::weights::{
        Backing, Checkpoint, LoadMode, LoadOptions, MapOptions, Misaligned, Weights, WeightsError,
    };
    use tenslab::{CpuAllocator, DType};

    use crate::checkpoint_files::{awkward, entry, file, object, packed, shared, write};

    const POLICIES: [Misaligned; 3] = [
        Misaligned::Realign,
        Misaligned::Error,
        Misaligned::BytesOnly,
    ];

    fn map(path: &Path, misaligned: Misaligned) -> Result<Weights, WeightsError> {
        let options = MapOptions {
            misaligned,
            ..MapOptions::default()
        };
        // SAFETY: the file is this test's alone, or one that nobody writes to.
        unsafe { Weights::map(path, &options) }
    }

    fn load(path: &Path) -> Weights {
        Weights::load(path, &LoadOptions::default()).unwrap()
    }

    fn raw(weights: &Weights, name: &str) -> Vec<u8> {
        weights.raw(name).unwrap().read_bytes().unwrap().to_vec()
    }

    /// Names of tensors that do not begin at a multiple of their width.
    fn misaligned(checkpoint: &Checkpoint) -> Vec<&str> {
        let entries = checkpoint.entries().filter(|entry| {
            let dtype = entry.dtype().loadable();
            dtype.is_some_and(|dtype| !entry.offset().is_multiple_of(dtype.bytes() as u64))
                && entry.nbytes() > 0
        });
        entries.map(|entry| entry.name()).collect()
    }

    /// Maps it under each policy and compares all that can be had with a load.
    fn is_mapped_as_it_is_loaded(path: &Path) {
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
    fn three_shards(directory: &Path) -> PathBuf {
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

    /// Lines of `/proc/self/maps` that name something below a path.
    fn mappings(path: &Path) -> usize {
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
            "here::a_file_that_is_cut_ends_who_has_it_mapped_and_is_an_error_to_who_loads_it";
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
            "here::ten_gigabytes_are_mapped_without_reading_them",
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
}

/// Where there are no mappings, to map is refused, and not done in another way.
#[cfg(not(all(unix, not(tenslab_portable))))]
#[test]
fn without_mappings_it_is_refused() {
    use tenslab::weights::{MapOptions, Weights, WeightsError};
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("x");
    let json = br#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    bytes.extend([1, 2]);
    std::fs::write(&path, bytes).unwrap();
    // SAFETY: the file is this test's alone.
    let error = unsafe { Weights::map(&path, &MapOptions::default()) }.unwrap_err();
    assert!(matches!(error, WeightsError::Map { .. }), "{error}");
}
