//! [`Checkpoint`]: the headers of a checkpoint, read and compared, no data.
//!
//! ```text
//!  path                                what is opened
//!  file.safetensors                    that file
//!  something.index.json                the shards it lists, beside it
//!  directory                           model.safetensors, or else
//!                                      model.safetensors.index.json
//! ```
//!
//! Opening costs the headers alone, whatever the size of the tensors, and keeps
//! no file open (a model of 1,400 shards would need more descriptors than a
//! process has). What each file was is remembered, and a load that comes later
//! refuses a file that is no longer the same.
//!
//! `tests/weights_bad_input.rs` holds the refusals, `tests/weights_load.rs` the
//! files of other projects that must open.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::index::Index;
use super::similar::similar;
use super::source::{Identity, Source};
use super::{HeaderLimits, TensorInfo, WeightDType, WeightsError};
use crate::types::Shape;

/// One tensor of a checkpoint, as its file lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightEntry {
    info: TensorInfo,
    file: usize,
    offset: u64,
}

impl WeightEntry {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// What its elements are in the file.
    #[must_use]
    pub fn dtype(&self) -> &WeightDType {
        self.info.dtype()
    }

    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.info.shape()
    }

    /// Its length in the file, in bytes.
    #[must_use]
    pub fn nbytes(&self) -> u64 {
        self.info.nbytes()
    }

    /// Which of [`Checkpoint::files`] holds it.
    #[must_use]
    pub fn file(&self) -> usize {
        self.file
    }

    /// Where its first byte is, counted from the start of its file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What the header says about it, offsets counted from the start of the data.
    #[must_use]
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }
}

/// One file of a checkpoint.
#[derive(Debug, Clone)]
pub struct CheckpointFile {
    path: PathBuf,
    pub(super) identity: Identity,
    file_bytes: u64,
    data_start: u64,
    metadata: BTreeMap<String, String>,
    entries: Range<usize>,
}

