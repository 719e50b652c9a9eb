use std::fmt;
use std::path::PathBuf;

use crate::weights::quoted::{Few, Quoted, Shown, few};

/// The most tensors that a fault names. It counts all: two files of a stranger can have
/// millions in common, and a path may be long.
const MOST_NAMED: usize = 10_000;

/// Those of `all` that are named, and how many there are.
pub(super) fn named<K, T>(
    all: impl Iterator<Item = K>,
    name: impl Fn(K) -> T,
) -> Option<(Vec<T>, usize)> {
    let (mut tensors, mut count) = (Vec::new(), 0);
    for each in all {
        if count < MOST_NAMED {
            tensors.push(name(each));
        }
        count += 1;
    }
    (count > 0).then_some((tensors, count))
}

/// `1 tensor is`, `2 tensors are`.
fn tensors_are(count: usize) -> String {
    match count {
        1 => "1 tensor is".into(),
        _ => format!("{count} tensors are"),
    }
}

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
        write!(f, "{} in \"{}\"", Quoted(&self.tensor), Shown(&self.file))
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
        write!(
            f,
            "{} in \"{first}\" and in \"{second}\"",
            Quoted(&self.tensor)
        )
    }
}

/// What is wrong with a set of files, each of which may be fine.
///
/// Lists hold all that is wrong (of tensors the first 10,000), sorted by name; a message shows
/// the first eight.
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
    /// The index lists, or the files together hold, more tensors than the limit.
    #[error(
        "a set of more than {max_tensors} tensors, which is the limit; raise HeaderLimits::max_tensors if it is trusted"
    )]
    TooManyTensors {
        /// The limit.
        max_tensors: usize,
    },
    /// The index names files outside its own directory.
    #[error(
        "{} said to be where no plain path inside the directory leads: {}",
        tensors_are(*count), Few { of: tensors, count: *count }
    )]
    Outside {
        /// Those tensors, and what the index says.
        tensors: Vec<TensorAt>,
        /// How many there are.
        count: usize,
    },
    /// Files of the index are not there.
    #[error(
        "{} of {files} files are missing: {}; download them again",
        missing.len(), few(missing)
    )]
    MissingFiles {
        /// How many files the index names.
        files: usize,
        /// Those that are missing, sorted and escaped.
        missing: Vec<String>,
    },
    /// Tensors are in two files.
    #[error("{} in two files: {}", tensors_are(*count), Few { of: tensors, count: *count })]
    Duplicates {
        /// Those tensors, one for each pair of neighbouring files that has it.
        tensors: Vec<TensorTwice>,
        /// How many there are.
        count: usize,
    },
    /// The index says where tensors are, and they are not there.
    #[error(
        "{} not in the file that the index names: {}",
        tensors_are(*count), Few { of: tensors, count: *count }
    )]
    NotInFile {
        /// Those tensors, and where they should be.
        tensors: Vec<TensorAt>,
        /// How many there are.
        count: usize,
    },
    /// Files hold tensors that the index does not list.
    #[error("{} not in the index: {}", tensors_are(*count), Few { of: tensors, count: *count })]
    NotInIndex {
        /// Those tensors, and where they are.
        tensors: Vec<TensorAt>,
        /// How many there are.
        count: usize,
    },
    /// A list of files names one file twice.
    #[error("{} and {} are one file", Shown(first), Shown(second))]
    FileTwice {
        /// As it is named first.
        first: PathBuf,
        /// As it is named then.
        second: PathBuf,
    },
}
