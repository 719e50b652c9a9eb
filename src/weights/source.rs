//! [`Source`]: one checkpoint file, read at offsets, by any thread.
//!
//! Reads are positional, so threads share one open file without a cursor to
//! fight over. A read may come up short, and Linux moves at most 0x7ffff000
//! bytes in one call, so every read loops until it has all or the file ends.
//!
//! A file is remembered by [`Identity`]: which file it was, how long, when last
//! written to, and on Unix when last changed in any way, which nobody can set back. A
//! loader compares it before the first and after the last read. That finds a file that is
//! replaced, cut, or written to, as far as the clock of the file system tells two moments
//! apart; it is no checksum.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, IoSliceMut};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::header::{LENGTH_BYTES, check_length};
use super::{Header, HeaderLimits, SetFault, WeightsError};
use crate::memory::AllocError;

/// What a file was when its header was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    file_bytes: u64,
    modified: Option<SystemTime>,
    /// Device and inode, where there are such things.
    number: Option<(u64, u64)>,
    /// When content, name, mode or owner changed last: seconds and nanoseconds.
    changed: Option<(i64, i64)>,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let (number, changed) = {
            use std::os::unix::fs::MetadataExt;
            (
                Some((metadata.dev(), metadata.ino())),
                Some((metadata.ctime(), metadata.ctime_nsec())),
            )
        };
        #[cfg(not(unix))]
        let (number, changed) = (None, None);
        Self {
            file_bytes: metadata.len(),
            modified: metadata.modified().ok(),
            number,
            changed,
        }
    }

    /// Of a file that is not at hand: no file is it.
    #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    pub(super) fn elsewhere(file_bytes: u64) -> Self {
        Self {
            file_bytes,
            modified: None,
            number: None,
            changed: None,
        }
    }

    /// Tells files apart, whatever their names are, where they have numbers.
    pub(super) fn key<'a>(&self, path: &'a Path) -> (Option<(u64, u64)>, &'a Path) {
        match self.number {
            None => (None, path),
            number => (number, Path::new("")),
        }
    }

    /// What differs, for an error message.
    fn difference(&self, now: &Self) -> Option<String> {
        if self.file_bytes != now.file_bytes {
            return Some(format!(
                "it had {} bytes and has {}",
                self.file_bytes, now.file_bytes
            ));
        }
        if self.number.is_none() && now.number.is_some() {
            return Some("its header came in sealed memory, not from this file".into());
        }
        if self.number != now.number {
            return Some("another file has its name".into());
        }
        if self.modified != now.modified {
            return Some(format!(
                "it was modified at {} and at {} seconds",
                seconds(self.modified),
                seconds(now.modified)
            ));
        }
        let (Some(then), Some(now)) = (self.changed, now.changed) else {
            return None;
        };
        (then != now).then(|| {
            format!(
                "it, its name or its mode was changed at {}.{:09} and at {}.{:09} seconds",
                then.0, then.1, now.0, now.1
            )
        })
    }
}

fn seconds(time: Option<SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map_or(0.0, |since| since.as_secs_f64())
}

/// One open file.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    file: File,
    identity: Identity,
    /// Where reads are not positional, the cursor has one user at a time.
    #[cfg(any(not(unix), tenslab_portable))]
    cursor: crate::sync::Mutex<()>,
}

