//! Memory that processes share: what the seals forbid, what is not mapped without them, and
//! that several processes have one copy.
#![cfg(all(target_os = "linux", not(loom), not(tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tenslab::memory::{
    Advice, BorrowError, HugePages, MapError, SealedMemory, Storage, Tag, UnsealedMemory,
};
use tenslab::{DType, Tensor};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn pattern(len: usize) -> Vec<u8> {
    (0..251).cycle().take(len).collect()
}

fn sealed(len: usize) -> SealedMemory {
    let mut memory = UnsealedMemory::new("tenslab-test", len).unwrap();
    memory.as_mut_slice().copy_from_slice(&pattern(len));
    memory.seal().unwrap()
}

/// Bytes of memory behind a file.
fn held(file: &File) -> usize {
    usize::try_from(file.metadata().unwrap().blocks()).unwrap() * 512
}

fn bytes_of(storage: &Storage) -> Vec<u8> {
    let tensor = Tensor::from_storage(storage, 0, [storage.len()], DType::U8).unwrap();
    tensor.read_bytes().unwrap().to_vec()
}

/// Memory of another make, of a page.
fn foreign(flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("tenslab-foreign", flags).unwrap();
    rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
    if !seals.is_empty() {
        fcntl_add_seals(&fd, seals).unwrap();
    }
    fd
}

#[test]
fn what_is_written_and_sealed_is_what_is_mapped() {
    for len in [0, 1, PAGE, PAGE + 1, MIB + 5] {
        let memory = sealed(len);
        assert_eq!((memory.len(), memory.is_empty()), (len as u64, len == 0));
        let storage = memory.map(Tag::Weights).unwrap();
        assert_eq!(bytes_of(&storage), pattern(len));
        assert!(storage.is_frozen() && storage.is_mapped());
        assert_eq!(storage.tag(), Tag::Weights);
        assert!(storage.as_ptr().addr().is_multiple_of(64));
    }
}

#[test]
fn fresh_memory_is_zero_and_has_all_its_pages() {
    for huge in [HugePages::Inherit, HugePages::Never, HugePages::Dense] {
        let mut memory = UnsealedMemory::with_huge_pages("zeros", 2 * MIB + 1, huge).unwrap();
        assert_eq!(memory.as_slice(), vec![0; 2 * MIB + 1]);
        memory.as_mut_slice()[2 * MIB] = 1;
        let memory = memory.seal().unwrap();
        let held = held(&File::from(memory.try_clone().unwrap()));
        assert!(held >= 2 * MIB + PAGE, "{huge:?}: {held}");
    }
}

#[test]
fn nobody_writes_or_cuts_what_is_sealed() {
    let memory = sealed(PAGE);
    let storage = memory.map(Tag::Weights).unwrap();
    let file = File::from(memory.try_clone().unwrap());
    let denied = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    };
    denied(file.write_all_at(&[1], 0));
    denied(file.set_len(0));
    denied(file.set_len(2 * PAGE as u64));
    // SAFETY: a new mapping at no fixed address.
    let mapped = unsafe {
        mmap(
            std::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    denied(mapped.map(drop).map_err(io::Error::from));
    // No seal can be added either: who has it cannot make it useless to others.
    assert!(fcntl_add_seals(&file, SealFlags::EXEC).is_err());
    // Opened anew for writing it is the same memory.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    if let Ok(again) = OpenOptions::new().write(true).open(path) {
        denied(again.write_all_at(&[1], 0));
    }
    let mut storage = storage;
    let error = storage.get_mut().unwrap_err();
    assert!(matches!(error, BorrowError::Frozen { .. }), "{error}");
    assert_eq!(bytes_of(&storage), pattern(PAGE));
}

#[test]
fn what_lacks_a_seal_is_refused_and_named() {
    let (write, shrink, grow) = (SealFlags::WRITE, SealFlags::SHRINK, SealFlags::GROW);
    let future = SealFlags::FUTURE_WRITE;
    for (seals, missing) in [
        (SealFlags::empty(), "writing, shrinking and growing"),
        (write, "shrinking and growing"),
        (shrink, "writing and growing"),
        (grow, "writing and shrinking"),
        (write | shrink, "growing"),
        (write | grow, "shrinking"),
        (shrink | grow, "writing"),
        // Who mapped it before goes on writing.
        (shrink | grow | future, "writing"),
    ] {
        let fd = foreign(MemfdFlags::ALLOW_SEALING, seals);
        let error = SealedMemory::open(fd).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the memory is not sealed against {missing}, so somebody may change it while it \
                 is mapped: seal it before it is passed on"
            )
        );
    }
    let error = SealedMemory::open(foreign(MemfdFlags::empty(), SealFlags::empty())).unwrap_err();
    assert!(matches!(error, MapError::NotSealed { .. }), "{error}");
    // All three are enough, also where more may be added.
    let fd = foreign(MemfdFlags::ALLOW_SEALING, write | shrink | grow);
    let storage = SealedMemory::open(fd).unwrap().map(Tag::Other).unwrap();
    assert_eq!(bytes_of(&storage), [0; PAGE]);
}

