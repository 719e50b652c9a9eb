//! What a load is told, and what it tells.

#[cfg(feature = "sha256")]
use std::collections::BTreeMap;
use std::thread;

use super::choice::{Choice, ShardRule};
use super::digest::FileDigest;
#[cfg(feature = "sha256")]
use super::digest::Sha256Digest;
use crate::memory::{self, SharedAllocator};
use crate::types::DType;
use crate::weights::HeaderLimits;

/// How a checkpoint is loaded.
///
/// ```
/// use tenslab::DType;
/// use tenslab::weights::{Choice, LoadOptions, NonFinite};
///
/// let options = LoadOptions {
///     dtype: Some(DType::BF16),
///     choice: Choice::matching(["model.layers.?.*", "model.norm.weight"]),
///     non_finite: NonFinite::Refuse,
///     ..LoadOptions::default()
/// };
/// assert!(options.threads >= 1);
/// ```
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Who gives the slab: one allocation as large as all tensors together, which carries
    /// [`Tag::Weights`](memory::Tag::Weights). [`memory::cpu`], or one with a policy for
    /// [huge pages](memory::CpuAllocator::with_huge_pages), or either below a
    /// [`Meter`](memory::Meter) or a [`Budget`](memory::Budget). A
    /// [`SlabAllocator`](memory::SlabAllocator) whose blocks are large enough keeps the pages
    /// from one load to the next, which makes the next several times faster.
    pub allocator: SharedAllocator,
    /// What `float32`, `float16` and `bfloat16` tensors are cast to: one of these
    /// three, or `None` to keep them. Other tensors are always kept.
    pub dtype: Option<DType>,
    /// Threads that read, the calling one included. Above 16 counts as 16.
    pub threads: usize,
    /// What a header may ask for.
    pub limits: HeaderLimits,
    /// Which tensors are loaded. The others cost no read; asked for, they are
    /// [`LeftOut`](crate::weights::WeightsError::LeftOut).
    pub choice: Choice,
    /// Of which tensors only a part is loaded. The first rule whose pattern matches a name
    /// decides; what no rule matches is loaded whole.
    pub shards: Vec<ShardRule>,
    /// Is it fine if a pattern, of `choice` or of `shards`, matches no name? If not, that is an
    /// [error](crate::weights::WeightsError::NothingMatches) with the names that resemble it.
    pub allow_unmatched: bool,
    /// Make the pages read-only afterwards, so that also a stray write through a raw pointer
    /// traps: [`Storage::freeze_protected`](memory::Storage::freeze_protected), whose conditions
    /// apply. The report says how many bytes it was.
    pub protect: bool,
    /// Drop the files from the page cache when they are loaded, on Linux: for weights that
    /// nobody reads again soon. Other processes that use them have to read them again. Pages
    /// that are not on the disk yet, and file systems in memory, are not affected.
    pub drop_page_cache: bool,
    /// What happens about values that are no finite numbers.
    pub non_finite: NonFinite,
    /// Have the SHA-256 of each file computed, before anything is loaded, and these ones
    /// compared: by the last component of the file's path. An empty map compares none.
    ///
    /// That reads the files once more, whole, by a thread for each.
    #[cfg(feature = "sha256")]
    pub sha256: Option<BTreeMap<String, Sha256Digest>>,
}

impl Default for LoadOptions {
    /// The process's allocator, no cast, as many threads as there are cores up to 4, all
    /// tensors, whole, no checks but those of the files.
    fn default() -> Self {
        Self {
            allocator: memory::cpu().clone(),
            dtype: None,
            threads: thread::available_parallelism().map_or(1, |cores| cores.get().min(4)),
            limits: HeaderLimits::default(),
            choice: Choice::all(),
            shards: Vec::new(),
            allow_unmatched: false,
            protect: false,
            drop_page_cache: false,
            non_finite: NonFinite::Ignore,
            #[cfg(feature = "sha256")]
            sha256: None,
        }
    }
}

/// What is done about values that are no finite numbers: NaNs and infinities, in tensors of
/// `float16`, `bfloat16`, `float32` and `float64`, as they are in memory. So a value that a
/// cast to `float16` made infinite counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NonFinite {
    /// Nobody looks.
    #[default]
    Ignore,
    /// They are counted, and the report says where they are.
    Report,
    /// One of them is an [error](crate::weights::WeightsError::NonFinite).
    Refuse,
}

/// A tensor with values that are no finite numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFiniteTensor {
    /// Its name.
    pub name: String,
    /// How many of its values are NaN or infinite.
    pub count: u64,
    /// The number of the first of them, in row-major order; of a part, counted in the part.
    pub first: usize,
}

/// How far a load has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes read so far: of the files, where their digests are computed, and of tensors.
    pub done_bytes: u64,
    /// Bytes that will be read: of tensors, those that are chosen, and of those the parts.
    pub total_bytes: u64,
}

/// Where weights are, once they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LoadMode {
    /// Read into a slab: [`Weights::load`](crate::weights::Weights::load).
    #[default]
    Load,
    /// In the mapped files: [`Weights::map`](crate::weights::Weights::map).
    Map,
    /// In memory that nobody can change and several processes may have: `Weights::seal` and
    /// `Weights::map_sealed`.
    Sealed,
}

/// What a load did.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct LoadReport {
    /// Where the tensors are.
    pub mode: LoadMode,
    /// Files of the checkpoint.
    pub files: usize,
    /// Tensors that were loaded, those that can only be had raw included.
    pub tensors: usize,
    /// Tensors that were left out.
    pub left_out: usize,
    /// Bytes of all files, headers included.
    pub file_bytes: u64,
    /// Bytes of the one allocation that holds the tensors, padding included. Where they are
    /// mapped, of that for the tensors that had to be copied: 0 if there were none.
    pub slab_bytes: usize,
    /// Bytes written into it: the tensors alone, after the cast.
    pub copied_bytes: u64,
    /// Bytes that are mapped and not copied: the data of the files, or all of the sealed memory.
    pub mapped_bytes: u64,
    /// Tensors of mapped files that were copied, because of their place there.
    pub realigned_tensors: usize,
    /// Their bytes.
    pub realigned_bytes: u64,
    /// Bytes of tensors' data that were read from the files: what was wanted, and gaps between
    /// rows that are too small to go around. Digests are not counted.
    pub read_bytes: u64,
    /// Calls that read them.
    pub read_calls: u64,
    /// Tensors that were cast.
    pub cast_tensors: usize,
    /// Tensors of which a part was loaded.
    pub part_tensors: usize,
    /// Bytes whose pages are read-only now.
    pub protected_bytes: usize,
    /// Where values are that are no finite numbers, in the order of the tensors: of
    /// [`NonFinite::Report`].
    pub non_finite: Vec<NonFiniteTensor>,
    /// The digests of all files in their order, if they were computed.
    pub digests: Vec<FileDigest>,
    /// Threads that read.
    pub threads: usize,
    /// Wall-clock seconds from opening to the last check.
    pub seconds: f64,
}
