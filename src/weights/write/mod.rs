//! [`save`] and [`save_with`]: tensors into one safetensors file, all or nothing.
//!
//! ```text
//!  | n | JSON, padded with spaces | f64 … | f32 … | f16, bf16 … | u8 … | f4 … |
//!                                 ^ a multiple of 64
//! ```
//!
//! The data begins at a multiple of 64 and the widest elements come first, those of one
//! width by name. So every tensor is aligned for its own elements. (Many writers align to 8
//! bytes only; then a map of the file has to be realigned.) More than that cannot be had
//! for every tensor: the format allows no gap between two, so only the order is free, and
//! where one ends the next begins. Equal tensors give equal bytes, whatever order they come in.
//!
//! What is written can be read: the finished header goes through [`Header`], with the
//! reader's limits, before the disk is touched.
//!
//! The file appears under its name when it is complete and on the disk; how is told in
//! [`draft`]. Bytes go to the kernel from where the tensors lie: only those that are not
//! contiguous pass through scratch, 1 MiB of it. `tests/weights_writer_rss.rs` measures that.

mod draft;
mod list;
mod options;
mod pour;
#[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
#[path = "portable.rs"]
mod system;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
#[path = "linux.rs"]
mod system;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use self::draft::{Draft, Target};
use self::list::Plan;
pub use self::options::{SaveEntry, SaveOptions, SaveProgress, SaveReport};
use self::pour::Scratch;
#[cfg(doc)]
use super::Header;
use super::WeightsError;
use crate::tensor::Tensor;

/// Writes tensors and metadata to `path`, replacing what is there: the short form of
/// [`save_with`].
///
/// ```
/// use tenslab::weights::{Weights, save};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let matrix = Tensor::zeros([3, 4], DType::BF16, memory::cpu())?;
/// let report = save(&path, &[("turned", matrix.transpose(0, 1)?)], &Default::default())?;
/// assert_eq!((report.tensor_bytes, report.gathered_bytes), (24, 24));
///
/// let loaded = Weights::load(&path, &Default::default())?;
/// assert_eq!(loaded.get("turned")?.shape().dims(), [4, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`save_with`].
pub fn save<N: AsRef<str>>(
    path: impl AsRef<Path>,
    tensors: &[(N, Tensor)],
    metadata: &BTreeMap<String, String>,
) -> Result<SaveReport, WeightsError> {
    let entries: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| SaveEntry::tensor(name.as_ref(), tensor))
        .collect();
    let options = SaveOptions {
        metadata: metadata.clone(),
        ..SaveOptions::default()
    };
    let go_on = &mut |_| ControlFlow::Continue(());
    save_with(path, &entries, &options, go_on)
}

