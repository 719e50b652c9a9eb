use std::io;
use std::path::{Path, PathBuf};

use super::quoted::{Few, Quoted, Shown, few};
use super::{FormatFault, MisalignedTensor, SealedFault, SetFault, Sha256Digest, ShardFault};
use crate::memory::{AllocError, BorrowError, MapError};
use crate::tensor::TensorError;
use crate::types::{DType, Shape};

/// A checkpoint that could not be opened, loaded or written.
///
/// Every message is one line: the path, the tensor, the numbers, and what to do
/// where that is not plain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", Shown(path))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried: "open", "read", "write", …
        action: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Neither a file nor a directory: a pipe, a device, a socket.
    #[error("{}: neither a file nor a directory", Shown(path))]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The bytes of a file are wrong.
    #[error("{}: {fault}", Shown(path))]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        fault: Box<FormatFault>,
    },
    /// A directory without a checkpoint.
    #[error(
        "{}: no model.safetensors and no model.safetensors.index.json here{}",
        Shown(path),
        found(others)
    )]
    NoCheckpoint {
        /// The directory.
        path: PathBuf,
        /// Other safetensors files in it, sorted.
        others: Vec<String>,
    },
    /// The files of a set do not fit together, or its index is none.
    #[error("{}: {fault}", Shown(path))]
    Set {
        /// The index, or the first file of a list.
        path: PathBuf,
        /// What is wrong.
        #[source]
        fault: Box<SetFault>,
    },
    /// A file ended before the bytes that its header promised.
    #[error(
        "{}: the file ended at byte {at} while bytes {begin}..{end} were read (tensor {}): it became shorter after it was opened",
        Shown(path),
        Quoted(tensor)
    )]
    ShortRead {
        /// The file.
        path: PathBuf,
        /// The tensor that was being read; empty when it was the header.
        tensor: String,
        /// Where it ended.
        at: u64,
        /// First byte wanted.
        begin: u64,
        /// One past the last byte wanted.
        end: u64,
    },
    /// A file is not the one whose header was read.
    #[error(
        "{}: the file changed while it was read: {what}; load it again when nobody writes to it",
        Shown(path)
    )]
    FileChanged {
        /// The file.
        path: PathBuf,
        /// What differs, with both values.
        what: String,
    },
    /// A cast to a dtype that weights are not cast to.
    #[error("weights are cast to float32, float16 or bfloat16 on the way, not to {dtype}")]
    CastTarget {
        /// What was asked for.
        dtype: DType,
    },
    /// A list of files that is empty.
    #[error("a checkpoint of no files; name one or more")]
    NoFiles,
    /// Zero threads were asked for.
    #[error("0 threads cannot load anything; use 1 or more")]
    NoThreads,
    /// The tensors are larger than the address space.
    #[error(
        "{}: the tensors need {bytes} bytes, more than this machine can address",
        Shown(path)
    )]
    TooLarge {
        /// The checkpoint.
        path: PathBuf,
        /// What they need; `u64::MAX` if even that is too small.
        bytes: u64,
    },
    /// There is no memory for the weights or for a header.
    #[error("{}: no memory for {bytes} bytes of {what}: {source}", Shown(path))]
    Memory {
        /// The checkpoint or file.
        path: PathBuf,
        /// How many bytes.
        bytes: u64,
        /// What they are for.
        what: &'static str,
        /// What the allocator says.
        source: AllocError,
    },
    /// There is no tensor of this name.
    #[error(
        "no tensor {} among the {tensors} of {}{}",
        Quoted(name),
        Shown(path),
        similar(close)
    )]
    NotFound {
        /// The checkpoint.
        path: PathBuf,
        /// What was asked for.
        name: String,
        /// How many there are.
        tensors: usize,
        /// Names that resemble it, the closest first.
        close: Vec<String>,
    },
    /// The tensor is in the file, and was not to be loaded.
    #[error(
        "tensor {} of {} was left out when it was loaded; have it chosen",
        Quoted(name),
        Shown(path)
    )]
    LeftOut {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A pattern of names that no tensor has: a choice, or a rule for parts.
    #[error(
        "no name among the {tensors} of {} matches {}{}; correct it, or allow patterns without a match",
        Shown(path),
        Quoted(pattern),
        similar(close)
    )]
    NothingMatches {
        /// The checkpoint.
        path: PathBuf,
        /// The pattern.
        pattern: String,
        /// How many tensors there are.
        tensors: usize,
        /// Names that resemble it, the closest first.
        close: Vec<String>,
    },
    /// A tensor of which there is no such part.
    #[error(
        "{}: tensor {} of shape {shape} has no such part: {fault}",
        Shown(path),
        Quoted(name)
    )]
    Shard {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Box<Shape>,
        /// Why not.
        #[source]
        fault: ShardFault,
    },
    /// Values that are no finite numbers, where they were not to be.
    #[error(
        "{}: {count} values of tensor {} are NaN or infinite, element {first} is the first{}",
        Shown(path),
        Quoted(name),
        others_too(*tensors)
    )]
    NonFinite {
        /// The checkpoint.
        path: PathBuf,
        /// The first tensor with such values.
        name: String,
        /// How many it has, after the cast.
        count: u64,
        /// The first of them, in row-major order.
        first: usize,
        /// How many tensors have such values.
        tensors: usize,
    },
    /// A file has another digest than it should.
    #[error(
        "{}: its SHA-256 is {found}, and {expected} was expected: it is damaged, or another version",
        Shown(path)
    )]
    Digest {
        /// The file.
        path: PathBuf,
        /// What was expected.
        expected: Box<Sha256Digest>,
        /// What it is.
        found: Box<Sha256Digest>,
    },
    /// A digest was given for a file that is none of the checkpoint's.
    #[error(
        "a digest is given for {}, which is none of the files of {}",
        Quoted(name),
        Shown(path)
    )]
    NoSuchFile {
        /// The checkpoint.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A name that another tensor or alias has.
    #[error("a tensor of {} has the name {} already", Shown(path), Quoted(name))]
    NameTaken {
        /// The checkpoint.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The tensor is there, and no tensor can be made of its elements.
    #[error(
        "tensor {} of {} is {tag:?}, which this crate has no tensors of; its bytes can be had raw",
        Quoted(name),
        Shown(path)
    )]
    UnsupportedDType {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its tag in the file.
        tag: String,
    },
    /// A file could not be mapped, or memory for several processes not be had.
    #[error("{}: {source}", Shown(path))]
    Map {
        /// The file or checkpoint.
        path: PathBuf,
        /// Why not.
        source: MapError,
    },
    /// Tensors of a mapped file that are not aligned, which were not to be copied.
    #[error(
        "{}: {count} of {tensors} tensors ({bytes} bytes) are not aligned to their elements in the file: {}; load it, or have them copied with Misaligned::Realign",
        Shown(path), Few { of: misaligned, count: *count }
    )]
    MisalignedTensors {
        /// The checkpoint.
        path: PathBuf,
        /// The first 10,000 of them, in the order of the files.
        misaligned: Vec<MisalignedTensor>,
        /// How many there are.
        count: usize,
        /// Their bytes together.
        bytes: u64,
        /// How many tensors the checkpoint has.
        tensors: usize,
    },
    /// The place of a mapped tensor has not the alignment that its elements need.
    #[error(
        "tensor {} begins at byte {offset} of {}, and {dtype} elements need a multiple of {}; its bytes can be had raw, or load it",
        Quoted(name), Shown(path), dtype.bytes()
    )]
    Misaligned {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its first byte in the file.
        offset: u64,
        /// Its elements.
        dtype: DType,
    },
    /// Memory that is no copy of weights, or cannot be taken for one.
    #[error("sealed weights: {fault}")]
    Sealed {
        /// What is wrong.
        #[source]
        fault: Box<SealedFault>,
    },
    /// A view could not be made, or a tensor to be written not read.
    #[error("tensor {}: {source}", Quoted(name))]
    Tensor {
        /// The tensor.
        name: String,
        /// Why.
        source: TensorError,
    },
    /// The slab could not be frozen.
    #[error("the weights could not be made read-only: {source}")]
    Freeze {
        /// Why.
        source: BorrowError,
    },
    /// A name that cannot be written.
    #[error("{}: a tensor cannot be named {}: {reason}", Shown(path), Quoted(name))]
    InvalidName {
        /// The file to be written.
        path: PathBuf,
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// A header that readers would not take.
    #[error(
        "{}: names, shapes and metadata make a header of {header_bytes} bytes, and readers take {max_bytes}; write several files",
        Shown(path)
    )]
    HeaderTooLong {
        /// The file to be written.
        path: PathBuf,
        /// What the header needs, padding included.
        header_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A file does not fit: the disk is full, or a quota or a limit of the process is reached.
    #[error(
        "{}: cannot write a file of {file_bytes} bytes{}: {source}",
        Shown(path),
        room(*room_bytes)
    )]
    NoRoom {
        /// The file to be written.
        path: PathBuf,
        /// What it needs.
        file_bytes: u64,
        /// What there was room for, where that is known and less.
        room_bytes: Option<u64>,
        /// What the system says.
        source: io::Error,
    },
    /// Whoever was told of the progress wanted no more of it.
    #[error(
        "{}: cancelled after {done_bytes} of {total_bytes} bytes of tensors; nothing was changed",
        Shown(path)
    )]
    Cancelled {
        /// The file.
        path: PathBuf,
        /// How far it had come.
        done_bytes: u64,
        /// How far it would have gone.
        total_bytes: u64,
    },
}

