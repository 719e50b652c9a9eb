//! [`Checkpoint`]: the headers of a checkpoint, read and compared, no data.
//!
//! ```text
//!  path                                what is opened
//!  file.safetensors                    that file
//!  something.index.json                the shards it lists, beside it
//!  directory                           model.safetensors, or else
//!                                      model.safetensors.index.json
//!  a list of files                     those, in that order
//! ```
//!
//! Opening costs the headers alone, whatever the size of the tensors, and keeps
//! no file open (a model of 1,400 shards would need more descriptors than a
//! process has). What each file was is remembered, and a load that comes later
//! refuses a file that is no longer the same.
//!
//! `tests/weights_bad_input` holds the refusals, `tests/weights_load.rs` the
//! files of other projects that must open.

mod agree;
mod entry;
mod fault;
mod index;
mod open;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::similar::similar;
use super::{HeaderLimits, WeightsError};

pub use self::entry::{CheckpointFile, WeightEntries, WeightEntry};
pub use self::fault::{SetFault, TensorAt, TensorTwice};
pub use self::index::ShardIndex;

/// The opened headers of a checkpoint.
///
/// ```
/// use tenslab::weights::{Checkpoint, save};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let norm = Tensor::zeros([4], DType::F32, memory::cpu())?;
/// save(&path, &[("norm", norm)], &Default::default())?;
///
/// let checkpoint = Checkpoint::open(directory.path())?;  // the directory will do
/// assert_eq!(checkpoint.entries().get(0).unwrap().name(), "norm");
/// assert_eq!(checkpoint.tensor_bytes(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<CheckpointFile>,
    /// Numbers of tensors, ordered by name. 32 bits: a set of more is refused.
    by_name: Vec<u32>,
    metadata: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a file, an index or a directory with the usual [`HeaderLimits`].
    ///
    /// # Errors
    /// [`WeightsError`]: a path that is not there or is no checkpoint, a file
    /// with a fault, an index and shards that disagree.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        Self::open_with(path, &HeaderLimits::default())
    }

    /// The file or index that was opened; of a list, its first file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files: those of an index ordered by path, those of a list as it has them.
    #[must_use]
    pub fn files(&self) -> &[CheckpointFile] {
        &self.files
    }

    /// All tensors, ordered by file and by offset in it.
    #[must_use]
    pub fn entries(&self) -> WeightEntries<'_> {
        let all = self.files.last().map_or(0, |last| last.end);
        WeightEntries::new(&self.files, 0..all)
    }

    /// The tensors of one file, ordered by offset.
    ///
    /// # Panics
    /// If `file` is no position in [`files`](Self::files).
    #[must_use]
    pub fn entries_of(&self, file: usize) -> WeightEntries<'_> {
        let holder = &self.files[file];
        let begin = holder.end - holder.header.tensors().len();
        WeightEntries::new(&self.files, begin..holder.end)
    }

    /// The tensor of this name. Costs a binary search.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<WeightEntry<'_>> {
        self.entries().get(self.position(name)?)
    }

    /// Where in [`entries`](Self::entries) the tensor of this name is.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        let entries = self.entries();
        // Equal to `None` is none: all numbers are of tensors.
        let found = (self.by_name)
            .binary_search_by(|&at| {
                entries
                    .get(at as usize)
                    .map(WeightEntry::name)
                    .cmp(&Some(name))
            })
            .ok()?;
        Some(self.by_name[found] as usize)
    }

    /// All tensors, ordered by name; of equal names by file.
    fn named_entries(&self) -> impl Iterator<Item = WeightEntry<'_>> {
        let entries = self.entries();
        self.by_name
            .iter()
            .filter_map(move |&at| entries.get(at as usize))
    }

    /// The error for a name that is not there, with names like it.
    pub(super) fn not_found(&self, name: &str) -> WeightsError {
        WeightsError::NotFound {
            path: self.path.clone(),
            name: name.into(),
            tensors: self.entries().len(),
            close: similar(name, self.entries().map(WeightEntry::name)),
        }
    }

    /// The `__metadata__` of all files. Where two have one key, the first file's
    /// value is taken; [`CheckpointFile::metadata`] has each one's own.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The bytes of all tensors, as they lie in the files. `u64::MAX` where that is more.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        sum(self.entries().map(WeightEntry::nbytes))
    }

    /// The bytes of all files, headers included. `u64::MAX` where that is more.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        sum(self.files.iter().map(CheckpointFile::file_bytes))
    }
}

/// A file has less than 2^63 bytes, and a sparse one costs nothing: three of them are
/// more than 64 bits hold.
fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, write};
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::weights::{LoadOptions, Weights};

    #[test]
    fn shards_of_more_bytes_than_64_bits_hold_are_summed_without_wrapping() {
        // Only a file system in memory takes sparse files of any length.
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
            println!("skipped: there is no /dev/shm");
            return;
        };
        let path = directory.path().join("model.safetensors.index.json");
        write(&path, r#"{"weight_map": {"a": "a", "b": "b", "c": "c"}}"#).unwrap();
        for name in ["a", "b", "c"] {
            let bytes = 0x7fff_ffff_ffff_f000_u64;
            let text = format!(
                r#"{{"{name}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#
            );
            let header = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
            let file = File::create(directory.path().join(name)).unwrap();
            file.write_all_at(&header, 0).unwrap();
            if let Err(error) = file.set_len(header.len() as u64 + bytes) {
                println!("skipped: {error}");
                return;
            }
        }
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.entries().len(), 3);
        assert_eq!(checkpoint.tensor_bytes(), u64::MAX);
        assert_eq!(checkpoint.file_bytes(), u64::MAX);
        let error = Weights::load(&path, &LoadOptions::default()).unwrap_err();
        assert!(matches!(error, WeightsError::TooLarge { .. }), "{error}");
    }
}
