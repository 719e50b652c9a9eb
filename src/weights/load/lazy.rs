//! [`LazyWeights`]: tensors that are read when they are first asked for.
//!
//! ```text
//!   get("a") ──▶ slot a: gate ──▶ is it there? ──yes──▶ a view of it
//!                        │              └──no──▶ read, freeze, keep
//!                        └ one thread at a time; others wait, and find it there
//! ```
//!
//! Each tensor owns its memory, so one that is forgotten goes back alone, when its last handle
//! does. A slot has two locks: the gate is held while a tensor is read, the other one for an
//! instant. So [`forget`](LazyWeights::forget) never waits for a disk, and a callback of a
//! [`Limit`](crate::memory::Limit) that is short may call it while a tensor is read.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use super::options::{LoadOptions, NonFiniteTensor};
use super::plan::Plan;
use super::work::{Listener, fill};
use super::{Shard, choice, digests, freeze, hashed_bytes, judge, slab};
use crate::memory::Storage;
use crate::sync::Mutex;
use crate::tensor::Tensor;
use crate::types::{DType, Shape};
use crate::weights::source::Source;
use crate::weights::{Checkpoint, WeightsError};

/// A checkpoint whose tensors are read on first use, each into memory of its own.
///
/// For tools that look at a few tensors of a large checkpoint, and for weights that do not all
/// fit at once. The [options](LoadOptions) mean what they mean for
/// [`Weights::load`](crate::weights::Weights::load), for each tensor; digests are computed when
/// it is opened. Files are not kept open, and each read compares its file with what it was.
///
/// ```
/// use tenslab::weights::{LazyWeights, save};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let zeros = || Tensor::zeros([1000], DType::F32, memory::cpu());
/// save(&path, &[("a", zeros()?), ("b", zeros()?)], &Default::default())?;
///
/// let weights = LazyWeights::open(&path, &Default::default())?;
/// assert_eq!(weights.report().read_bytes, 0);
/// let (first, second) = (weights.get("a")?, weights.get("a")?);
/// assert!(first.storage().is_same(second.storage()));   // read once
/// assert_eq!(weights.report().read_bytes, 4000);
///
/// assert!(weights.forget("a"));                         // `first` keeps its memory
/// assert!(!weights.get("a")?.storage().is_same(first.storage()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Any thread may use it; two that ask for one tensor read it once. In a callback that a read
/// itself causes (of a limit that is short) ask for no tensor: it may be the one that is read.
pub struct LazyWeights {
    checkpoint: Checkpoint,
    options: LoadOptions,
    /// By position among the entries.
    slots: Vec<Slot>,
    report: Mutex<LazyReport>,
}

/// What is known of one tensor.
struct Slot {
    chosen: bool,
    /// Held by who reads it.
    gate: Mutex<()>,
    held: Mutex<Option<Whole>>,
}

/// A tensor, or the part that the options want of it, in memory.
#[derive(Clone)]
struct Whole {
    storage: Storage,
    shape: Shape,
    dtype: Option<DType>,
}

/// What lazy weights have read so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LazyReport {
    /// How often a tensor, or a part of one, was read.
    pub tensors: u64,
    /// Bytes of tensors' data that were read from the files, gaps between rows included.
    pub read_bytes: u64,
    /// Calls that read them.
    pub read_calls: u64,
    /// What [`NonFinite::Report`](super::NonFinite::Report) found, in the order of reading.
    pub non_finite: Vec<NonFiniteTensor>,
}

