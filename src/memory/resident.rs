//! What the kernel says is resident: of the process, and of a buffer's own pages.
//!
//! An allocator knows what it handed out and what it reserved. Which of those pages
//! have memory behind them only the kernel knows: pages come with the first touch, and
//! those given back with `MADV_FREE` count as resident until somebody needs them.

use std::io;

use serde::Serialize;

use super::Buffer;

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
}

/// Resident bytes of this process: RSS, from `/proc/self/statm`. The short way, a few
/// microseconds. No heap block.
///
/// # Errors
/// As [`ProcessMemory::read`].
pub fn resident_bytes() -> io::Result<usize> {
    os::resident()
}

impl Buffer {
    /// How many of its bytes have memory behind them, from `/proc/self/pagemap`.
    ///
    /// Counts a page that was only ever read too, although it is the kernel's one page
    /// of zeros. One read of the kernel for each 2 MiB; no heap block.
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
        let start = self.as_ptr().addr();
        os::resident_of(start..start + self.len())
    }
}

#[cfg(target_os = "linux")]
mod os {
    use std::fs::File;
    use std::io::{self, Read};
    use std::ops::Range;
    use std::os::unix::fs::FileExt;

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

    /// Bytes of the page map for each page.
    const ENTRY_BYTES: usize = 8;
    /// The bit of an entry that says that the page is in memory.
    const PRESENT: u64 = 1 << 63;

    pub(super) fn resident_of(range: Range<usize>) -> io::Result<usize> {
        if range.is_empty() {
            return Ok(0);
        }
        let page_bytes = rustix::param::page_size();
        let map = File::open("/proc/self/pagemap")?;
        let mut entries = [0; 512 * ENTRY_BYTES];
        let (mut page, end) = (range.start / page_bytes, range.end.div_ceil(page_bytes));
        let mut resident = 0;
        while page < end {
            let wanted = (end - page).min(entries.len() / ENTRY_BYTES) * ENTRY_BYTES;
            map.read_exact_at(&mut entries[..wanted], page as u64 * ENTRY_BYTES as u64)?;
            for entry in entries[..wanted].as_chunks::<ENTRY_BYTES>().0 {
                if u64::from_ne_bytes(*entry) & PRESENT != 0 {
                    let start = (page * page_bytes).max(range.start);
                    resident += ((page + 1) * page_bytes).min(range.end) - start;
                }
                page += 1;
            }
        }
        Ok(resident)
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    use std::io;
    use std::ops::Range;

    use super::ProcessMemory;

    pub(super) fn process() -> io::Result<ProcessMemory> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn resident() -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn resident_of(_range: Range<usize>) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
