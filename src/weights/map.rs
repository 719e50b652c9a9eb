//! [`Weights::map`]: tensors where they lie, in their files.
//!
//! ```text
//!   shard 1  | header | a | b |c| d  |         shard 2  | header | e  |
//!                     |   |   | | |  |                           |    |
//!   mapping           a   b     d                                e          read-only, frozen
//!   slab              | c |                                                 copied: c is at an odd byte
//! ```
//!
//! One mapping for the data of each file. Nothing is read but what has to be copied, so a file of
//! any size is open at once, and processes that map one file share its page cache. The price:
//! - what the bytes are is up to whoever may write to the file, so it is `unsafe`;
//! - tensors lie where the file has them. The format packs them without holes, behind a header of
//!   any length, so some have not the alignment that their elements need. [`Misaligned`] says
//!   what becomes of them, and the report counts them.
//!
//! `tests/weights_map` compares it with a load, file by file and byte by byte.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use super::load::TENSOR_ALIGN;
use super::loaded::Held;
use super::quoted::Quoted;
use super::source::Source;
use super::{Backing, Checkpoint, HeaderLimits, LoadMode, LoadReport, Weights, WeightsError};
use crate::memory::{self, Advice, SharedAllocator, Storage, Tag};
use crate::types::DType;

/// The most tensors that an error names. It counts all.
const MOST_NAMED: usize = 10_000;

/// How a checkpoint is mapped. There is no cast: elements are what they are in the file. For
/// another dtype, [load](Weights::load) it.
///
/// ```
/// use tenslab::memory::Advice;
/// use tenslab::weights::{MapOptions, Misaligned};
///
/// let options = MapOptions { advice: Some(Advice::WillNeed), ..MapOptions::default() };
/// assert_eq!(options.misaligned, Misaligned::Realign);
/// ```
#[derive(Debug, Clone)]
pub struct MapOptions {
    /// What becomes of tensors whose place in the file is not aligned to their elements.
    pub misaligned: Misaligned,
    /// What the system is told about the data of each file, once it is mapped; `None` tells it
    /// nothing. [`Populate`](Advice::Populate) waits until all of it is in memory, and makes an
    /// error of a file that cannot be read.
    pub advice: Option<Advice>,
    /// Who gives the one allocation for tensors that are copied. It carries [`Tag::Weights`].
    /// Not asked if none is.
    pub allocator: SharedAllocator,
    /// What a header may ask for.
    pub limits: HeaderLimits,
}

impl Default for MapOptions {
    /// Misaligned tensors are copied, to memory of the process's allocator; no advice.
    fn default() -> Self {
        Self {
            misaligned: Misaligned::default(),
            advice: None,
            allocator: memory::cpu().clone(),
            limits: HeaderLimits::default(),
        }
    }
}

/// What becomes of a mapped tensor that does not begin at a multiple of its element's width.
///
/// Elements of one byte are always aligned, and so is a tensor without bytes. What can only be
/// had raw is bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Misaligned {
    /// It is copied, to memory that is aligned to 64 bytes. The report says how many there were
    /// and how large.
    #[default]
    Realign,
    /// Nothing is mapped: [`WeightsError::MisalignedTensors`] names them.
    Error,
    /// It stays where it is. [`Weights::raw`] has its bytes, [`Weights::get`] says
    /// [`WeightsError::Misaligned`].
    BytesOnly,
}

/// A tensor that is not aligned where it lies in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MisalignedTensor {
    /// The tensor.
    pub tensor: String,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its elements, of which it would have to begin at a multiple.
    pub dtype: DType,
}

impl fmt::Display for MisalignedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tensor, offset) = (Quoted(&self.tensor), self.offset);
        write!(f, "{tensor} ({}) at byte {offset}", self.dtype)
    }
}