impl LazyWeights {
    /// Opens a file, an index or a directory as [`Checkpoint::open`] does. Reads the headers
    /// and, if digests are wanted, the files once.
    ///
    /// # Errors
    /// [`WeightsError`]: what [`Checkpoint::open`] says; what does not fit the options, of any
    /// tensor that is chosen, its part included.
    pub fn open(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, WeightsError> {
        let checkpoint = Checkpoint::open_with(path, &options.limits)?;
        Self::of(checkpoint, options)
    }

    /// Lazy weights of a checkpoint whose headers are open.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of(checkpoint: Checkpoint, options: &LoadOptions) -> Result<Self, WeightsError> {
        if options.threads == 0 {
            return Err(WeightsError::NoThreads);
        }
        // All of it is planned once, to hear now what cannot be.
        let plan = Plan::new(&checkpoint, options)?;
        let mut slots: Vec<Slot> = checkpoint.entries().map(|_| Slot::left_out()).collect();
        for place in &plan.places {
            slots[place.entry()].chosen = true;
        }
        let progress = &mut |_| ControlFlow::Continue(());
        let mut listener = Listener::new(hashed_bytes(&checkpoint, options), progress);
        digests(&checkpoint, options, &mut listener)?;
        Ok(Self {
            checkpoint,
            options: options.clone(),
            slots,
            report: Mutex::new(LazyReport::default()),
        })
    }

    /// The tensor of this name: frozen, contiguous, and the same storage as long as it is not
    /// [forgotten](Self::forget). Reads it if nobody did; a read that fails is tried again by
    /// the next call.
    ///
    /// # Errors
    /// [`NotFound`](WeightsError::NotFound), [`LeftOut`](WeightsError::LeftOut),
    /// [`UnsupportedDType`](WeightsError::UnsupportedDType), and what reading says: see
    /// [`Weights::load_checkpoint`](crate::weights::Weights::load_checkpoint).
    pub fn get(&self, name: &str) -> Result<Tensor, WeightsError> {
        let at = self.chosen(name)?;
        self.tensor(name, &self.whole(at, name)?)
    }

    /// The bytes of this tensor, whatever its elements are: a frozen `uint8` tensor of one
    /// dimension.
    ///
    /// # Errors
    /// As [`get`](Self::get), but for the dtype.
    pub fn raw(&self, name: &str) -> Result<Tensor, WeightsError> {
        let at = self.chosen(name)?;
        let whole = self.whole(at, name)?;
        let shape = Shape::from([whole.storage.len()]);
        view(name, &whole.storage, shape, DType::U8)
    }

    /// A part of the tensor in its file, whatever rules the options have. It is read now, into
    /// memory of its own, and not kept here.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Shard`](WeightsError::Shard) where there is no such part.
    pub fn shard(&self, name: &str, shard: Shard) -> Result<Tensor, WeightsError> {
        let at = self.chosen(name)?;
        self.tensor(name, &self.read(at, Some(shard))?)
    }

    /// Does not keep the tensor of this name any longer: its memory goes back with its last
    /// handle, and the next [`get`](Self::get) reads it again. Was it here? One that is being
    /// read is not yet.
    pub fn forget(&self, name: &str) -> bool {
        let at = self.checkpoint.position(name);
        at.is_some_and(|at| self.slots[at].forget())
    }

    /// Forgets all tensors, and says how many that were.
    pub fn forget_all(&self) -> usize {
        self.slots.iter().filter(|slot| slot.forget()).count()
    }

    /// Is this tensor in memory?
    #[must_use]
    pub fn is_read(&self, name: &str) -> bool {
        let at = self.checkpoint.position(name);
        at.is_some_and(|at| self.slots[at].held.lock().is_some())
    }

