//! [`Weights::load`]: all tensors of a checkpoint in one slab, read once.
//!
//! ```text
//!   shard 1  | a | b |            one allocation, tag Weights, frozen
//!   shard 2  | c | d |    ──▶   | a    | b    | c    | d    |
//!             pread, in parallel   64     64     64     64
//! ```
//!
//! The bytes go from the page cache to their final place: there is no second
//! copy, not even with a cast, which passes through 1 MiB of scratch in each
//! thread. So the memory of a load is the tensors' own bytes, at most 63 bytes
//! of padding each, and the scratch. `tests/weights_rss.rs` measures that in a
//! process of its own.
//!
//! The result depends on the files alone: each byte of the slab is computed
//! from its own bytes of the file, whichever thread does it. A load that fails
//! gives the memory back and leaves nothing behind.
//!
//! Nothing is mapped: a file that shrinks under a mapping kills the process, here it
//! is an error. Files are compared with what they were when their headers
//! were read, before the first and after the last byte.

use std::path::Path;
use std::thread;
use std::time::Instant;

use super::loaded::Held;
use super::slab::{Feed, Piece, Place, SCRATCH_BYTES, Scratch, TENSOR_ALIGN, lay_out, target};
use super::source::Source;
use super::{Backing, Checkpoint, HeaderLimits, Weights, WeightsError};
use crate::memory::{self, SharedAllocator, Storage, Tag};
use crate::sync::Mutex;
use crate::types::DType;

/// More threads than this do not read faster; they would only add scratch.
const MAX_THREADS: usize = 16;

/// How a checkpoint is loaded.
///
/// ```
/// use tenslab::DType;
/// use tenslab::weights::LoadOptions;
///
/// let options = LoadOptions { dtype: Some(DType::BF16), ..LoadOptions::default() };
/// assert!(options.threads >= 1);
/// ```
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Who gives the slab: one allocation as large as all tensors together, which carries
    /// [`Tag::Weights`]. So not a [`SlabAllocator`](memory::SlabAllocator), whose blocks
    /// are smaller than that; [`memory::cpu`], or a [`Meter`](memory::Meter) over it.
    pub allocator: SharedAllocator,
    /// What `float32`, `float16` and `bfloat16` tensors are cast to: one of these
    /// three, or `None` to keep them. Other tensors are always kept.
    pub dtype: Option<DType>,
    /// Threads that read, the calling one included. Above 16 counts as 16.
    pub threads: usize,
    /// What a header may ask for.
    pub limits: HeaderLimits,
}

impl Default for LoadOptions {
    /// The process's allocator, no cast, as many threads as there are cores up to 4.
    fn default() -> Self {
        Self {
            allocator: memory::cpu().clone(),
            dtype: None,
            threads: thread::available_parallelism().map_or(1, |cores| cores.get().min(4)),
            limits: HeaderLimits::default(),
        }
    }
}

/// How far a load has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of tensors read from the files so far.
    pub done_bytes: u64,
    /// Bytes of tensors in the files.
    pub total_bytes: u64,
}

/// What a load did.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Files of the checkpoint.
    pub files: usize,
    /// Tensors in them, those that can only be had raw included.
    pub tensors: usize,
    /// Bytes of all files, headers included.
    pub file_bytes: u64,
    /// Bytes of the one allocation that holds all tensors, padding included.
    pub slab_bytes: usize,
    /// Bytes written into it: the tensors alone, after the cast.
    pub copied_bytes: u64,
    /// Tensors that were cast.
    pub cast_tensors: usize,
    /// Threads that read.
    pub threads: usize,
    /// Wall-clock seconds from opening to the last check.
    pub seconds: f64,
}

impl Weights {
    /// Opens a file, an index or a directory as [`Checkpoint::open`] does, and loads
    /// all of it.
    ///
    /// # Errors
    /// [`WeightsError`]: what [`Checkpoint::open`] and
    /// [`load_checkpoint`](Self::load_checkpoint) say.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, WeightsError> {
        let started = Instant::now();
        let checkpoint = Checkpoint::open_with(path, &options.limits)?;
        Self::load_since(started, checkpoint, options, &mut |_| {})
    }

    /// Loads a checkpoint whose headers are open, and tells how far it has come.
    ///
    /// `progress` is called on the calling thread, without a lock, after each of
    /// its own pieces (of a few MiB) and once at the end; the numbers only grow.
    ///
    /// # Errors
    /// [`WeightsError`]: no memory, 0 threads, a cast target that is none of the
    /// three, a read that fails or ends early, a file that changed since it was opened.
    pub fn load_checkpoint(
        checkpoint: Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, WeightsError> {
        Self::load_since(Instant::now(), checkpoint, options, progress)
    }

    fn load_since(
        started: Instant,
        checkpoint: Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, WeightsError> {
        if options.threads == 0 {
            return Err(WeightsError::NoThreads);
        }
        let (places, slab_bytes) = lay_out(&checkpoint, target(options.dtype)?)?;
        let mut buffer = options
            .allocator
            .with_tag(Tag::Weights)
            .allocate(slab_bytes, TENSOR_ALIGN)
            .map_err(|source| WeightsError::Memory {
                path: checkpoint.path().into(),
                bytes: slab_bytes as u64,
                what: "weights",
                source,
            })?;
        let threads = read_all(
            &checkpoint,
            &places,
            buffer.as_mut_slice(),
            options.threads,
            progress,
        )?;
        let storage = Storage::from(buffer);
        storage
            .freeze()
            .map_err(|source| WeightsError::Freeze { source })?;
        let report = LoadReport {
            files: checkpoint.files().len(),
            tensors: places.len(),
            file_bytes: checkpoint.file_bytes(),
            slab_bytes,
            copied_bytes: places.iter().map(|place| place.nbytes as u64).sum(),
            cast_tensors: places.iter().filter(|place| place.cast.is_some()).count(),
            threads,
            seconds: started.elapsed().as_secs_f64(),
        };
        let held = checkpoint.entries().zip(&places);
        let held = held.map(|(entry, place)| {
            Some(Held {
                storage: 0,
                offset: place.offset,
                nbytes: place.nbytes,
                dtype: match place.cast {
                    Some(cast) => Some(cast.to.dtype()),
                    None => entry.dtype().loadable(),
                },
                part: None,
                backing: Backing::Slab,
            })
        });
        let held = held.collect();
        Ok(Self::new(checkpoint, vec![storage], held, report))
    }
}

/// What the reading threads share. Held for the cut of one piece, never for a read.
struct Work<'a> {
    feed: Feed<'a>,
    done_bytes: u64,
    /// The failure with the lowest piece number so far.
    failed: Option<(usize, WeightsError)>,
}

