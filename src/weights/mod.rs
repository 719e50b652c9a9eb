//! Checkpoint files, and their tensors in memory.
//!
//! ```text
//!   path ──▶ Checkpoint ──▶ Weights ──get("name")──▶ Tensor, Tensor, …
//!            headers only   one slab,                frozen views of the
//!                           frozen                   slab, 64-byte aligned
//!                           or the files, mapped
//!                           or sealed memory ◀──▶ other processes
//!   tensors ──save──▶ file
//! ```
//!
//! - [`Checkpoint::open`] reads what a file, or the shards of an index, say about
//!   themselves. [`Header`] is where that is checked: nothing in a file is believed.
//! - [`Weights::load`] reads the data, once, to where it stays: one allocation of any
//!   [`SharedAllocator`](crate::memory::SharedAllocator), read in parallel, cast on
//!   the way if asked; all of it, what a [`Choice`] names, or one rank's [`Shard`] of each.
//! - [`LazyWeights`] reads each tensor when it is first asked for.
//! - [`Weights::map`] leaves the data where it is, in the files. That is `unsafe`, for whoever
//!   may write to a file may change or end what is read there.
//! - On Linux `Weights::seal` loads into memory that nobody can change any more, and
//!   `Weights::map_sealed` has it in as many processes as want it: one copy for all of them.
//! - [`save`] and [`save_with`] write a file, all or nothing.
//!
//! A bad tensor spoils itself: one of a dtype that this crate does not have is listed
//! and its bytes can be had, and its neighbours load. A bad file is an
//! [error](WeightsError) that names path, tensor and numbers. Nothing that stands in a
//! file makes this module panic, and no file makes it ask for more memory than a
//! small multiple of the file's own length.

// The format is little-endian, and tensors are loaded as they lie in the file.
#[cfg(target_endian = "big")]
compile_error!("weights are little-endian and are not swapped: tenslab needs such a machine");

mod dtype;
mod error;
mod fault;
mod foreign;
mod header;
mod load;
mod loaded;
mod map;
mod quoted;
mod sealed;
mod set;
mod similar;
mod source;
mod sub;
mod write;

pub use self::dtype::WeightDType;
pub use self::error::WeightsError;
pub use self::fault::FormatFault;
pub use self::foreign::ForeignFormat;
pub use self::header::{Header, HeaderLimits, TensorInfo, TensorInfos};
pub use self::load::{
    Choice, FileDigest, LazyReport, LazyWeights, LoadMode, LoadOptions, LoadProgress, LoadReport,
    NoDigest, NonFinite, NonFiniteTensor, Sha256Digest, Shard, ShardFault, ShardRule,
};
pub use self::loaded::{Backing, Weights};
pub use self::map::{MapOptions, Misaligned, MisalignedTensor};
pub use self::sealed::SealedFault;
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
pub use self::sealed::SealedWeights;
pub use self::set::{
    Checkpoint, CheckpointFile, SetFault, ShardIndex, TensorAt, TensorTwice, WeightEntries,
    WeightEntry,
};
pub use self::sub::SubWeights;
pub use self::write::{SaveEntry, SaveOptions, SaveProgress, SaveReport, save, save_with};
