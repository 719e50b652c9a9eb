//! What Linux can do for a [`Draft`](super::draft::Draft).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, fstatvfs, linkat, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

/// A file in this directory without a name. None where there is no such thing, and also
/// where something else is wrong: making a named one will tell what.
pub(super) fn unnamed(directory: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    let file = File::from(retry_on_intr(|| open(directory, flags, mode)).ok()?);
    // Asked now: it would be late when all is written.
    fs::symlink_metadata(proc_path(&file)).ok().map(|_| file)
}

/// By this name a file is linked; the other way needs a capability.
fn proc_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Names it. Replaces nothing.
pub(super) fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let flags = AtFlags::SYMLINK_FOLLOW;
    Ok(linkat(CWD, proc_path(file), CWD, path, flags)?)
}

/// Takes the room for as many bytes, or learns that there is none. What a file system that
/// cannot reserve says is no error: writing will tell.
pub(super) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match retry_on_intr(|| fallocate(file.as_fd(), FallocateFlags::empty(), 0, bytes)) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Bytes that are free in its file system, for those who are not root.
pub(super) fn free_bytes(file: &File) -> Option<u64> {
    let found = fstatvfs(file.as_fd()).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

/// The limit of the process.
pub(super) fn largest_file() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}
