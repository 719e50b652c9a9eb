//! What the kernel says is resident: of the process, and of a buffer's own pages.
//!
//! An allocator knows what it handed out and what it reserved. Which of those pages
//! have memory behind them only the kernel knows: pages come with the first touch, and
//! those given back with `MADV_FREE` count as resident until somebody needs them.

use std::io;

use serde::Serialize;

use super::{Buffer, resident_bytes};

/// Memory of this process, as the kernel counts it.
///
/// ```
/// use tenslab::memory::ProcessMemory;
///
/// # if cfg!(target_os = "linux") {
/// let memory = ProcessMemory::read()?;
/// assert!(memory.resident_bytes >= memory.anonymous_bytes);
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct ProcessMemory {
    /// Bytes of pages that have memory behind them: RSS.
    pub resident_bytes: usize,
    /// Of these, the pages that are of no file: heap, stacks, mappings of allocators.
    pub anonymous_bytes: usize,
    /// Of these, the pages that were given back with `MADV_FREE` and that nobody has
    /// needed yet.
    pub lazy_free_bytes: usize,
    /// Bytes that were moved to swap.
    pub swapped_bytes: usize,
}

impl ProcessMemory {
    /// Asks the kernel (`/proc/self/smaps_rollup`). It walks every page of the process:
    /// about 50 us for a small one. No heap block.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) on systems other than Linux; an error
    /// of the file otherwise.
    pub fn read() -> io::Result<Self> {
        os::process()
    }

    /// Resident bytes of this process alone: RSS, from `/proc/self/statm`. The short way,
    /// a few microseconds. No heap block.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn resident() -> io::Result<usize> {
        os::resident()
    }
}

impl Buffer {
    /// Bytes of the pages it lies in that have memory behind them: [`resident_bytes`] of
    /// its bytes.
    ///
    /// ```
    /// use tenslab::memory;
    ///
    /// # if cfg!(all(target_os = "linux", not(tenslab_portable))) {
    /// let mut buffer = memory::cpu().allocate_zeroed(8 << 20, 64)?;
    /// assert_eq!(buffer.resident_bytes().unwrap(), 0);
    /// buffer.as_mut_slice()[5 << 20] = 1;
    /// assert!(buffer.resident_bytes().unwrap() > 0);
    /// # }
    /// # Ok::<(), memory::AllocError>(())
    /// ```
    ///
    /// # Errors
    /// As [`ProcessMemory::read`].
    pub fn resident_bytes(&self) -> io::Result<usize> {
        resident_bytes(self.as_slice()).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }
}

#[cfg(target_os = "linux")]
mod os {
    use std::fs::File;
    use std::io::{self, Read};

    use super::ProcessMemory;

    /// Larger than what the two files hold: a line for each number.
    const FILE_BYTES: usize = 4096;

    /// Reads a file whole, and lends its text.
    fn with_text<T>(path: &str, parse: impl FnOnce(&str) -> Option<T>) -> io::Result<T> {
        let mut buffer = [0; FILE_BYTES];
        let mut file = File::open(path)?;
        let mut filled = 0;
        loop {
            match file.read(&mut buffer[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        std::str::from_utf8(&buffer[..filled])
            .ok()
            .and_then(parse)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub(super) fn process() -> io::Result<ProcessMemory> {
        with_text("/proc/self/smaps_rollup", |text| {
            let mut memory = ProcessMemory::default();
            let mut found = 0;
            for line in text.lines() {
                let mut words = line.split_ascii_whitespace();
                let number = match words.next()? {
                    "Rss:" => &mut memory.resident_bytes,
                    "Anonymous:" => &mut memory.anonymous_bytes,
                    "LazyFree:" => &mut memory.lazy_free_bytes,
                    "Swap:" => &mut memory.swapped_bytes,
                    _ => continue,
                };
                *number = words.next()?.parse::<usize>().ok()?.checked_mul(1024)?;
                found += 1;
            }
            (found == 4).then_some(memory)
        })
    }

    pub(super) fn resident() -> io::Result<usize> {
        with_text("/proc/self/statm", |text| {
            let pages: usize = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
            pages.checked_mul(rustix::param::page_size())
        })
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    use std::io;

    use super::ProcessMemory;

    pub(super) fn process() -> io::Result<ProcessMemory> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn resident() -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
