//! What the memory is made by and given on with.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use super::{SealedFault, image};
use crate::memory::{SealedMemory, Storage, Tag, UnsealedMemory};
use crate::tensor::Tensor;
use crate::types::DType;
use crate::weights::load::{Plan, read_into};
use crate::weights::{
    Backing, Checkpoint, HeaderLimits, LoadMode, LoadOptions, LoadProgress, LoadReport, Weights,
    WeightsError,
};

/// Loaded weights in memory that nobody can change any more, to be given to other processes. Linux
/// only.
///
/// It is a file descriptor, which goes to another process as its standard input, by inheritance
/// or through a socket. There [`Weights::map_sealed`] takes it. The descriptor is closed on
/// `exec`; what a child gets as [`Stdio`](std::process::Stdio) is not.
///
/// ```
/// use std::process::{Command, Stdio};
/// use tenslab::weights::{LoadOptions, Weights, save};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let norm = Tensor::zeros([4], DType::F32, memory::cpu())?;
/// save(&path, &[("norm", norm)], &Default::default())?;
///
/// let sealed = Weights::seal(&path, &LoadOptions::default())?;
/// let mut worker = Command::new("true");
/// worker.stdin(Stdio::from(sealed.try_clone()?));
///
/// // In the worker: `io::stdin().as_fd().try_clone_to_owned()`.
/// let weights = Weights::map_sealed(sealed.try_clone()?)?;
/// drop(sealed);                                          // the mapping keeps the memory
/// assert_eq!(weights.get("norm")?.read::<f32>()?[..], [0.0; 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `cargo run --example sealed` shows two processes.
#[derive(Debug)]
pub struct SealedWeights {
    memory: SealedMemory,
    report: LoadReport,
}

impl SealedWeights {
    /// Bytes of the memory: tensors, padding, and the headers of the files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.len()
    }

    /// What the load did.
    #[must_use]
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// One more descriptor of the same memory.
    ///
    /// # Errors
    /// Where the process may have no more of them.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone()
    }
}

impl AsFd for SealedWeights {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl From<SealedWeights> for OwnedFd {
    fn from(sealed: SealedWeights) -> Self {
        sealed.memory.into()
    }
}

impl Weights {
    /// Loads a file, an index or a directory as [`load`](Self::load) does, into memory that is
    /// then sealed: nobody can write to it or change its length, in any process, for ever. Linux
    /// only.
    ///
    /// Cost: that of a load. The memory is taken before a byte is read, so none is missing
    /// later; [`LoadOptions::allocator`] is not asked. It counts as shared memory of the machine
    /// (`Shmem`), which can be swapped but not dropped, until the last descriptor and mapping
    /// are gone.
    ///
    /// # Errors
    /// [`WeightsError`]: what [`Checkpoint::open`] and
    /// [`seal_checkpoint`](Self::seal_checkpoint) say.
    pub fn seal(
        path: impl AsRef<Path>,
        options: &LoadOptions,
    ) -> Result<SealedWeights, WeightsError> {
        let started = Instant::now();
        let checkpoint = Checkpoint::open_with(path, &options.limits)?;
        seal_since(started, &checkpoint, options, &mut |_| {
            ControlFlow::Continue(())
        })
    }

