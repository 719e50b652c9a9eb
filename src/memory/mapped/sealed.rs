//! Memory that processes share and that nobody can change any more.
//!
//! ```text
//!   one process                                  any number of others
//!   UnsealedMemory ── fill ── seal ─▶ SealedMemory ── its file descriptor ─▶ SealedMemory::open
//!                                       │                                      │ checks the seals
//!                                       ▼ map                                  ▼ map
//!                                     Storage           the same pages       Storage
//! ```
//!
//! It is a file without a name that is in memory only (`memfd_create`). A seal is for ever and
//! for everybody, also for who made the memory: against writing, shrinking and growing. So what
//! the seals say at one moment they say at every later one, and mapping after they were checked
//! is safe, whoever passed the descriptor.
//!
//! `F_SEAL_FUTURE_WRITE` is not enough: who mapped it for writing before goes on writing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{MapError, Seals, map, nowhere, os};
use crate::memory::{HugePages, Storage, Tag};

/// The seals that make mapping safe.
const NEEDED: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW);

/// Memory for several processes that is being filled: by one owner, before it is
/// [sealed](UnsealedMemory::seal) and passed on. Linux only.
///
/// ```
/// use tenslab::memory::{SealedMemory, Tag, UnsealedMemory};
///
/// let mut weights = UnsealedMemory::new("weights", 1 << 20)?;
/// weights.as_mut_slice()[..3].copy_from_slice(b"abc");
/// let weights = weights.seal()?;
///
/// // In another process, which has the descriptor from this one:
/// let theirs = SealedMemory::open(weights.try_clone()?)?;
/// let storage = theirs.map(Tag::Weights)?;
/// assert!(storage.is_frozen() && storage.len() == 1 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct UnsealedMemory {
    file: File,
    mapping: Mapping,
}

impl UnsealedMemory {
    /// So many zero bytes. The name is for the eyes of who looks into `/proc`; it need not be
    /// the only one of its kind.
    ///
    /// All the memory is taken here, so that none is missing when it is written: the cost is
    /// that of the pages, about as much as to write them.
    ///
    /// # Errors
    /// [`MapError::System`] where there is no such memory to have, where the system has no
    /// memfd, and for a name with a zero byte or of more than 249; [`MapError::TooLarge`].
    pub fn new(name: &str, bytes: usize) -> Result<Self, MapError> {
        Self::with_huge_pages(name, bytes, HugePages::Inherit)
    }

    /// As [`new`](Self::new), with a policy for huge pages: [`Dense`](HugePages::Dense) gets
    /// them where the system lets shared memory have them on request
    /// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled` says `advise` or more).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_huge_pages(name: &str, bytes: usize, huge: HugePages) -> Result<Self, MapError> {
        if isize::try_from(bytes).is_err() {
            let bytes = bytes as u64;
            return Err(MapError::TooLarge { bytes });
        }
        let refused = |errno: Errno| MapError::System {
            action: "make shared memory of",
            bytes: bytes as u64,
            source: errno.into(),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Never to be executed, which some systems insist on; and others do not know.
        let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
            other => other,
        };
        let file = File::from(fd.map_err(refused)?);
        if bytes == 0 {
            let mapping = Mapping::nowhere();
            return Ok(Self { file, mapping });
        }
        rustix::fs::ftruncate(&file, bytes as u64).map_err(refused)?;
        let mapping = Mapping::new(&file, bytes).map_err(refused)?;
        mapping.advise(huge);
        // The rest of the pages. Without them a write that finds no memory would be a signal;
        // here it is an error.
        let flags = FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, bytes as u64).map_err(refused)?;
        Ok(Self { file, mapping })
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let bytes = NonNull::slice_from_raw_parts(self.mapping.base, self.mapping.bytes);
        // SAFETY: a mapping of so many bytes (or nowhere, of none), zero at first. The file is
        // as long, and nobody else has its descriptor before it is sealed, so nobody cuts or
        // writes it; through `&self` the bytes are only read.
        unsafe { bytes.as_ref() }
    }

    /// The bytes, to write.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let mut bytes = NonNull::slice_from_raw_parts(self.mapping.base, self.mapping.bytes);
        // SAFETY: a mapping of so many bytes (or nowhere, of none), zero at first. The file is
        // as long, and nobody else has its descriptor before it is sealed, so nobody cuts or
        // writes it; `&mut self` keeps every other slice of them away.
        unsafe { bytes.as_mut() }
    }

    /// Forbids everybody to write it and to change its length, for ever. The bytes stay where
    /// they are; nothing is copied.
    ///
    /// # Errors
    /// [`MapError::System`] with [`ResourceBusy`](io::ErrorKind::ResourceBusy) where it is
    /// still mapped for writing, by a child that was forked meanwhile, or where a device still
    /// writes to it. The memory is gone then.
    pub fn seal(self) -> Result<SealedMemory, MapError> {
        let Self { file, mapping } = self;
        let bytes = mapping.bytes as u64;
        // What is mapped for writing cannot be sealed against it.
        drop(mapping);
        rustix::fs::fcntl_add_seals(&file, NEEDED | SealFlags::SEAL).map_err(|errno| {
            MapError::System {
                action: "seal",
                bytes,
                source: errno.into(),
            }
        })?;
        SealedMemory::open(file)
    }
}

