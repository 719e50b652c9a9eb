use std::fmt;
use std::io;

use crate::memory::StorageId;

/// Bytes of a file, or memory that processes share, that could not be mapped.
///
/// It names no path, for the file was open already: whoever opened it says which it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The range is not in the file. To map beyond a file's end is to be killed at the first
    /// touch.
    #[error(
        "bytes {start}..{end} are not in the file, which has {file_bytes}: it was cut, or the \
         range is wrong"
    )]
    OutOfFile {
        /// First byte wanted.
        start: u64,
        /// One past the last byte wanted.
        end: u64,
        /// Bytes in the file.
        file_bytes: u64,
    },
    /// So many bytes have no room in an address space.
    #[error("{bytes} bytes are more than this machine can address")]
    TooLarge {
        /// Bytes wanted.
        bytes: u64,
    },
    /// The operating system refused.
    #[error("cannot {action} {bytes} bytes: {source}")]
    System {
        /// What was tried: "map", "make memory of", "seal", …
        action: &'static str,
        /// Bytes it was about.
        bytes: u64,
        /// Why not.
        source: io::Error,
    },
    /// The length of the file cannot be had.
    #[error("the file's length cannot be read: {source}")]
    Length {
        /// Why not.
        source: io::Error,
    },
    /// The file is of a kind that has no seals, so anybody may change it.
    #[error(
        "the file is no memory that can be sealed (a memfd), so somebody may change it while \
         it is mapped: {source}"
    )]
    NoSeals {
        /// What the system says.
        source: io::Error,
    },
    /// The memory lacks seals, so somebody may change it while it is mapped.
    #[error(
        "the memory is not sealed against {missing}, so somebody may change it while it is \
         mapped: seal it before it is passed on"
    )]
    NotSealed {
        /// The seals that it lacks.
        missing: Seals,
    },
    /// Advice about memory that is no mapping.
    #[error("{storage} is not mapped, so there is nothing to advise the system about")]
    NotMapped {
        /// The storage that was named.
        storage: StorageId,
    },
}

/// What nobody can do to a piece of memory any more, for ever.
///
/// ```
/// use tenslab::memory::Seals;
///
/// let mut seals = Seals::default();
/// seals.write = true;
/// seals.grow = true;
/// assert_eq!(seals.to_string(), "writing and growing");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Seals {
    /// Write to it.
    pub write: bool,
    /// Make it shorter.
    pub shrink: bool,
    /// Make it longer.
    pub grow: bool,
}

impl fmt::Display for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.write, self.shrink, self.grow) {
            (true, true, true) => "writing, shrinking and growing",
            (true, true, false) => "writing and shrinking",
            (true, false, true) => "writing and growing",
            (true, false, false) => "writing",
            (false, true, true) => "shrinking and growing",
            (false, true, false) => "shrinking",
            (false, false, true) => "growing",
            (false, false, false) => "nothing",
        })
    }
}