impl Weights {
    /// Opens a file, an index or a directory as [`Checkpoint::open`] does, and maps its files:
    /// no byte of a tensor is read or copied before it is used, except those that
    /// [`Misaligned::Realign`] copies.
    ///
    /// ```
    /// use tenslab::weights::{Backing, MapOptions, Weights, save};
    /// use tenslab::{DType, Tensor, memory};
    ///
    /// # if cfg!(all(unix, not(tenslab_portable))) {
    /// let directory = tempfile::tempdir()?;
    /// let path = directory.path().join("model.safetensors");
    /// let norm = Tensor::zeros([4], DType::F32, memory::cpu())?;
    /// save(&path, &[("norm", norm)], &Default::default())?;
    ///
    /// // SAFETY: nobody else knows the file.
    /// let weights = unsafe { Weights::map(&path, &MapOptions::default()) }?;
    /// assert_eq!(weights.backing("norm")?, Backing::Mapped);
    /// assert_eq!((weights.report().mapped_bytes, weights.report().copied_bytes), (16, 0));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: headers are read; for each file ten system calls and two heap blocks, whatever
    /// its size. Then a first touch of a page takes it from the page cache, or from the disk. A
    /// file on a network disk is read page by page so, which is slower than a load by far.
    ///
    /// # Errors
    /// [`WeightsError`]: what [`Checkpoint::open`] and
    /// [`map_checkpoint`](Self::map_checkpoint) say.
    ///
    /// # Safety
    /// While the weights, or any tensor of them, are there, in whatever thread:
    /// - nobody writes to the files, in this or in another process, by whatever name. It would be
    ///   a data race, and what was read once would be something else when it is read again;
    /// - nobody makes them shorter. A touch of what is gone ends the process: `SIGBUS`. The
    ///   same happens where a disk fails, or a network that the file comes through, so a file
    ///   of another machine is nobody's to promise for.
    ///
    /// To replace a file by renaming another one over it is fine, and to remove it: the mapping
    /// keeps the old one. [`save`](super::save) and package managers do that; a download that
    /// goes on does not, nor does `cp`.
    ///
    /// Where that cannot be promised, [`load`](Self::load) reads the bytes once, and a file that
    /// changes is an error. For one copy in several processes there is `seal`.
    pub unsafe fn map(path: impl AsRef<Path>, options: &MapOptions) -> Result<Self, WeightsError> {
        let started = Instant::now();
        let checkpoint = Checkpoint::open_with(path, &options.limits)?;
        // SAFETY: nobody writes to the files or makes them shorter (the caller's promise).
        unsafe { Self::map_since(started, checkpoint, options) }
    }

    /// Maps a checkpoint whose headers are open.
    ///
    /// # Errors
    /// [`WeightsError`]: a file that changed since it was opened, or that cannot be mapped
    /// ([`Map`](WeightsError::Map)); for tensors that are copied, no memory and a read that
    /// fails; [`MisalignedTensors`](WeightsError::MisalignedTensors) under
    /// [`Misaligned::Error`].
    ///
    /// # Safety
    /// As for [`map`](Self::map).
    pub unsafe fn map_checkpoint(
        checkpoint: Checkpoint,
        options: &MapOptions,
    ) -> Result<Self, WeightsError> {
        // SAFETY: nobody writes to the files or makes them shorter (the caller's promise).
        unsafe { Self::map_since(Instant::now(), checkpoint, options) }
    }

    /// # Safety
    /// As for [`map`](Self::map).
    unsafe fn map_since(
        started: Instant,
        checkpoint: Checkpoint,
        options: &MapOptions,
    ) -> Result<Self, WeightsError> {
        let mut plan = Plan::new(&checkpoint, options.misaligned)?;
        let mut slab = (plan.slab_bytes > 0)
            .then(|| {
                let allocator = options.allocator.with_tag(Tag::Weights);
                allocator.allocate(plan.slab_bytes, TENSOR_ALIGN)
            })
            .transpose()
            .map_err(|source| WeightsError::Memory {
                path: checkpoint.path().into(),
                bytes: plan.slab_bytes as u64,
                what: "weights that are not aligned in the file",
                source,
            })?;
        let mut storages = Vec::with_capacity(checkpoint.files().len() + 1);
        let (mut nothing, mut first) = (None, 0);
        for (number, file) in checkpoint.files().iter().enumerate() {
            let path = file.path();
            let refused = |source| WeightsError::Map {
                path: path.into(),
                source,
            };
            let source = Source::reopen(path, &file.identity)?;
            let begin = file.data_start();
            let last = file.header().tensors().next_back();
            // The header was checked: no more than the file's length.
            let end = begin + last.map_or(0, |last| last.end());
            // SAFETY: nobody writes to the file or makes it shorter (the caller's promise).
            let mapped = unsafe { memory::map_file(source.file(), begin..end, Tag::Weights) };
            let mapped = mapped.map_err(refused)?;
            if let Some(advice) = options.advice {
                mapped.advise(0..mapped.len(), advice).map_err(refused)?;
            }
            storages.push(mapped);
            if plan.has_empty && nothing.is_none() {
                // SAFETY: no byte of it.
                let empty = unsafe { memory::map_file(source.file(), begin..begin, Tag::Weights) };
                nothing = Some(empty.map_err(refused)?);
            }
            if let Some(slab) = &mut slab {
                plan.copy(&checkpoint, number, first, &source, slab.as_mut_slice())?;
            }
            first += file.header().tensors().len();
            source.recheck()?;
        }
        if let Some(slab) = slab {
            let slab = Storage::from(slab);
            slab.freeze()
                .map_err(|source| WeightsError::Freeze { source })?;
            plan.place(Backing::Realigned, storages.len());
            storages.push(slab);
        }
        if let Some(nothing) = nothing {
            plan.place_empty(storages.len());
            storages.push(nothing);
        }
        let report = LoadReport {
            mode: LoadMode::Map,
            files: checkpoint.files().len(),
            tensors: plan.held.len(),
            file_bytes: checkpoint.file_bytes(),
            slab_bytes: plan.slab_bytes,
            copied_bytes: plan.misaligned_bytes,
            mapped_bytes: (storages.iter())
                .filter(|storage| storage.is_mapped())
                .map(|storage| storage.len() as u64)
                .sum(),
            realigned_tensors: plan.realigned,
            realigned_bytes: plan.misaligned_bytes,
            threads: 1,
            seconds: started.elapsed().as_secs_f64(),
            ..LoadReport::default()
        };
        let held = plan.held.into_iter().map(Some).collect();
        Ok(Self::new(checkpoint, storages, held, report))
    }
}

