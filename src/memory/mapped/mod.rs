//! Files as memory: frozen storages whose bytes are a file's, without a copy.
//!
//! ```text
//!   file      |----------|==== range ====|-----------|
//!   mapping        | page | page | page | page |        read-only, private
//!   Storage           ▲ first byte       ▲ len          frozen from birth; the last handle unmaps
//! ```
//!
//! | | who may change the bytes meanwhile | safe |
//! |---|---|---|
//! | [`map_file`] | whoever may write to the file | no: that nobody does is the caller's promise |
//! | [`SealedMemory::map`] | nobody: the kernel has sealed them | yes |
//!
//! Pages come from the system's page cache with the first touch, and processes that map one
//! file share them. Nothing here writes: the pages are read-only, the storage is frozen before
//! anybody has a handle of it, and what is frozen stays so. So every door that lends bytes to
//! write (`get_mut`, `write`, `decommit`, the `unsafe` slices) refuses, and a write through a
//! raw pointer traps.
//!
//! A mapping is a [`Block`] of an allocator that only takes back, one for the process, which
//! also knows how much is mapped ([`mapped_bytes`]). It is in no meter and no budget: the page
//! cache is the system's, which takes it back when memory is short.

#[cfg(not(all(unix, not(tenslab_portable))))]
#[path = "absent.rs"]
mod os;
#[cfg(all(unix, not(tenslab_portable)))]
mod os;

mod error;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod sealed;

use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;

pub use self::error::{MapError, Seals};
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
pub use self::sealed::{SealedMemory, UnsealedMemory};

use super::buffer::check;
use super::{AllocError, Allocator, Block, Request, SharedAllocator, Stats, Storage, Tag};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{CachePadded, OnceLock, Ordering};

/// Maps a range of a file into memory, without a copy, as a frozen storage of so many bytes.
///
/// The range may begin anywhere; so the first byte is aligned as the range's start is, up to a
/// page. An empty range is an aligned storage of no bytes. The file may be closed afterwards:
/// the mapping keeps it. The last handle, tensor or view of the storage unmaps it.
///
/// ```
/// use std::fs::File;
/// use tenslab::memory::{self, Advice, Tag};
/// use tenslab::{DType, Tensor};
///
/// # if cfg!(all(unix, not(tenslab_portable))) {
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("weights");
/// std::fs::write(&path, [0_u8; 8].into_iter().chain(2.5_f32.to_ne_bytes()).collect::<Vec<_>>())?;
///
/// let file = File::open(&path)?;
/// // SAFETY: nobody else knows the file.
/// let storage = unsafe { memory::map_file(&file, 8..12, Tag::Weights) }?;
/// storage.advise(0..4, Advice::Populate)?;
/// let tensor = Tensor::from_storage(&storage, 0, [1], DType::F32)?;
/// assert_eq!(tensor.read::<f32>()?[..], [2.5]);
/// assert!(tensor.write::<f32>().is_err());
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cost: two system calls and two heap blocks, whatever the size. A first touch of a page that
/// is not in the page cache reads the file.
///
/// # Errors
/// [`MapError::OutOfFile`] where the range is not in the file, [`MapError::System`] where it
/// cannot be mapped: no regular file, not opened for reading, too many mappings, a system
/// without them ([`Unsupported`](std::io::ErrorKind::Unsupported)).
///
/// # Safety
/// While the storage or anything made of it lives:
/// - nobody writes to the range, in this or in another process, also not through another
///   mapping or name of the file: that would be a data race, and bytes that were checked would
///   be others when they are used;
/// - nobody makes the file shorter than the range's end: a touch of what is gone ends the
///   process (`SIGBUS`). So it does where the medium or the network fails under the file.
///
/// Replacing a file by renaming another one over it is fine: the mapping keeps the old one.
pub unsafe fn map_file(file: &File, range: Range<u64>, tag: Tag) -> Result<Storage, MapError> {
    let metadata = file.metadata();
    let file_bytes = metadata
        .map_err(|source| MapError::Length { source })?
        .len();
    let Range { start, end } = range;
    if start > end || end > file_bytes {
        return Err(MapError::OutOfFile {
            start,
            end,
            file_bytes,
        });
    }
    map(file, start, end - start, tag)
}

/// Maps a range that is in the file. What the bytes are while they are mapped is the caller's
/// to answer for.
fn map(file: &File, start: u64, bytes: u64, tag: Tag) -> Result<Storage, MapError> {
    let page = os::page_bytes();
    // Less than a page.
    let before = start % page as u64;
    let whole = usize::try_from(bytes + before)
        .ok()
        .and_then(|bytes| bytes.checked_next_multiple_of(page))
        .filter(|&whole| whole <= isize::MAX as usize)
        .ok_or(MapError::TooLarge { bytes })?;
    #[allow(clippy::cast_possible_truncation, reason = "both were found to fit")]
    let (len, before) = (bytes as usize, before as usize);
    if len == 0 {
        return Ok(adopt(nowhere(), 0, 0, 0, tag));
    }
    let base = os::map(file, start - before as u64, whole).map_err(|source| MapError::System {
        action: "map",
        bytes,
        source,
    })?;
    // SAFETY: less than a page into a mapping of at least one.
    let first = unsafe { base.add(before) };
    Ok(adopt(first, len, whole, before, tag))
}