/// Writes tensors and raw bytes to `path`, replacing what is there, and tells how far it
/// has come.
///
/// All tensors are borrowed for reading until the file is complete, so what it holds is
/// one state of them. They need not be frozen, and may have any strides.
///
/// `progress` is called on the calling thread, without a lock: with 0 bytes when there is
/// room for the file, every few MiB, and with all of them before the file is synced and gets
/// its name. Where it breaks, or panics, nothing has changed.
///
/// ```
/// use std::ops::ControlFlow;
/// use tenslab::weights::{Checkpoint, SaveEntry, SaveOptions, save_with};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let norm = Tensor::zeros([4], DType::F32, memory::cpu())?;
/// let entries = [
///     SaveEntry::tensor("norm", &norm),
///     SaveEntry::raw("scaled", "F8_E4M3", &[2, 2], &[0x38, 0x40, 0xb8, 0x00]),
/// ];
/// let options = SaveOptions::default();
/// save_with(&path, &entries, &options, &mut |_| ControlFlow::Continue(()))?;
/// let checkpoint = Checkpoint::open(&path)?;
/// assert_eq!(checkpoint.entry("scaled").unwrap().dtype().tag(), "F8_E4M3");
///
/// let cancelled = save_with(&path, &[], &options, &mut |_| ControlFlow::Break(()));
/// assert!(cancelled.is_err());
/// assert_eq!(Checkpoint::open(&path)?.entries().len(), 2);     // still the old one
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What stands at `path` afterwards:
/// - **A link** stays one: the file that it leads to is replaced, or made. Other hard links of
///   a replaced file keep what they had, and so does who has it open.
/// - **Permissions** are those of the replaced file, or what the umask leaves of `rw-rw-rw-`. The
///   owner is who writes; access lists are not taken over. A file that may not be written is
///   replaced all the same: that is the directory's to forbid.
/// - **After a kill** at any moment there is the old file or the new one. On Linux the file has no
///   name until it is complete, so nothing else is left either (a kill between the two calls
///   that put a complete file in the place of an old one leaves it as `.tenslab-….tmp`).
///   On file systems that cannot do this, and elsewhere, an unfinished `.tenslab-….tmp` may
///   stay. [`SaveReport::unnamed`] tells which it was.
///
/// Cost: the header is made and read once in memory, about 300 bytes a tensor; the data is
/// written in one thread, and not copied unless it has to be gathered.
///
/// # Errors
/// [`WeightsError`]. Before the disk is touched:
/// - [`InvalidName`](WeightsError::InvalidName) for two tensors of one name and for `__metadata__`;
/// - [`Tensor`](WeightsError::Tensor) for one that somebody writes to, or where there is no
///   memory for the scratch;
/// - [`UnsupportedDType`](WeightsError::UnsupportedDType) where the format has no tag for it;
/// - [`HeaderTooLong`](WeightsError::HeaderTooLong), and [`Format`](WeightsError::Format) for raw
///   bytes that do not fit their shape and whatever else readers with these limits refuse;
/// - [`TooLarge`](WeightsError::TooLarge) where the tensors are more than 2^62 bytes;
/// - [`NotAFile`](WeightsError::NotAFile) for a pipe or a device at `path`, and
///   [`Io`](WeightsError::Io) for a directory.
///
/// And then, nothing at `path` being changed:
/// - [`NoRoom`](WeightsError::NoRoom) for a full disk, a quota or a limit, on Linux before
///   the first byte is written where the file system can tell;
/// - [`Cancelled`](WeightsError::Cancelled) where `progress` breaks;
/// - [`Io`](WeightsError::Io) for whatever else the disk says. Only where the action is "sync" is
///   the new file at `path`, complete, but may not outlive a loss of power.
pub fn save_with(
    path: impl AsRef<Path>,
    entries: &[SaveEntry<'_>],
    options: &SaveOptions,
    progress: &mut dyn FnMut(SaveProgress) -> ControlFlow<()>,
) -> Result<SaveReport, WeightsError> {
    let started = Instant::now();
    let path = path.as_ref();
    let plan = Plan::new(path, entries, options)?;
    let mut scratch = Scratch::for_all(&plan)?;
    let target = Target::at(path)?;
    // Before the rename: a directory that cannot be opened is an error that changed nothing.
    let directory = target.directory_to_sync(options.sync)?;
    let draft = Draft::create(path, &target, plan.file_bytes())?;
    pour::pour(path, &draft, &plan, &mut scratch, progress)?;
    if options.sync {
        draft.sync()?;
    }
    let unnamed = draft.is_unnamed();
    draft.publish(&target)?;
    if let Some(directory) = directory {
        target.sync(&directory)?;
    }
    Ok(SaveReport {
        tensors: entries.len(),
        file_bytes: plan.file_bytes(),
        data_start: plan.header.len() as u64,
        tensor_bytes: plan.tensor_bytes,
        gathered_bytes: scratch.gathered_bytes(),
        replaced: target.is_taken(),
        unnamed,
        seconds: started.elapsed().as_secs_f64(),
    })
}
