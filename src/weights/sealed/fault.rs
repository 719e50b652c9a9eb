use crate::memory::MapError;
use crate::types::DType;
use crate::weights::quoted::Quoted;

/// Why memory cannot be taken for sealed weights.
///
/// It came from another process, so it is checked like a file from a stranger. What is wrong
/// with the headers in it is a [`FormatFault`](super::super::FormatFault), as with a file's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealedFault {
    /// It has no seals, lacks some, or cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// It has fewer pages than bytes. Nobody can say whether there is memory for the others
    /// when they are touched.
    #[error("{bytes} bytes, and pages for {page_bytes} of them: not what `Weights::seal` makes")]
    Holes {
        /// Its length.
        bytes: u64,
        /// Bytes of its pages.
        page_bytes: u64,
    },
    /// It is some other memory.
    #[error("{bytes} bytes of memory that do not begin as sealed weights do")]
    NotWeights {
        /// Its length.
        bytes: u64,
    },
    /// Another version of this crate made it.
    #[error("version {found} of sealed weights, and this process knows {known}: use one version")]
    Version {
        /// Its version.
        found: u64,
        /// The only one known.
        known: u64,
    },
    /// It is not as long as it says.
    #[error("it says that it has {said} bytes, and has {bytes}")]
    Length {
        /// What it says.
        said: u64,
        /// What it has.
        bytes: u64,
    },
    /// The index has a number that cannot be, or ends too early or too late.
    #[error("its index is wrong at byte {at}: {what}")]
    Index {
        /// Where.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A tensor is not in the memory.
    #[error(
        "tensor {}: {nbytes} bytes from {offset} on are not among the {data_bytes} of data",
        Quoted(name)
    )]
    OutOfBounds {
        /// The tensor.
        name: String,
        /// Its first byte, from the start of the data.
        offset: u64,
        /// Its bytes.
        nbytes: u64,
        /// Bytes of data.
        data_bytes: u64,
    },
    /// A tensor is not where sealed tensors are.
    #[error(
        "tensor {}: it begins at {offset}, which is no multiple of 64",
        Quoted(name)
    )]
    Unaligned {
        /// The tensor.
        name: String,
        /// Its first byte, from the start of the data.
        offset: u64,
    },
    /// A tensor has another length than its shape and dtype need.
    #[error(
        "tensor {}: {nbytes} bytes, where shape and dtype need {expected_bytes}",
        Quoted(name)
    )]
    WrongLength {
        /// The tensor.
        name: String,
        /// What it has.
        nbytes: u64,
        /// What it needs.
        expected_bytes: u64,
    },
    /// A tensor has a dtype that its own is not cast to.
    #[error("tensor {}: {tag:?} in its file, and {} here", Quoted(name), shown(*found))]
    WrongDType {
        /// The tensor.
        name: String,
        /// Its tag in the file.
        tag: String,
        /// What it is here; none for raw bytes.
        found: Option<DType>,
    },
    /// A tensor has a shape that is no part of the one in its file.
    #[error(
        "tensor {}: its shape here is no part of that in its file",
        Quoted(name)
    )]
    WrongPart {
        /// The tensor.
        name: String,
    },
}

fn shown(dtype: Option<DType>) -> &'static str {
    dtype.map_or("raw bytes", DType::name)
}