#[test]
fn a_file_a_pipe_and_a_socket_are_refused() {
    let (pipe, _writer) = io::pipe().unwrap();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let fds: [OwnedFd; 4] = [
        tempfile::tempfile().unwrap().into(),
        File::open("/").unwrap().into(),
        pipe.into(),
        socket.into(),
    ];
    for fd in fds {
        let error = SealedMemory::open(fd).unwrap_err();
        // A file of a file system in memory has seals, but none that helps.
        let refused = matches!(error, MapError::NoSeals { .. } | MapError::NotSealed { .. });
        assert!(refused, "{error}");
    }
}

#[test]
fn what_cannot_be_made_is_an_error() {
    let error = UnsealedMemory::new("a\0b", 1).unwrap_err();
    assert!(
        matches!(error, MapError::System { bytes: 1, .. }),
        "{error}"
    );
    let long = "x".repeat(250);
    assert!(UnsealedMemory::new(&long, 1).is_err());
    assert!(UnsealedMemory::new(&long[1..], 1).is_ok());
    let error = UnsealedMemory::new("large", usize::MAX).unwrap_err();
    assert!(matches!(error, MapError::TooLarge { .. }), "{error}");
}

/// The memory's descriptor in this process, by its name.
fn found(name: &str) -> File {
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let target = fs::read_link(&path).unwrap_or_default();
        if target
            .to_string_lossy()
            .starts_with(&format!("/memfd:{name}"))
        {
            return OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap();
        }
    }
    panic!("no memory is called {name}");
}

/// The kernel refuses to seal against writing while somebody could go on.
#[test]
fn what_somebody_has_mapped_to_write_is_not_sealed() {
    let memory = UnsealedMemory::new("tenslab-busy", PAGE).unwrap();
    let file = found("tenslab-busy");
    // SAFETY: a new mapping at no fixed address.
    let mapped = unsafe {
        mmap(
            std::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &file,
            0,
        )
    }
    .unwrap();
    let error = memory.seal().unwrap_err();
    let MapError::System { source, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), ErrorKind::ResourceBusy, "{error}");
    assert!(
        error.to_string().starts_with("cannot seal 4096 bytes: "),
        "{error}"
    );
    // SAFETY: the mapping made above, which nobody uses.
    unsafe { munmap(mapped, PAGE) }.unwrap();
    assert!(SealedMemory::open(file).is_err());
}

/// Says that this process is the one that gets memory as its standard input.
const READER: &str = "TENSLAB_SEALED_READER";

const SHARED: usize = 4 * MIB;

/// Of the mapping that begins at an address: resident bytes, and this process's share of them.
fn shares(storage: &Storage) -> (usize, usize) {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let begins = format!("{:x}-", storage.as_ptr().addr());
    let mut numbers = (0, 0);
    let lines = smaps.lines().skip_while(|line| !line.starts_with(&begins));
    for line in lines.skip(1) {
        let mut words = line.split_ascii_whitespace();
        let number = match words.next().unwrap() {
            "Rss:" => &mut numbers.0,
            "Pss:" => &mut numbers.1,
            name if name.ends_with(':') => continue,
            _ => break,
        };
        *number = words.next().unwrap().parse::<usize>().unwrap() << 10;
    }
    numbers
}

fn open_and_populate(fd: OwnedFd) -> Storage {
    let memory = SealedMemory::open(fd).unwrap();
    let storage = memory.map(Tag::Weights).unwrap();
    storage.advise(0..storage.len(), Advice::Populate).unwrap();
    storage
}

/// Two processes have the same bytes and one copy of them: each page counts half to each, and
/// the memory's blocks are as many as before.
#[test]
fn two_processes_have_one_copy() {
    if std::env::var_os(READER).is_some() {
        let fd = io::stdin().as_fd().try_clone_to_owned().unwrap();
        assert!(
            File::from(fd.try_clone().unwrap())
                .write_all_at(&[1], 0)
                .is_err()
        );
        let storage = open_and_populate(fd);
        assert_eq!(bytes_of(&storage), pattern(SHARED));
        assert_eq!(shares(&storage), (SHARED, SHARED / 2));
        println!("read");
        return;
    }
    let memory = sealed(SHARED);
    let file = File::from(memory.try_clone().unwrap());
    assert_eq!(held(&file), SHARED);
    let storage = open_and_populate(memory.try_clone().unwrap());
    assert_eq!(shares(&storage), (SHARED, SHARED));
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "two_processes_have_one_copy",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(READER, "1")
        .stdin(Stdio::from(OwnedFd::from(memory)))
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && out.contains("read"),
        "{out}{errors}"
    );
    assert_eq!(held(&file), SHARED);
    // The mapping keeps the memory, which has no name and no descriptor any more.
    drop(file);
    assert_eq!(bytes_of(&storage), pattern(SHARED));
}

#[test]
fn letting_pages_go_loses_no_byte() {
    let storage = open_and_populate(sealed(MIB).into());
    storage.advise(0..MIB, Advice::DontNeed).unwrap();
    assert_eq!(shares(&storage), (0, 0));
    assert_eq!(bytes_of(&storage), pattern(MIB));
}