/// Where every tensor is going to be.
struct Plan {
    /// By position among the checkpoint's entries. Of what is not in a file's mapping the
    /// storage is not yet known.
    held: Vec<Held>,
    /// Of the slab for those that are copied.
    slab_bytes: usize,
    realigned: usize,
    /// Bytes of those that are copied.
    misaligned_bytes: u64,
    /// Are there tensors without bytes?
    has_empty: bool,
}

impl Plan {
    fn new(checkpoint: &Checkpoint, policy: Misaligned) -> Result<Self, WeightsError> {
        let entries = checkpoint.entries();
        let mut plan = Self {
            held: Vec::with_capacity(entries.len()),
            slab_bytes: 0,
            realigned: 0,
            misaligned_bytes: 0,
            has_empty: false,
        };
        let (mut named, mut count) = (Vec::new(), 0);
        let mut refused_bytes = 0_u64;
        for entry in entries.clone() {
            let dtype = entry.dtype().loadable();
            let too_large = || WeightsError::TooLarge {
                path: checkpoint.path().into(),
                bytes: entry.offset().saturating_add(entry.nbytes()),
            };
            let nbytes = usize::try_from(entry.nbytes()).map_err(|_| too_large())?;
            let mut held = Held {
                storage: entry.file(),
                offset: usize::try_from(entry.info().begin()).map_err(|_| too_large())?,
                nbytes,
                dtype,
                part: None,
                backing: Backing::Mapped,
            };
            // A page is a multiple of every width, and the file's first byte begins one.
            let misaligned = dtype.filter(|dtype| !is_aligned(entry.offset(), *dtype));
            if nbytes == 0 {
                held.offset = 0;
                plan.has_empty = true;
            } else if let Some(dtype) = misaligned {
                match policy {
                    Misaligned::Realign => {
                        held.offset = plan.slab_bytes.next_multiple_of(TENSOR_ALIGN);
                        let end = held.offset.checked_add(nbytes);
                        // Room for the padding of the next one.
                        let end = end.filter(|&end| end < usize::MAX - TENSOR_ALIGN);
                        plan.slab_bytes = end.ok_or_else(too_large)?;
                        plan.realigned += 1;
                        plan.misaligned_bytes += entry.nbytes();
                        held.backing = Backing::Realigned;
                    }
                    Misaligned::Error => {
                        if count < MOST_NAMED {
                            named.push(MisalignedTensor {
                                tensor: entry.name().into(),
                                offset: entry.offset(),
                                dtype,
                            });
                        }
                        count += 1;
                        refused_bytes = refused_bytes.saturating_add(entry.nbytes());
                    }
                    Misaligned::BytesOnly => {}
                }
            }
            plan.held.push(held);
        }
        if count > 0 {
            return Err(WeightsError::MisalignedTensors {
                path: checkpoint.path().into(),
                misaligned: named,
                count,
                bytes: refused_bytes,
                tensors: entries.len(),
            });
        }
        Ok(plan)
    }

    /// Reads those of a file that are copied; `first` is the number of its first tensor. By
    /// reads, not from the mapping: a file that cannot be read is an error so.
    fn copy(
        &self,
        checkpoint: &Checkpoint,
        file: usize,
        first: usize,
        source: &Source,
        slab: &mut [u8],
    ) -> Result<(), WeightsError> {
        for (entry, held) in checkpoint.entries_of(file).zip(&self.held[first..]) {
            if held.backing == Backing::Realigned {
                let target = &mut slab[held.offset..][..held.nbytes];
                source.read_exact_at(target, entry.offset(), entry.name())?;
            }
        }
        Ok(())
    }

    fn place(&mut self, backing: Backing, storage: usize) {
        for held in &mut self.held {
            if held.backing == backing {
                held.storage = storage;
            }
        }
    }

    fn place_empty(&mut self, storage: usize) {
        for held in &mut self.held {
            if held.nbytes == 0 {
                held.storage = storage;
            }
        }
    }
}

/// Is a byte of a file a place for such elements?
fn is_aligned(offset: u64, dtype: DType) -> bool {
    offset.is_multiple_of(dtype.bytes() as u64)
}