/// A frozen storage of a mapping of `whole` bytes that begins `before` bytes in front of `first`.
fn adopt(first: NonNull<u8>, len: usize, whole: usize, before: usize, tag: Tag) -> Storage {
    let block = Block::new(first, len, whole, before as u64, tag);
    let counts = mappings().counts;
    let count = &counts[tag as usize];
    // Relaxed: numbers to look at; nothing is decided by them.
    count.requested.fetch_add(len, Ordering::Relaxed);
    count.mapped.fetch_add(whole, Ordering::Relaxed);
    // SAFETY: mapped just now and in nobody else's hands. That the bytes cannot be written is
    // no matter: the buffer is never lent, and what is made of it is frozen at once.
    Storage::frozen(unsafe { mappings().shared.adopt(block) })
}

/// Where no bytes are: aligned as any tensor wants it.
fn nowhere() -> NonNull<u8> {
    NonNull::<CachePadded<u8>>::dangling().cast()
}

/// How much is mapped under a tag, of files and of sealed memory: bytes of the pages, whether
/// they are in memory or not. Other threads go on meanwhile.
///
/// For a picture of memory beside a [`Meter`](super::Meter)'s, which knows nothing of mappings.
#[must_use]
pub fn mapped_bytes(tag: Tag) -> usize {
    // Relaxed: a number to look at.
    mappings().counts[tag as usize]
        .mapped
        .load(Ordering::Relaxed)
}

/// What is going to happen to bytes of a mapping, so that the system can prepare. None of it
/// changes what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing in particular: what a fresh mapping has.
    Normal,
    /// They are read from the first to the last: the system reads far ahead.
    Sequential,
    /// They are read here and there: the system reads nothing ahead.
    Random,
    /// They are needed soon: the system begins to read them from the file, and the call does
    /// not wait.
    WillNeed,
    /// They are needed now: the call comes back when they are in memory and mapped, so that
    /// no touch waits. On Linux a file that turns out to be too short is an error here and no
    /// signal.
    Populate,
    /// They are not needed for now: this process lets their pages go, and the next touch gets
    /// them from the page cache, or from the file.
    DontNeed,
}

impl Storage {
    /// Is it a mapping: of [`map_file`] or of sealed memory?
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.is_of(&mappings().shared)
    }

    /// Tells the system what is going to happen to a range of a mapping. It is about whole
    /// pages: all that the range touches.
    ///
    /// Cost: one system call; [`Advice::Populate`] waits for the file. Any thread may call it,
    /// whoever reads meanwhile.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] for a storage that is no mapping, [`MapError::System`] where
    /// the system refuses, or cannot read the file.
    ///
    /// # Panics
    /// If the range is not of this storage.
    #[track_caller]
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), MapError> {
        check(&range, self.len());
        if !self.is_mapped() {
            let storage = self.id();
            return Err(MapError::NotMapped { storage });
        }
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: the range was checked to be of the storage.
        let start = unsafe { self.base().add(range.start) };
        // SAFETY: bytes of a mapping that is there while this handle is; its pages are
        // read-only, so nobody ever wrote to it.
        let outcome = unsafe { os::advise(start, range.len(), advice) };
        outcome.map_err(|source| MapError::System {
            action: "advise the system about",
            bytes: range.len() as u64,
            source,
        })
    }
}

/// Takes mappings back, and hands out none: they come by [`adopt`].
struct Mappings(&'static Counts);

type Counts = [Count; Tag::ALL.len()];

/// What is mapped under one tag, in bytes.
#[derive(Default)]
struct Count {
    requested: AtomicUsize,
    mapped: AtomicUsize,
}

/// The process's own allocator of mappings, and its books.
struct Process {
    shared: SharedAllocator,
    counts: &'static Counts,
}

/// Never destroyed, like the process's [`cpu`](super::cpu).
fn mappings() -> &'static Process {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(|| {
        let counts: &Counts = Box::leak(Box::default());
        Process {
            shared: SharedAllocator::new(Mappings(counts)),
            counts,
        }
    })
}

// SAFETY: it hands out no block of its own. What is adopted for it is mapped until it comes
// back, belongs to one storage, is initialised by the file, and is frozen: read-only.
unsafe impl Allocator for Mappings {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        let bytes = request.bytes();
        Err(AllocError::OutOfMemory { bytes })
    }

    unsafe fn release_block(&self, block: Block) {
        let count = &self.0[block.tag() as usize];
        // Relaxed: numbers to look at.
        count.requested.fetch_sub(block.len(), Ordering::Relaxed);
        count.mapped.fetch_sub(block.capacity(), Ordering::Relaxed);
        if block.capacity() == 0 {
            return;
        }
        #[allow(
            clippy::cast_possible_truncation,
            reason = "`adopt` made it of a usize"
        )]
        let before = block.cookie() as usize;
        // SAFETY: `map` found the first byte so far into the mapping.
        let base = unsafe { block.as_ptr().sub(before) };
        // SAFETY: the whole mapping, once, and nobody uses it (the caller's promise).
        unsafe { os::unmap(base, block.capacity()) };
    }

    /// Its pages are read-only as they are.
    unsafe fn protect(&self, block: &Block) -> usize {
        block.capacity()
    }

    fn stats(&self) -> Stats {
        // Relaxed: numbers to look at.
        let sum = |of: fn(&Count) -> &AtomicUsize| {
            self.0
                .iter()
                .map(|count| of(count).load(Ordering::Relaxed))
                .sum()
        };
        let live_bytes = sum(|count| &count.mapped);
        Stats {
            requested_bytes: sum(|count| &count.requested),
            live_bytes,
            reserved_bytes: live_bytes,
            ..Stats::default()
        }
    }
}