    /// Can a tensor of this name be had, or at least its bytes?
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        let at = self.checkpoint.position(name);
        at.is_some_and(|at| self.slots[at].chosen)
    }

    /// All names that can be had, ordered by file and by offset in it.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let entries = self.checkpoint.entries().zip(&self.slots);
        entries.filter_map(|(entry, slot)| slot.chosen.then_some(entry.name()))
    }

    /// The headers.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What was read so far.
    #[must_use]
    pub fn report(&self) -> LazyReport {
        self.report.lock().clone()
    }

    /// The position of a tensor that can be had.
    fn chosen(&self, name: &str) -> Result<usize, WeightsError> {
        let position = self.checkpoint.position(name);
        let at = position.ok_or_else(|| self.checkpoint.not_found(name))?;
        match self.slots[at].chosen {
            true => Ok(at),
            false => Err(WeightsError::LeftOut {
                path: self.checkpoint.path().into(),
                name: name.into(),
            }),
        }
    }

    /// What is kept of a tensor; reads it if that is nothing.
    fn whole(&self, at: usize, name: &str) -> Result<Whole, WeightsError> {
        let slot = &self.slots[at];
        if let Some(whole) = slot.kept() {
            return Ok(whole);
        }
        let _alone = slot.gate.lock();
        // Another thread may have read it while this one waited.
        if let Some(whole) = slot.kept() {
            return Ok(whole);
        }
        let whole = self.read(at, choice::shard_of(&self.options.shards, name))?;
        *slot.held.lock() = Some(whole.clone());
        Ok(whole)
    }

    /// Reads a tensor or a part of it.
    fn read(&self, at: usize, shard: Option<Shard>) -> Result<Whole, WeightsError> {
        let (checkpoint, options) = (&self.checkpoint, &self.options);
        let plan = Plan::one(checkpoint, at, shard, options.dtype)?;
        let progress = &mut |_| ControlFlow::Continue(());
        let mut listener = Listener::new(plan.source_bytes, progress);
        let mut buffer = slab(checkpoint, &plan, options)?;
        let filled = fill(
            checkpoint,
            &plan,
            buffer.as_mut_slice(),
            options,
            &mut listener,
        )?;
        let storage = Storage::from(buffer);
        let mut non_finite = judge(checkpoint, &plan, options.non_finite, &filled.found)?;
        freeze(&storage, options.protect)?;
        // A plan of one tensor has one place, for the position is known.
        let (place, entry) = (&plan.places[0], checkpoint.entries().get(at));
        if let Some(entry) = entry.filter(|_| options.drop_page_cache) {
            let file = &checkpoint.files()[entry.file()];
            let source = Source::reopen(file.path(), &file.identity)?;
            source.drop_cached(entry.offset(), entry.nbytes());
        }
        let mut report = self.report.lock();
        report.tensors += 1;
        report.read_bytes += filled.reads.bytes;
        report.read_calls += filled.reads.calls;
        report.non_finite.append(&mut non_finite);
        let whole_shape = || entry.map_or(Shape::SCALAR, |entry| entry.shape());
        Ok(Whole {
            storage,
            shape: place.part.as_ref().map_or_else(whole_shape, |p| p.shape),
            dtype: entry.and_then(|entry| place.dtype(entry)),
        })
    }

    fn tensor(&self, name: &str, whole: &Whole) -> Result<Tensor, WeightsError> {
        let dtype = whole.dtype.ok_or_else(|| {
            let entry = self.checkpoint.entry(name);
            WeightsError::UnsupportedDType {
                path: self.checkpoint.path().into(),
                name: name.into(),
                tag: entry.map_or_else(String::new, |entry| entry.dtype().tag().into()),
            }
        })?;
        view(name, &whole.storage, whole.shape, dtype)
    }
}

impl Slot {
    fn left_out() -> Self {
        Self {
            chosen: false,
            gate: Mutex::new(()),
            held: Mutex::new(None),
        }
    }

    fn kept(&self) -> Option<Whole> {
        self.held.lock().clone()
    }

    fn forget(&self) -> bool {
        // Dropped behind the lock: what gives memory back may be the caller's own code.
        let held = self.held.lock().take();
        held.is_some()
    }
}

impl fmt::Debug for LazyWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyWeights")
            .field("path", &self.checkpoint.path())
            .field("tensors", &self.slots.len())
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}

fn view(name: &str, storage: &Storage, shape: Shape, dtype: DType) -> Result<Tensor, WeightsError> {
    Tensor::from_storage(storage, 0, shape, dtype).map_err(|source| WeightsError::Tensor {
        name: name.into(),
        source,
    })
}