impl Source {
    /// Opens `path`, which must be an ordinary file.
    pub(super) fn open(path: &Path) -> Result<Self, WeightsError> {
        let io = |error| WeightsError::io(path, "open", error);
        // Asked before opening: opening a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(WeightsError::NotAFile { path: path.into() });
        }
        let file = File::open(path).map_err(io)?;
        let identity = Identity::of(&file.metadata().map_err(io)?);
        Ok(Self {
            path: path.into(),
            file,
            identity,
            #[cfg(any(not(unix), tenslab_portable))]
            cursor: crate::sync::Mutex::new(()),
        })
    }

    /// Opens `path` again and checks that it is still the file it was.
    pub(super) fn reopen(path: &Path, expected: &Identity) -> Result<Self, WeightsError> {
        let source = Self::open(path)?;
        source.compare(expected, &source.identity)?;
        Ok(source)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Is the open file still what it was when it was opened?
    pub(super) fn recheck(&self) -> Result<(), WeightsError> {
        let metadata = self
            .file
            .metadata()
            .map_err(|error| WeightsError::io(&self.path, "examine", error))?;
        self.compare(&self.identity, &Identity::of(&metadata))
    }

    fn compare(&self, expected: &Identity, now: &Identity) -> Result<(), WeightsError> {
        match expected.difference(now) {
            None => Ok(()),
            Some(what) => Err(WeightsError::FileChanged {
                path: self.path.clone(),
                what,
            }),
        }
    }

    /// Fills `bytes` from the file's byte `offset` on. `what` is for the error: a tensor,
    /// or empty for the header. Returns how many calls that took.
    pub(super) fn read_exact_at(
        &self,
        bytes: &mut [u8],
        offset: u64,
        what: &str,
    ) -> Result<u64, WeightsError> {
        let all = bytes.len();
        self.until_all(all, offset, what, |done, at| {
            self.read_at(&mut bytes[done..], at)
        })
    }

    /// Fills these slices, one after the other, as [`read_exact_at`](Self::read_exact_at) does.
    pub(super) fn read_exact_vectored_at(
        &self,
        slices: &mut [IoSliceMut<'_>],
        offset: u64,
        what: &str,
    ) -> Result<u64, WeightsError> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        let (mut left, mut before) = (slices, 0);
        self.until_all(all, offset, what, |done, at| {
            IoSliceMut::advance_slices(&mut left, done - before);
            before = done;
            self.read_vectored_at(left, at)
        })
    }

    /// Has `read` read until there are `all` bytes, and counts the calls. It is told how many
    /// there are, and where in the file the next one is.
    fn until_all(
        &self,
        all: usize,
        offset: u64,
        what: &str,
        mut read: impl FnMut(usize, u64) -> io::Result<usize>,
    ) -> Result<u64, WeightsError> {
        let (mut done, mut calls) = (0, 0);
        while done < all {
            let at = offset.saturating_add(done as u64);
            calls += 1;
            match read(done, at) {
                Ok(0) => {
                    return Err(WeightsError::ShortRead {
                        path: self.path.clone(),
                        tensor: what.into(),
                        at,
                        begin: offset,
                        end: offset.saturating_add(all as u64),
                    });
                }
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(WeightsError::io(&self.path, "read", error)),
            }
        }
        Ok(calls)
    }

    /// Drops these bytes from the page cache, where there is such advice. What is wanted is no
    /// more than less memory, so who cannot follow it is not heard.
    pub(super) fn drop_cached(&self, offset: u64, bytes: u64) {
        #[cfg(all(target_os = "linux", not(tenslab_portable)))]
        if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
            let advice = rustix::fs::Advice::DontNeed;
            let _ = rustix::fs::fadvise(&self.file, offset, Some(bytes), advice);
        }
        #[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
        let _ = (offset, bytes);
    }

    #[cfg(all(unix, not(tenslab_portable)))]
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.file, bytes, offset)
    }

    #[cfg(any(not(unix), tenslab_portable))]
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        use std::io::{Read, Seek, SeekFrom};
        let _alone = self.cursor.lock();
        (&self.file).seek(SeekFrom::Start(offset))?;
        (&self.file).read(bytes)
    }

    #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    fn read_vectored_at(&self, slices: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::preadv(&self.file, slices, offset)?)
    }

    /// The first of them: the rest is read by the next calls.
    #[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
    fn read_vectored_at(&self, slices: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        match slices.iter_mut().find(|slice| !slice.is_empty()) {
            Some(slice) => self.read_at(slice, offset),
            None => Ok(0),
        }
    }

    /// Reads and checks the header.
    pub(super) fn header(&self, limits: &HeaderLimits) -> Result<Header, WeightsError> {
        let fault = |fault| WeightsError::format(&self.path, fault);
        let file_bytes = self.identity.file_bytes;
        let mut first = [0; 64];
        let known = usize::try_from(file_bytes).unwrap_or(first.len());
        let first = &mut first[..known.min(64)];
        self.read_exact_at(first, 0, "")?;
        // Not larger than the file, so a short file cannot ask for much memory.
        let header_bytes = check_length(first, file_bytes, limits).map_err(fault)?;
        let mut text = self.buffer(header_bytes, "header")?;
        self.read_exact_at(&mut text, LENGTH_BYTES, "")?;
        Header::from_text(text, file_bytes, limits).map_err(fault)
    }

    /// Reads the whole file, if it has no more than `limit` bytes.
    pub(super) fn read_all(&self, limit: u64) -> Result<Vec<u8>, WeightsError> {
        let file_bytes = self.identity.file_bytes;
        let bytes = usize::try_from(file_bytes)
            .ok()
            .filter(|_| file_bytes <= limit)
            .ok_or_else(|| {
                let reason = format!("it has {file_bytes} bytes, and the limit is {limit}");
                WeightsError::set(&self.path, SetFault::BadIndex { reason })
            })?;
        let mut text = self.buffer(bytes, "index")?;
        self.read_exact_at(&mut text, 0, "")?;
        Ok(text)
    }

    /// Zeroed memory, or an error where `vec!` would abort.
    pub(super) fn buffer(&self, bytes: usize, what: &'static str) -> Result<Vec<u8>, WeightsError> {
        let mut text = Vec::new();
        text.try_reserve_exact(bytes)
            .map_err(|_| self.no_memory(bytes, what, AllocError::OutOfMemory { bytes }))?;
        text.resize(bytes, 0);
        Ok(text)
    }

    pub(super) fn no_memory(
        &self,
        bytes: usize,
        what: &'static str,
        source: AllocError,
    ) -> WeightsError {
        WeightsError::Memory {
            path: self.path.clone(),
            bytes: bytes as u64,
            what,
            source,
        }
    }
}
