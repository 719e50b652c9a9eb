//! The system calls of mappings, on Unix. No heap block.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use super::Advice;

/// What ranges of a mapping are multiples of.
pub(super) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Maps `bytes` bytes of a file from `offset`, a multiple of a page, read-only.
///
/// Private: a debugger that writes gets pages of its own and the file stays as it is; and
/// before Linux 6.7 memory that is sealed against writing cannot be mapped otherwise.
pub(super) fn map(file: &File, offset: u64, bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: without a fixed address the kernel picks a range that is free, so no existing
    // memory is touched.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ,
            MapFlags::PRIVATE,
            file,
            offset,
        )
    }?;
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// # Safety
/// The range is a whole mapping of ours, and nobody uses it any more.
pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // Where the kernel refuses, the addresses are leaked, which is sound.
    // SAFETY: a mapping of ours, unused (the caller's promise).
    let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), bytes) };
}

/// Tells the kernel what is going to happen to some bytes of a mapping.
///
/// # Safety
/// The bytes are of a read-only mapping of ours, to which nobody ever wrote.
pub(super) unsafe fn advise(start: NonNull<u8>, bytes: usize, advice: Advice) -> io::Result<()> {
    let before = start.addr().get() & (page_bytes() - 1);
    let first = start.as_ptr().wrapping_sub(before);
    let whole = bytes + before;
    let outcome = {
        // SAFETY: pages of our own mapping. No advice changes what is read there: what is
        // dropped comes from the file again, for nobody wrote to it (the caller's promise).
        unsafe { rustix::mm::madvise(first.cast(), whole, system(advice)) }
    };
    match outcome {
        // A kernel before 5.14 does not know how to populate.
        Err(rustix::io::Errno::INVAL) if advice == Advice::Populate => {}
        other => return Ok(other?),
    }
    touch(start, bytes);
    Ok(())
}

/// Reads a byte of each page.
fn touch(start: NonNull<u8>, bytes: usize) {
    for at in (0..bytes).step_by(page_bytes()) {
        // SAFETY: `at` is less than the bytes, which are of a mapping.
        let byte = unsafe { start.add(at) };
        // SAFETY: a mapped byte that nobody writes.
        unsafe { byte.read_volatile() };
    }
}

#[cfg(target_os = "linux")]
fn system(advice: Advice) -> rustix::mm::Advice {
    match advice {
        Advice::Normal => rustix::mm::Advice::Normal,
        Advice::Sequential => rustix::mm::Advice::Sequential,
        Advice::Random => rustix::mm::Advice::Random,
        Advice::WillNeed => rustix::mm::Advice::WillNeed,
        Advice::Populate => rustix::mm::Advice::LinuxPopulateRead,
        Advice::DontNeed => rustix::mm::Advice::LinuxDontNeed,
    }
}

#[cfg(not(target_os = "linux"))]
fn system(advice: Advice) -> rustix::mm::Advice {
    match advice {
        Advice::Normal => rustix::mm::Advice::Normal,
        Advice::Sequential => rustix::mm::Advice::Sequential,
        Advice::Random => rustix::mm::Advice::Random,
        Advice::WillNeed | Advice::Populate => rustix::mm::Advice::WillNeed,
        Advice::DontNeed => rustix::mm::Advice::DontNeed,
    }
}