impl<'a> Work<'a> {
    /// The next piece. None after a failure: the rest need not be read.
    fn next(&mut self) -> Option<Piece<'a>> {
        match self.failed {
            None => self.feed.next(),
            Some(_) => None,
        }
    }

    fn fail(&mut self, number: usize, error: WeightsError) {
        if self
            .failed
            .as_ref()
            .is_none_or(|(first, _)| number < *first)
        {
            self.failed = Some((number, error));
        }
    }
}

/// Fills the slab. Returns how many threads did it.
fn read_all(
    checkpoint: &Checkpoint,
    places: &[Place],
    slab: &mut [u8],
    threads: usize,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<usize, WeightsError> {
    let total_bytes = checkpoint.tensor_bytes();
    // A thread for every scratch-full, so that small files do not start any.
    let pieces = usize::try_from(total_bytes / SCRATCH_BYTES as u64).unwrap_or(usize::MAX);
    let threads = threads.min(MAX_THREADS).min(pieces.max(1));
    let work = Mutex::new(Work {
        feed: Feed::new(checkpoint, places, slab),
        done_bytes: 0,
        failed: None,
    });
    let started = thread::scope(|scope| {
        let mut started = 1;
        for number in 1..threads {
            let builder = thread::Builder::new().name(format!("tenslab-load-{number}"));
            // A thread that the system does not give is one thread less, no failure.
            if builder
                .spawn_scoped(scope, || read_pieces(checkpoint, &work, &mut |_| {}))
                .is_ok()
            {
                started += 1;
            }
        }
        read_pieces(checkpoint, &work, &mut |done_bytes| {
            // The end is reported below, once, when it is certain.
            if done_bytes < total_bytes {
                progress(LoadProgress {
                    done_bytes,
                    total_bytes,
                });
            }
        });
        started
    });
    if let Some((_, error)) = work.lock().failed.take() {
        return Err(error);
    }
    progress(LoadProgress {
        done_bytes: total_bytes,
        total_bytes,
    });
    Ok(started)
}

/// One thread: takes pieces until there are none, or until some thread failed.
fn read_pieces(checkpoint: &Checkpoint, work: &Mutex<Work<'_>>, done: &mut dyn FnMut(u64)) {
    let mut reader = Reader {
        checkpoint,
        open: None,
        scratch: Scratch::default(),
        last: 0,
    };
    let failed = loop {
        // The guard goes at the end of this statement, before the read.
        let next = work.lock().next();
        let Some(piece) = next else {
            break reader.close();
        };
        match reader.read(piece) {
            Ok(bytes) => {
                let done_bytes = {
                    let mut work = work.lock();
                    work.done_bytes += bytes;
                    work.done_bytes
                };
                done(done_bytes);
            }
            Err(error) => break Err(error),
        }
    };
    if let Err(error) = failed {
        work.lock().fail(reader.last, error);
    }
}

/// What one thread keeps between pieces. Pieces come in the order of the files,
/// so it has one of them open at a time.
struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    open: Option<(usize, Source)>,
    scratch: Scratch,
    /// The number of the latest piece.
    last: usize,
}

impl Reader<'_> {
    /// Reads one piece. Returns its bytes in the file.
    fn read(&mut self, piece: Piece<'_>) -> Result<u64, WeightsError> {
        let bytes = piece.source_bytes as u64;
        let wanted = piece.file();
        self.last = piece.number;
        let source = match self.open.take() {
            Some((file, source)) if file == wanted => source,
            other => {
                self.open = other;
                self.close()?;
                let file = &self.checkpoint.files()[wanted];
                Source::reopen(file.path(), &file.identity)?
            }
        };
        let (_, source) = self.open.insert((wanted, source));
        piece.fill(source, &mut self.scratch)?;
        Ok(bytes)
    }

    /// Closes the open file, if it is still what it was.
    fn close(&mut self) -> Result<(), WeightsError> {
        match self.open.take() {
            Some((_, source)) => source.recheck(),
            None => Ok(()),
        }
    }
}
