//! [`Weights::load`]: the tensors of a checkpoint in one slab, read once.
//!
//! ```text
//!   Checkpoint ──▶ Plan ──▶ Feed of pieces ──▶ threads ──▶ Weights
//!   headers        which,   front to back      Reader      frozen
//!                  what part,                  each
//!                  cast, where
//!
//!   shard 1  | a | b |            one allocation, tag Weights, frozen
//!   shard 2  | c | d |    ──▶   | a    | b    | c    | d    |
//!             pread, in parallel   64     64     64     64
//! ```
//!
//! The bytes go from the page cache to their final place: there is no second
//! copy, not even with a cast, which passes through 256 KiB of scratch in each
//! thread. So the memory of a load is the tensors' own bytes, at most 63 bytes
//! of padding each, and the scratch. `tests/weights_rss.rs` measures that in a
//! process of its own. What is left out, and of a tensor what belongs to others' parts, is not
//! read; `tests/weights_load_choice.rs` and `tests/weights_load_shard.rs` count bytes and calls.
//!
//! The result depends on the files alone: each byte of the slab is computed
//! from its own bytes of the file, whichever thread does it. A load that fails or is cancelled
//! gives the memory back and leaves nothing behind.
//!
//! Nothing is mapped: a file that shrinks under a mapping kills the process, here it
//! is an error. Files are compared with what they were when their headers
//! were read, before the first and after the last byte.

mod cast;
mod check;
mod choice;
mod digest;
#[cfg(feature = "sha256")]
mod hash;
mod lazy;
mod options;
mod pieces;
mod plan;
mod reader;
mod shard;
mod work;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use self::reader::Found;
use self::work::Listener;
use super::source::Source;
use super::{Backing, Checkpoint, Weights, WeightsError};
use crate::memory::{Buffer, Storage, Tag};

pub use self::choice::{Choice, ShardRule};
pub use self::digest::{FileDigest, NoDigest, Sha256Digest};
pub use self::lazy::{LazyReport, LazyWeights};
pub use self::options::{
    LoadMode, LoadOptions, LoadProgress, LoadReport, NonFinite, NonFiniteTensor,
};
pub(super) use self::plan::{Plan, TENSOR_ALIGN};
pub use self::shard::{Shard, ShardFault};