impl WeightsError {
    /// Adds the path to what is wrong with a file.
    pub(super) fn format(path: &Path, fault: FormatFault) -> Self {
        Self::Format {
            path: path.into(),
            fault: Box::new(fault),
        }
    }

    /// Adds the path to what is wrong with a set of files.
    pub(super) fn set(path: &Path, fault: SetFault) -> Self {
        Self::Set {
            path: path.into(),
            fault: Box::new(fault),
        }
    }

    /// Adds path and deed to what the operating system said.
    pub(super) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io {
            path: path.into(),
            action,
            source,
        }
    }
}

fn found(others: &[String]) -> String {
    if others.is_empty() {
        return "; name a .safetensors file or a directory that holds one of them".into();
    }
    format!("; it has {}: name one of them", few(others))
}

fn room(room_bytes: Option<u64>) -> String {
    room_bytes.map_or_else(String::new, |bytes| format!(", there is room for {bytes}"))
}

fn others_too(tensors: usize) -> String {
    match tensors {
        0 | 1 => String::new(),
        _ => format!("; {tensors} tensors have some"),
    }
}

fn similar(close: &[String]) -> String {
    if close.is_empty() {
        return String::new();
    }
    let quoted: Vec<_> = close.iter().map(|name| Quoted(name).to_string()).collect();
    format!("; did you mean {}?", quoted.join(" or "))
}