/// The whole of a file mapped for writing, or no bytes.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its bytes alone, and any thread may unmap them.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` lends nothing.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn nowhere() -> Self {
        Self {
            base: nowhere(),
            bytes: 0,
        }
    }

    /// `bytes` is not 0.
    fn new(file: &File, bytes: usize) -> Result<Self, Errno> {
        // SAFETY: without a fixed address the kernel picks a range that is free, so no
        // existing memory is touched.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    /// Asks for huge pages and has them made, if that is the policy: without the advice of a
    /// mapping, `fallocate` makes small ones.
    fn advise(&self, huge: HugePages) {
        let advice: &[_] = match huge {
            HugePages::Inherit => return,
            HugePages::Never => &[rustix::mm::Advice::LinuxNoHugepage],
            HugePages::Dense => &[
                rustix::mm::Advice::LinuxHugepage,
                rustix::mm::Advice::LinuxPopulateWrite,
            ],
        };
        for &advice in advice {
            // What it refuses is made of small pages.
            // SAFETY: the whole of our own mapping; the advice changes nothing that is in it.
            let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the whole of our own mapping, once; slices of it borrow its owner.
            unsafe { os::unmap(self.base, self.bytes) };
        }
    }
}

/// Memory of which the kernel promises that nobody changes it any more: not its bytes and not
/// its length. Linux only.
///
/// It is a file descriptor. It goes to another process as any other: as its standard input, by
/// inheritance, through a socket. It keeps the memory; so does every mapping.
#[derive(Debug)]
pub struct SealedMemory {
    file: File,
    bytes: u64,
}

impl SealedMemory {
    /// Takes the descriptor of memory that was sealed, mostly by another process, and checks
    /// that it is sealed against writing, shrinking and growing. Whoever sent it cannot undo
    /// that, so it need not be trusted, except with what the bytes say.
    ///
    /// # Errors
    /// [`MapError::NotSealed`] with the seals that it lacks, [`MapError::NoSeals`] for what
    /// is no memfd: a file, say.
    pub fn open(fd: impl Into<OwnedFd>) -> Result<Self, MapError> {
        let file = File::from(fd.into());
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|errno| MapError::NoSeals {
            source: errno.into(),
        })?;
        if !seals.contains(NEEDED) {
            let missing = Seals {
                write: !seals.contains(SealFlags::WRITE),
                shrink: !seals.contains(SealFlags::SHRINK),
                grow: !seals.contains(SealFlags::GROW),
            };
            return Err(MapError::NotSealed { missing });
        }
        // Only now: before the seals were there, the length could change.
        let metadata = file.metadata();
        let bytes = metadata
            .map_err(|source| MapError::Length { source })?
            .len();
        Ok(Self { file, bytes })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Are there no bytes?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All of it as a frozen storage, without a copy: every mapping in every process is of the
    /// same pages. The descriptor may be dropped afterwards.
    ///
    /// Cost: one system call and two heap blocks, whatever the size. A page is mapped at its
    /// first touch, or by [`Storage::advise`].
    ///
    /// # Errors
    /// [`MapError::System`] where it cannot be mapped: too many mappings, or a descriptor that
    /// is not open for reading; [`MapError::TooLarge`].
    pub fn map(&self, tag: Tag) -> Result<Storage, MapError> {
        // The seals make it safe: nobody writes the bytes or cuts them off.
        map(&self.file, 0, self.bytes, tag)
    }

    /// One more descriptor of the same memory, closed on `exec` as this one.
    ///
    /// # Errors
    /// Where the process may have no more of them.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
}

impl AsFd for SealedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<SealedMemory> for OwnedFd {
    fn from(memory: SealedMemory) -> Self {
        memory.file.into()
    }
}