impl Weights {
    /// Opens a file, an index or a directory as [`Checkpoint::open`] does, and loads
    /// all of it that is chosen.
    ///
    /// # Errors
    /// [`WeightsError`]: what [`Checkpoint::open`] and
    /// [`load_checkpoint`](Self::load_checkpoint) say.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, WeightsError> {
        let started = Instant::now();
        let checkpoint = Checkpoint::open_with(path, &options.limits)?;
        let progress = &mut |_| ControlFlow::Continue(());
        Self::load_since(started, checkpoint, options, progress)
    }

    /// Loads a checkpoint whose headers are open, and tells how far it has come.
    ///
    /// `progress` is called on the calling thread, without a lock: before anything is read,
    /// after each of its own pieces (of 1 MiB or so), and once when all is read; the numbers
    /// never fall. If it breaks, nothing is loaded and the memory goes back.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use tenslab::weights::{Checkpoint, LoadOptions, Weights, WeightsError, save};
    /// use tenslab::{DType, Tensor, memory};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("model.safetensors");
    /// let table = Tensor::zeros([1 << 20], DType::F32, memory::cpu())?;
    /// save(&path, &[("table", table)], &Default::default())?;
    ///
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let stopped = Weights::load_checkpoint(checkpoint, &LoadOptions::default(), &mut |at| {
    ///     if at.done_bytes > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    /// });
    /// assert!(matches!(stopped, Err(WeightsError::Cancelled { total_bytes: 4_194_304, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WeightsError`]: no memory, 0 threads, a cast target that is none of the
    /// three, a pattern that matches nothing, a tensor without such a part, a read that fails
    /// or ends early, a file that changed since it was opened, values or digests that are not
    /// what they should be, [`Cancelled`](WeightsError::Cancelled).
    pub fn load_checkpoint(
        checkpoint: Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, WeightsError> {
        Self::load_since(Instant::now(), checkpoint, options, progress)
    }

    fn load_since(
        started: Instant,
        checkpoint: Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, WeightsError> {
        let memory = |plan: &Plan| slab(&checkpoint, plan, options);
        let read = read_into(&checkpoint, options, progress, memory, Buffer::as_mut_slice)?;
        let (buffer, plan, mut report) = read;
        let storage = Storage::from(buffer);
        report.protected_bytes = freeze(&storage, options.protect)?;
        report.seconds = started.elapsed().as_secs_f64();
        let held = plan.held(&checkpoint, Backing::Slab);
        Ok(Self::new(checkpoint, vec![storage], held, report))
    }
}

/// Reads what the options want of a checkpoint into memory that is made for it: `slab` is the
/// part of the memory that is filled, as long as the plan's. The report lacks what is done
/// with the memory afterwards, and the time.
pub(super) fn read_into<M>(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    memory: impl FnOnce(&Plan) -> Result<M, WeightsError>,
    slab: impl FnOnce(&mut M) -> &mut [u8],
) -> Result<(M, Plan, LoadReport), WeightsError> {
    if options.threads == 0 {
        return Err(WeightsError::NoThreads);
    }
    let plan = Plan::new(checkpoint, options)?;
    let hashed_bytes = hashed_bytes(checkpoint, options);
    let total_bytes = plan.source_bytes.saturating_add(hashed_bytes);
    let mut listener = Listener::new(total_bytes, progress);
    let digests = digests(checkpoint, options, &mut listener)?;
    let mut memory = memory(&plan)?;
    let filled = work::fill(checkpoint, &plan, slab(&mut memory), options, &mut listener)?;
    let non_finite = judge(checkpoint, &plan, options.non_finite, &filled.found)?;
    if options.drop_page_cache {
        drop_cached(checkpoint, &plan)?;
    }
    let count = |is: fn(&plan::Place) -> bool| plan.places.iter().filter(|p| is(p)).count();
    let report = LoadReport {
        files: checkpoint.files().len(),
        tensors: plan.places.len(),
        left_out: checkpoint.entries().len() - plan.places.len(),
        file_bytes: checkpoint.file_bytes(),
        slab_bytes: plan.slab_bytes,
        copied_bytes: plan.tensor_bytes(),
        read_bytes: filled.reads.bytes,
        read_calls: filled.reads.calls,
        cast_tensors: count(|place| place.cast.is_some()),
        part_tensors: count(|place| place.part.is_some()),
        non_finite,
        digests,
        threads: filled.threads,
        ..LoadReport::default()
    };
    Ok((memory, plan, report))
}

/// Memory for all of a plan.
fn slab(
    checkpoint: &Checkpoint,
    plan: &Plan,
    options: &LoadOptions,
) -> Result<Buffer, WeightsError> {
    options
        .allocator
        .with_tag(Tag::Weights)
        .allocate(plan.slab_bytes, TENSOR_ALIGN)
        .map_err(|source| WeightsError::Memory {
            path: checkpoint.path().into(),
            bytes: plan.slab_bytes as u64,
            what: "weights",
            source,
        })
}

/// Forbids writing for ever. Returns how many bytes the system guards, too.
fn freeze(storage: &Storage, protect: bool) -> Result<usize, WeightsError> {
    let frozen = match protect {
        true => storage.freeze_protected().map(|protected| protected.bytes),
        false => storage.freeze().map(|()| 0),
    };
    frozen.map_err(|source| WeightsError::Freeze { source })
}

/// Are there values that are no finite numbers, where there may be none?
fn judge(
    checkpoint: &Checkpoint,
    plan: &Plan,
    non_finite: NonFinite,
    found: &[Found],
) -> Result<Vec<NonFiniteTensor>, WeightsError> {
    let named = found.iter().filter_map(|found| {
        let entry = plan.places[found.place].entry();
        Some(NonFiniteTensor {
            name: checkpoint.entries().get(entry)?.name().into(),
            count: found.count,
            first: found.first,
        })
    });
    let named: Vec<_> = named.collect();
    match named.first() {
        Some(NonFiniteTensor { name, count, first }) if non_finite == NonFinite::Refuse => {
            Err(WeightsError::NonFinite {
                path: checkpoint.path().into(),
                name: name.clone(),
                count: *count,
                first: *first,
                tensors: named.len(),
            })
        }
        _ => Ok(named),
    }
}

/// Drops the files that were read from the page cache, whole.
fn drop_cached(checkpoint: &Checkpoint, plan: &Plan) -> Result<(), WeightsError> {
    let mut last = None;
    for place in &plan.places {
        let entry = checkpoint.entries().get(place.entry());
        let number = entry.map(|entry| entry.file());
        if let Some(number) = number.filter(|_| number != last) {
            let file = &checkpoint.files()[number];
            let source = Source::reopen(file.path(), &file.identity)?;
            source.drop_cached(0, file.file_bytes());
        }
        last = number;
    }
    Ok(())
}

/// Bytes that are read to compute digests.
#[cfg(feature = "sha256")]
fn hashed_bytes(checkpoint: &Checkpoint, options: &LoadOptions) -> u64 {
    match options.sha256 {
        Some(_) => checkpoint.file_bytes(),
        None => 0,
    }
}

#[cfg(not(feature = "sha256"))]
fn hashed_bytes(_: &Checkpoint, _: &LoadOptions) -> u64 {
    0
}

/// The digests of all files, if they are wanted.
#[cfg(feature = "sha256")]
fn digests(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    listener: &mut Listener<'_>,
) -> Result<Vec<FileDigest>, WeightsError> {
    match &options.sha256 {
        Some(expected) => hash::digests(checkpoint, expected, options.threads, listener),
        None => Ok(Vec::new()),
    }
}

#[cfg(not(feature = "sha256"))]
fn digests(
    _: &Checkpoint,
    _: &LoadOptions,
    _: &mut Listener<'_>,
) -> Result<Vec<FileDigest>, WeightsError> {
    Ok(Vec::new())
}
