//! Computes the digests of files, each by one thread, from first byte to last.
//!
//! A file is hashed by a pass of its own before it is loaded. Both passes compare it with what
//! it was when its header was read, before and after, so they read the same file.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::digest::{FileDigest, Sha256Digest};
use super::work::{Listener, on_threads};
use crate::sync::Mutex;
use crate::weights::source::Source;
use crate::weights::{Checkpoint, CheckpointFile, WeightsError};

/// Bytes that are read and hashed at a time: in the cache still when they are hashed.
const READ_BYTES: usize = 256 << 10;

struct Work {
    next: usize,
    done_bytes: u64,
    found: Vec<Option<Sha256Digest>>,
    /// The failure in the first of the files so far.
    failed: Option<(usize, WeightsError)>,
}

/// The digests of all files, in their order, which are those that are expected.
pub(super) fn digests(
    checkpoint: &Checkpoint,
    expected: &BTreeMap<String, Sha256Digest>,
    threads: usize,
    listener: &mut Listener<'_>,
) -> Result<Vec<FileDigest>, WeightsError> {
    let files = checkpoint.files();
    refuse_unknown(checkpoint, expected)?;
    listener.tell(checkpoint, 0)?;
    let work = Mutex::new(Work {
        next: 0,
        done_bytes: 0,
        found: vec![None; files.len()],
        failed: None,
    });
    let hash = |tell: &mut dyn FnMut(u64) -> Result<(), WeightsError>| {
        while let Some((at, file)) = next(&work, files) {
            let digest = one(file, &mut |bytes| {
                let done_bytes = {
                    let mut work = work.lock();
                    work.done_bytes += bytes;
                    work.done_bytes
                };
                tell(done_bytes)
            });
            let digest = digest.and_then(|found| compare(file, expected, found));
            let mut work = work.lock();
            match digest {
                Ok(found) => work.found[at] = Some(found),
                Err(error) => {
                    let cancelled = matches!(error, WeightsError::Cancelled { .. });
                    let at = if cancelled { 0 } else { at + 1 };
                    if work.failed.as_ref().is_none_or(|(first, _)| at < *first) {
                        work.failed = Some((at, error));
                    }
                }
            }
        }
    };
    on_threads(
        threads.min(files.len()),
        || hash(&mut |_| Ok(())),
        || hash(&mut |done_bytes| listener.tell(checkpoint, done_bytes)),
    );
    let mut work = work.lock();
    if let Some((_, error)) = work.failed.take() {
        return Err(error);
    }
    listener.part_is_done(work.done_bytes);
    let found = files.iter().zip(&work.found);
    let found = found.filter_map(|(file, sha256)| {
        Some(FileDigest {
            path: file.path().into(),
            sha256: (*sha256)?,
        })
    });
    Ok(found.collect())
}

/// The next file; none after a failure.
fn next<'a>(
    work: &Mutex<Work>,
    files: &'a [CheckpointFile],
) -> Option<(usize, &'a CheckpointFile)> {
    let mut work = work.lock();
    if work.failed.is_some() {
        return None;
    }
    let at = work.next;
    let file = files.get(at)?;
    work.next += 1;
    Some((at, file))
}

/// Hashes one file.
fn one(
    file: &CheckpointFile,
    done: &mut dyn FnMut(u64) -> Result<(), WeightsError>,
) -> Result<Sha256Digest, WeightsError> {
    let source = Source::reopen(file.path(), &file.identity)?;
    let mut buffer = source.buffer(READ_BYTES, "scratch")?;
    let mut hasher = Sha256::new();
    let (mut at, end) = (0, file.file_bytes());
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(READ_BYTES);
        let bytes = &mut buffer[..left.min(READ_BYTES)];
        source.read_exact_at(bytes, at, "")?;
        hasher.update(&*bytes);
        at += bytes.len() as u64;
        done(bytes.len() as u64)?;
    }
    source.recheck()?;
    Ok(Sha256Digest::from_bytes(hasher.finalize().into()))
}

/// A file's name, as those who publish digests write it.
fn name(file: &CheckpointFile) -> Option<&str> {
    file.path().file_name()?.to_str()
}

fn compare(
    file: &CheckpointFile,
    expected: &BTreeMap<String, Sha256Digest>,
    found: Sha256Digest,
) -> Result<Sha256Digest, WeightsError> {
    match name(file).and_then(|name| expected.get(name)) {
        Some(&expected) if expected != found => Err(WeightsError::Digest {
            path: file.path().into(),
            expected: Box::new(expected),
            found: Box::new(found),
        }),
        _ => Ok(found),
    }
}

/// A digest of a file that is not there would be compared with nothing.
fn refuse_unknown(
    checkpoint: &Checkpoint,
    expected: &BTreeMap<String, Sha256Digest>,
) -> Result<(), WeightsError> {
    let files = checkpoint.files();
    for wanted in expected.keys() {
        if !files.iter().any(|file| name(file) == Some(wanted)) {
            return Err(WeightsError::NoSuchFile {
                path: checkpoint.path().into(),
                name: wanted.clone(),
            });
        }
    }
    Ok(())
}
