//! What every system can do for a [`Draft`](super::draft::Draft): nothing.

use std::fs::File;
use std::io;
use std::path::Path;

/// There are no files without a name.
pub(super) fn unnamed(_directory: &Path, _mode: u32) -> Option<File> {
    None
}

/// Never asked, for there is no file without a name.
pub(super) fn give_name(_file: &File, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Writing will tell.
pub(super) fn reserve(_file: &File, _bytes: u64) -> io::Result<()> {
    Ok(())
}

pub(super) fn free_bytes(_file: &File) -> Option<u64> {
    None
}

pub(super) fn largest_file() -> Option<u64> {
    None
}
