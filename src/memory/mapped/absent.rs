//! The system calls of mappings where there are none: they are refused.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use super::Advice;

/// What ranges of a mapping would be multiples of.
pub(super) fn page_bytes() -> usize {
    4096
}

pub(super) fn map(_file: &File, _offset: u64, _bytes: usize) -> io::Result<NonNull<u8>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// # Safety
/// None: there is no mapping.
pub(super) unsafe fn unmap(_base: NonNull<u8>, _bytes: usize) {}

/// # Safety
/// None: there is no mapping.
pub(super) unsafe fn advise(_start: NonNull<u8>, _bytes: usize, _advice: Advice) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