    /// Seals a checkpoint whose headers are open, and tells how far it has come, as
    /// [`load_checkpoint`](Self::load_checkpoint) does.
    ///
    /// # Errors
    /// What `load_checkpoint` says, and [`Map`](WeightsError::Map) where the system has no such
    /// memory.
    pub fn seal_checkpoint(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<SealedWeights, WeightsError> {
        seal_since(Instant::now(), checkpoint, options, progress)
    }

    /// Maps weights that were sealed, mostly by another process, with the usual
    /// [`HeaderLimits`]. Linux only.
    ///
    /// Safe, whoever the descriptor is from: the seals are checked first, so nothing changes
    /// afterwards, and then everything that the memory says about itself.
    ///
    /// Names, metadata, shapes and what was left out are those of the load. The
    /// [`checkpoint`](Self::checkpoint) has the paths that the files had there, and cannot be
    /// loaded again: no file is known to be the one.
    ///
    /// Cost: the index is read, 32 bytes a tensor and the headers. No byte of a tensor is touched.
    ///
    /// # Errors
    /// [`WeightsError::Sealed`] for memory that is not sealed or holds no weights,
    /// [`WeightsError::Format`] and [`WeightsError::Set`] for headers that are wrong.
    pub fn map_sealed(fd: impl Into<OwnedFd>) -> Result<Self, WeightsError> {
        Self::map_sealed_with(fd, &HeaderLimits::default())
    }

    /// Maps weights that were sealed, with other limits to what the headers in them may ask for.
    ///
    /// # Errors
    /// As [`map_sealed`](Self::map_sealed).
    pub fn map_sealed_with(
        fd: impl Into<OwnedFd>,
        limits: &HeaderLimits,
    ) -> Result<Self, WeightsError> {
        let started = Instant::now();
        let memory = SealedMemory::open(fd).map_err(SealedFault::from)?;
        refuse_holes(&memory)?;
        let storage = memory.map(Tag::Weights).map_err(SealedFault::from)?;
        let (checkpoint, held) = {
            let whole = view(&storage)?;
            let image = whole.read_bytes().map_err(unread)?;
            image::read(&image, limits)?
        };
        let cast = checkpoint.entries().zip(&held).filter(|(entry, held)| {
            let dtype = held.as_ref().map(|held| held.dtype);
            dtype.is_some_and(|dtype| dtype != entry.dtype().loadable())
        });
        let report = LoadReport {
            mode: LoadMode::Sealed,
            files: checkpoint.files().len(),
            tensors: held.iter().flatten().count(),
            left_out: held.iter().filter(|held| held.is_none()).count(),
            file_bytes: checkpoint.file_bytes(),
            mapped_bytes: memory.len(),
            cast_tensors: cast.count(),
            threads: 1,
            seconds: started.elapsed().as_secs_f64(),
            ..LoadReport::default()
        };
        Ok(Self::new(checkpoint, vec![storage], held, report))
    }
}

/// Loads into memory of its own kind, and seals it.
fn seal_since(
    started: Instant,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
) -> Result<SealedWeights, WeightsError> {
    let refused = |source| WeightsError::Map {
        path: checkpoint.path().into(),
        source,
    };
    let memory = |plan: &Plan| {
        let held = plan.held(checkpoint, Backing::Sealed);
        let too_large = || WeightsError::TooLarge {
            path: checkpoint.path().into(),
            bytes: plan.slab_bytes as u64,
        };
        let index = image::index(checkpoint, &held, plan.slab_bytes).ok_or_else(too_large)?;
        let start = image::data_start(index.len()).ok_or_else(too_large)?;
        let bytes = start + plan.slab_bytes;
        let mut memory = UnsealedMemory::new("tenslab-weights", bytes).map_err(refused)?;
        memory.as_mut_slice()[..index.len()].copy_from_slice(&index);
        Ok((memory, start))
    };
    let read = read_into(checkpoint, options, progress, memory, |(memory, start)| {
        &mut memory.as_mut_slice()[*start..]
    })?;
    let ((memory, _), _, report) = read;
    let memory = memory.seal().map_err(refused)?;
    let report = LoadReport {
        mode: LoadMode::Sealed,
        seconds: started.elapsed().as_secs_f64(),
        ..report
    };
    Ok(SealedWeights { memory, report })
}

/// The kernel promises that the bytes stay, but not that there is memory for pages that were
/// never made: a touch of one may end the process. [`UnsealedMemory`] makes all of them, and
/// sealed memory cannot lose one.
fn refuse_holes(memory: &SealedMemory) -> Result<(), WeightsError> {
    /// What the kernel counts in, whatever the size of a block.
    const UNIT: u64 = 512;
    let status = rustix::fs::fstat(memory).map_err(|errno| {
        SealedFault::from(crate::memory::MapError::Length {
            source: errno.into(),
        })
    })?;
    let page_bytes = u64::try_from(status.st_blocks)
        .unwrap_or(0)
        .saturating_mul(UNIT);
    let bytes = memory.len();
    if page_bytes < bytes {
        return Err(SealedFault::Holes { bytes, page_bytes }.into());
    }
    Ok(())
}

/// All of the memory.
fn view(storage: &Storage) -> Result<Tensor, WeightsError> {
    Tensor::from_storage(storage, 0, [storage.len()], DType::U8).map_err(unread)
}

fn unread(source: crate::tensor::TensorError) -> WeightsError {
    WeightsError::Tensor {
        name: String::new(),
        source,
    }
}
