use std::fmt;
use std::path::PathBuf;

use crate::weights::quoted::{Quoted, Shown, Some8};

/// A tensor, and a file of its set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorAt {
    /// The tensor.
    pub tensor: String,
    /// The file.
    pub file: PathBuf,
}

impl fmt::Display for TensorAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", Quoted(&self.tensor), Shown(&self.file))
    }
}

/// A tensor that is in two files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorTwice {
    /// The tensor.
    pub tensor: String,
    /// The file that comes first in the set.
    pub first: PathBuf,
    /// The next one that has it.
    pub second: PathBuf,
}

impl fmt::Display for TensorTwice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = (Shown(&self.first), Shown(&self.second));
        write!(f, "{} in {first} and in {second}", Quoted(&self.tensor))
    }
}

/// What is wrong with a set of files, each of which may be fine.
///
/// Lists hold all that is wrong, sorted by tensor; a message shows the first eight.
/// [`WeightsError::Set`](super::super::WeightsError::Set) adds the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetFault {
    /// The index is no index.
    #[error("not a checkpoint index: {reason}")]
    BadIndex {
        /// What is wrong.
        reason: String,
    },
    /// The index lists more tensors than the limit.
    #[error("the index lists more than {max_tensors} tensors, which is the limit")]
    TooManyTensors {
        /// The limit.
        max_tensors: usize,
    },
    /// The index names files outside its own directory.
    #[error(
        "{} tensors are said to be where no plain path inside the directory leads: {}",
        tensors.len(), Some8(tensors)
    )]
    Outside {
        /// Those tensors, and what the index says.
        tensors: Vec<TensorAt>,
    },
    /// Files of the index are not there.
    #[error(
        "{} of {files} files are missing: {}; download them again",
        missing.len(), Some8(missing)
    )]
    MissingFiles {
        /// How many files the index names.
        files: usize,
        /// Those that are missing, sorted and escaped.
        missing: Vec<String>,
    },
    /// Tensors are in two files.
    #[error("{} tensors are in two files: {}", tensors.len(), Some8(tensors))]
    Duplicates {
        /// Those tensors, one for each pair of neighbouring files that has it.
        tensors: Vec<TensorTwice>,
    },
    /// The index says where tensors are, and they are not there.
    #[error(
        "{} tensors are not in the file that the index names: {}",
        tensors.len(), Some8(tensors)
    )]
    NotInFile {
        /// Those tensors, and where they should be.
        tensors: Vec<TensorAt>,
    },
    /// Files hold tensors that the index does not list.
    #[error("{} tensors are not in the index: {}", tensors.len(), Some8(tensors))]
    NotInIndex {
        /// Those tensors, and where they are.
        tensors: Vec<TensorAt>,
    },
    /// A list of files names none.
    #[error("the list of files is empty")]
    NoFiles,
    /// A list of files names one file twice.
    #[error("{} and {} are one file", Shown(first), Shown(second))]
    FileTwice {
        /// As it is named first.
        first: PathBuf,
        /// As it is named then.
        second: PathBuf,
    },
}
