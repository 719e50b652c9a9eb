//! Files as memory: the bytes are the file's, nobody gets them to write, and the last handle
//! unmaps. Counted by the kernel (`/proc/self/smaps`), not by ourselves.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod here {
    use std::fs::{self, File, OpenOptions};
    use std::io::ErrorKind;
    use std::os::unix::process::ExitStatusExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::PathBuf;
    use std::process::{Command, Output};

    use tempfile::TempDir;
    use tenslab::memory::{
        Advice, BorrowError, MapError, Storage, Tag, cpu, map_file, mapped_bytes,
    };
    use tenslab::{DType, Tensor, ops};

    const PAGE: usize = 4096;

    /// A file of its own for a test: byte `i` is `i % 251`.
    struct Fixture {
        _folder: TempDir,
        path: PathBuf,
        bytes: Vec<u8>,
    }

    impl Fixture {
        fn new(len: usize) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("mapped");
            let bytes: Vec<u8> = (0..251).cycle().take(len).collect();
            fs::write(&path, &bytes).unwrap();
            Self {
                _folder: folder,
                path,
                bytes,
            }
        }

        fn map(&self, range: std::ops::Range<usize>) -> Result<Storage, MapError> {
            let file = File::open(&self.path).unwrap();
            // SAFETY: the file is this test's alone; where it is cut, nothing behind the cut
            // is touched.
            unsafe { map_file(&file, range.start as u64..range.end as u64, Tag::Weights) }
        }

        /// Mappings of the file in this process, and bytes of them that have pages.
        fn mapped(&self) -> (usize, usize) {
            let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
            let name = self.path.to_str().unwrap();
            let (mut mappings, mut resident, mut ours) = (0, 0, false);
            for line in smaps.lines() {
                let mut words = line.split_ascii_whitespace();
                let first = words.next().unwrap();
                if !first.ends_with(':') {
                    ours = line.contains(name);
                    mappings += usize::from(ours);
                } else if ours && first == "Rss:" {
                    resident += words.next().unwrap().parse::<usize>().unwrap() << 10;
                }
            }
            (mappings, resident)
        }
    }

    fn bytes_of(storage: &Storage) -> Vec<u8> {
        let tensor = Tensor::from_storage(storage, 0, [storage.len()], DType::U8).unwrap();
        tensor.read_bytes().unwrap().to_vec()
    }

    #[test]
    fn any_range_of_a_file_is_its_bytes() {
        let file = Fixture::new(5 * PAGE + 17);
        let len = file.bytes.len();
        for start in [0, 1, 63, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5, len - 1] {
            for end in [start + 1, start + PAGE - 1, start + PAGE, 4 * PAGE, len] {
                if start >= end || end > len {
                    continue;
                }
                let storage = file.map(start..end).unwrap();
                assert_eq!(storage.len(), end - start);
                assert_eq!(bytes_of(&storage), file.bytes[start..end], "{start}..{end}");
                // Where a file is aligned, its bytes are.
                assert_eq!(storage.as_ptr().addr() % PAGE, start % PAGE);
                assert_eq!(storage.tag(), Tag::Weights);
                assert!(storage.is_mapped() && storage.is_frozen());
            }
        }
        assert_eq!(file.mapped(), (0, 0));
    }

    #[test]
    fn an_empty_range_is_aligned_and_maps_nothing() {
        let file = Fixture::new(PAGE);
        for at in [0, 5, PAGE] {
            let storage = file.map(at..at).unwrap();
            assert!(storage.is_empty() && storage.is_frozen() && storage.is_mapped());
            assert!(storage.as_ptr().addr().is_multiple_of(64) && !storage.as_ptr().is_null());
            storage.advise(0..0, Advice::Populate).unwrap();
            assert_eq!(storage.freeze_protected().unwrap().bytes, 0);
            assert_eq!(bytes_of(&storage), [0_u8; 0]);
        }
        assert!(Fixture::new(0).map(0..0).unwrap().is_empty());
        assert_eq!(file.mapped(), (0, 0));
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error_with_the_numbers() {
        let file = Fixture::new(100);
        let error = file.map(90..101).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bytes 90..101 are not in the file, which has 100: it was cut, or the range is wrong"
        );
        #[allow(clippy::reversed_empty_ranges, reason = "that is the mistake")]
        let error = file.map(9..8).unwrap_err();
        assert!(matches!(error, MapError::OutOfFile { .. }), "{error}");
        for (start, end) in [(u64::MAX, u64::MAX), (0, u64::MAX)] {
            let open = File::open(&file.path).unwrap();
            // SAFETY: nothing is mapped.
            let error = unsafe { map_file(&open, start..end, Tag::Other) }.unwrap_err();
            assert!(matches!(error, MapError::OutOfFile { .. }), "{error}");
        }
        let unreadable = OpenOptions::new().write(true).open(&file.path).unwrap();
        // SAFETY: nothing is mapped.
        let error = unsafe { map_file(&unreadable, 0..10, Tag::Other) }.unwrap_err();
        let MapError::System { bytes, source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*bytes, source.kind()), (10, ErrorKind::PermissionDenied));
        assert!(
            error.to_string().starts_with("cannot map 10 bytes: "),
            "{error}"
        );
        let folder = File::open(file.path.parent().unwrap()).unwrap();
        let len = folder.metadata().unwrap().len().min(1);
        // SAFETY: nothing is mapped.
        let mapped = unsafe { map_file(&folder, 0..len, Tag::Other) };
        assert!(len == 0 || mapped.is_err());
    }

    /// Every door that lends bytes to write is shut, to the only handle too.
    #[test]
    fn nobody_gets_mapped_bytes_to_write() {
        let file = Fixture::new(3 * PAGE);
        let mut storage = file.map(0..2 * PAGE).unwrap();
        let frozen = |error: BorrowError| assert!(matches!(error, BorrowError::Frozen { .. }));
        frozen(storage.get_mut().unwrap_err());
        frozen(storage.decommit(0..PAGE).unwrap_err());
        storage.freeze().unwrap();
        storage.commit(0..PAGE).unwrap();
        assert_eq!(storage.freeze_protected().unwrap().bytes, 2 * PAGE);

        let mut tensor = Tensor::from_storage(&storage, 0, [PAGE / 2], DType::F32).unwrap();
        drop(storage);
        assert!(tensor.get_mut::<f32>().is_err());
        assert!(tensor.write::<f32>().is_err());
        assert!(tensor.write_bytes().is_err());
        assert!(Tensor::write_disjoint::<f32, 1>([&tensor]).is_err());
        assert!(ops::fill(&tensor, 1.0).is_err());
        // SAFETY: nobody else has the tensor.
        assert!(unsafe { tensor.as_mut_slice::<f32>() }.is_err());
        assert_eq!(tensor.read_bytes().unwrap()[..], file.bytes[..2 * PAGE]);
    }

    #[test]
    fn the_last_handle_unmaps() {
        let file = Fixture::new(3 * PAGE + 1);
        let storage = file.map(PAGE + 3..3 * PAGE + 1).unwrap();
        let other = file.map(0..1).unwrap();
        let tensor = Tensor::from_storage(&storage, 1, [4], DType::U8).unwrap();
        let view = tensor.slice(0, 2, 3).unwrap();
        assert_eq!(file.mapped().0, 2);
        drop(storage);
        drop(tensor);
        assert_eq!(file.mapped().0, 2);
        assert_eq!(
            view.read_bytes().unwrap()[..],
            file.bytes[PAGE + 6..PAGE + 7]
        );
        std::thread::spawn(move || drop(view)).join().unwrap();
        assert_eq!(file.mapped().0, 1);
        drop(other);
        assert_eq!(file.mapped().0, 0);
    }

    /// No other test of this file maps under this tag.
    #[test]
    fn what_is_mapped_is_counted_by_tag() {
        let fixture = Fixture::new(2 * PAGE);
        let file = File::open(&fixture.path).unwrap();
        let tag = Tag::Scratch;
        // SAFETY: the file is this test's alone.
        let map = |range| unsafe { map_file(&file, range, tag) }.unwrap();
        assert_eq!(mapped_bytes(tag), 0);
        let (one, two, none) = (map(0..5), map(PAGE as u64 - 1..PAGE as u64 + 1), map(7..7));
        assert_eq!(mapped_bytes(tag), PAGE + 2 * PAGE);
        drop((one.clone(), none));
        drop(one);
        assert_eq!(mapped_bytes(tag), 2 * PAGE);
        drop(two);
        assert_eq!(mapped_bytes(tag), 0);
    }

    #[test]
    fn a_mapping_keeps_a_file_that_was_closed_replaced_and_removed() {
        let file = Fixture::new(2 * PAGE);
        let storage = file.map(0..2 * PAGE).unwrap();
        let next = file.path.with_extension("next");
        fs::write(&next, [9; 10]).unwrap();
        fs::rename(&next, &file.path).unwrap();
        fs::remove_file(&file.path).unwrap();
        assert_eq!(bytes_of(&storage), file.bytes);
    }

    #[test]
    fn advice_brings_pages_and_lets_them_go_and_changes_no_byte() {
        let file = Fixture::new(16 * PAGE);
        let storage = file.map(PAGE..16 * PAGE).unwrap();
        let all = 0..storage.len();
        // Before the first touch nothing of it is in memory, and no other page comes with one.
        storage.advise(all.clone(), Advice::Random).unwrap();
        assert_eq!(file.mapped(), (1, 0));
        storage
            .advise(4 * PAGE - 1..4 * PAGE + 1, Advice::Populate)
            .unwrap();
        let some = file.mapped().1;
        assert!((2 * PAGE..16 * PAGE).contains(&some), "{some}");
        storage.advise(all.clone(), Advice::Populate).unwrap();
        assert_eq!(file.mapped(), (1, 15 * PAGE));
        storage.advise(0..8 * PAGE, Advice::DontNeed).unwrap();
        assert_eq!(file.mapped().1, 7 * PAGE);
        for advice in [Advice::Normal, Advice::Sequential, Advice::WillNeed] {
            storage.advise(all.clone(), advice).unwrap();
        }
        assert_eq!(bytes_of(&storage), file.bytes[PAGE..]);
        storage.advise(5..5, Advice::DontNeed).unwrap();
        assert_eq!(file.mapped().1, 15 * PAGE);
    }

    /// Populating says by an error what a touch would say by a signal.
    #[test]
    fn a_file_that_was_cut_is_an_error_where_it_is_populated() {
        let file = Fixture::new(8 * PAGE);
        let storage = file.map(0..8 * PAGE).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&file.path)
            .unwrap()
            .set_len(2 * PAGE as u64)
            .unwrap();
        storage.advise(0..2 * PAGE, Advice::Populate).unwrap();
        let error = storage.advise(0..8 * PAGE, Advice::Populate).unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("cannot advise the system about 32768 bytes: "),
            "{said}"
        );
        let error = file.map(0..8 * PAGE).unwrap_err();
        assert!(
            matches!(
                error,
                MapError::OutOfFile {
                    file_bytes: 8192,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn advice_is_for_mappings_and_their_ranges() {
        let storage = Storage::from(cpu().allocate(PAGE, 64).unwrap());
        assert!(!storage.is_mapped());
        let error = storage.advise(0..PAGE, Advice::DontNeed).unwrap_err();
        assert!(matches!(error, MapError::NotMapped { storage: id } if id == storage.id()));
        let file = Fixture::new(PAGE);
        let storage = file.map(0..100).unwrap();
        let beyond = AssertUnwindSafe(|| storage.advise(0..101, Advice::Normal));
        assert!(catch_unwind(beyond).is_err());
    }

    /// Names the test whose stray write a child has to make.
    const STRAY: &str = "TENSLAB_STRAY_WRITE";

    fn child(name: &str, writes: &str) -> Output {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(STRAY, writes)
            .output()
            .unwrap()
    }

    #[test]
    fn a_stray_write_to_a_mapping_traps() {
        if let Ok(writes) = std::env::var(STRAY) {
            let file = Fixture::new(PAGE);
            let storage = file.map(0..PAGE).unwrap();
            if writes == "yes" {
                // SAFETY: none of it: this is the mistake that has to trap.
                unsafe { storage.as_ptr().write_volatile(1) };
            }
            println!("lived");
            return;
        }
        let name = "here::a_stray_write_to_a_mapping_traps";
        let lived = child(name, "no");
        assert!(lived.status.success());
        assert!(String::from_utf8_lossy(&lived.stdout).contains("lived"));
        let died = child(name, "yes");
        let errors = String::from_utf8_lossy(&died.stderr);
        let reported = cfg!(tenslab_asan) && errors.contains("AddressSanitizer: SEGV");
        assert!(
            died.status.signal() == Some(11) || reported,
            "{}",
            died.status
        );
    }
}

/// Where there are no mappings, to map is refused, and not done in another way.
#[cfg(not(all(unix, not(tenslab_portable))))]
#[test]
fn without_mappings_it_is_refused() {
    use tenslab::memory::{MapError, Tag, map_file};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, [1; 100]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    // SAFETY: the file is this test's alone.
    let error = unsafe { map_file(&file, 0..100, Tag::Other) }.unwrap_err();
    let MapError::System { source, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::Unsupported);
    // SAFETY: the file is this test's alone.
    assert!(
        unsafe { map_file(&file, 5..5, Tag::Other) }
            .unwrap()
            .is_frozen()
    );
}