impl CheckpointFile {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Where its data begins, in bytes.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Its own `__metadata__`.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Its tensors: a range of [`Checkpoint::entries`].
    #[must_use]
    pub fn entries(&self) -> Range<usize> {
        self.entries.clone()
    }
}

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
/// assert_eq!(checkpoint.entries()[0].name(), "norm");
/// assert_eq!(checkpoint.tensor_bytes(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<CheckpointFile>,
    entries: Vec<WeightEntry>,
    /// Positions in `entries`, ordered by name.
    by_name: Vec<usize>,
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

    /// Opens a file, an index or a directory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, limits: &HeaderLimits) -> Result<Self, WeightsError> {
        let path = path.as_ref();
        let kind = std::fs::metadata(path).map_err(|e| WeightsError::io(path, "open", e))?;
        if !kind.is_dir() {
            return if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                Self::open_index(path, limits)
            } else {
                Self::open_file(path, limits)
            };
        }
        let file = path.join("model.safetensors");
        if exists(&file)? {
            return Self::open_file(&file, limits);
        }
        let index = path.join("model.safetensors.index.json");
        if exists(&index)? {
            return Self::open_index(&index, limits);
        }
        Err(WeightsError::NoCheckpoint {
            path: path.into(),
            others: other_files(path)?,
        })
    }

    fn open_file(path: &Path, limits: &HeaderLimits) -> Result<Self, WeightsError> {
        let mut checkpoint = Self::empty(path);
        checkpoint.add(path, limits)?;
        checkpoint.sort_names();
        Ok(checkpoint)
    }

    fn open_index(path: &Path, limits: &HeaderLimits) -> Result<Self, WeightsError> {
        let index = Index::read(path)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        index.require_shards(path, directory)?;
        let mut checkpoint = Self::empty(path);
        for shard in &index.shards {
            checkpoint.add(&directory.join(shard), limits)?;
        }
        checkpoint.sort_names();
        checkpoint.refuse_duplicates()?;
        checkpoint.agree_with(&index)?;
        Ok(checkpoint)
    }

    fn empty(path: &Path) -> Self {
        Self {
            path: path.into(),
            files: Vec::new(),
            entries: Vec::new(),
            by_name: Vec::new(),
            metadata: BTreeMap::new(),
        }
    }

    /// Reads the header of one more file.
    fn add(&mut self, path: &Path, limits: &HeaderLimits) -> Result<(), WeightsError> {
        let source = Source::open(path)?;
        let header = source.header(limits)?;
        let (file, begin) = (self.files.len(), self.entries.len());
        let (data_start, file_bytes) = (header.data_start(), header.file_bytes());
        let (tensors, metadata) = header.into_parts();
        self.entries
            .extend(tensors.into_iter().map(|info| WeightEntry {
                // The header was checked: the sum is at most the file's length.
                offset: data_start + info.begin(),
                info,
                file,
            }));
        for (key, value) in &metadata {
            self.metadata
                .entry(key.clone())
                .or_insert_with(|| value.clone());
        }
        self.files.push(CheckpointFile {
            path: path.into(),
            identity: source.identity(),
            file_bytes,
            data_start,
            metadata,
            entries: begin..self.entries.len(),
        });
        Ok(())
    }

    fn sort_names(&mut self) {
        self.by_name = (0..self.entries.len()).collect();
        let entries = &self.entries;
        // Stable: of two equal names the one in the earlier file comes first.
        self.by_name.sort_by_key(|&at| entries[at].name());
    }

    fn refuse_duplicates(&self) -> Result<(), WeightsError> {
        for pair in self.by_name.windows(2) {
            let (first, second) = (&self.entries[pair[0]], &self.entries[pair[1]]);
            if first.name() == second.name() {
                return Err(WeightsError::DuplicateAcrossShards {
                    path: self.path.clone(),
                    tensor: first.name().into(),
                    first: self.files[first.file].path.clone(),
                    second: self.files[second.file].path.clone(),
                });
            }
        }
        Ok(())
    }

    /// Does every tensor lie where the index says, and does it say so for every one?
    fn agree_with(&self, index: &Index) -> Result<(), WeightsError> {
        let mut lost = index
            .shard_of
            .iter()
            .filter(|&(name, &shard)| self.entry(name).is_none_or(|entry| entry.file != shard));
        if let Some((tensor, &shard)) = lost.next() {
            return Err(WeightsError::NotInShard {
                path: self.path.clone(),
                tensor: tensor.clone(),
                shard: self.files[shard].path.clone(),
                count: 1 + lost.count(),
            });
        }
        let mut extra = self
            .entries
            .iter()
            .filter(|entry| !index.shard_of.contains_key(entry.name()));
        if let Some(entry) = extra.next() {
            return Err(WeightsError::NotInIndex {
                path: self.path.clone(),
                tensor: entry.name().into(),
                shard: self.files[entry.file].path.clone(),
                count: 1 + extra.count(),
            });
        }
        Ok(())
    }

    /// The file or index that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files, ordered by path.
    #[must_use]
    pub fn files(&self) -> &[CheckpointFile] {
        &self.files
    }

    /// All tensors, ordered by file and by offset in it.
    #[must_use]
    pub fn entries(&self) -> &[WeightEntry] {
        &self.entries
    }

    /// The tensor of this name. Costs a binary search.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&WeightEntry> {
        self.position(name).map(|at| &self.entries[at])
    }

    /// Where in [`entries`](Self::entries) the tensor of this name is.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.by_name
            .binary_search_by(|&at| self.entries[at].name().cmp(name))
            .ok()
            .map(|found| self.by_name[found])
    }

    /// The error for a name that is not there, with names like it.
    pub(super) fn not_found(&self, name: &str) -> WeightsError {
        WeightsError::NotFound {
            path: self.path.clone(),
            name: name.into(),
            tensors: self.entries.len(),
            close: similar(name, self.entries.iter().map(WeightEntry::name)),
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
        sum(self.entries.iter().map(WeightEntry::nbytes))
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

/// A link that leads nowhere is there, too: opening it says best what is wrong.
fn exists(path: &Path) -> Result<bool, WeightsError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(WeightsError::io(path, "open", error)),
    }
}

/// The names of the safetensors files in a directory, for the error message.
fn other_files(directory: &Path) -> Result<Vec<String>, WeightsError> {
    let io = |error| WeightsError::io(directory, "list", error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") {
            names.push(name.escape_debug().to_string());
        }
    }
    names.sort_unstable();
    Ok(names)
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
