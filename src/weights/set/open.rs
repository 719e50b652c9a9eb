//! From a path to the files that are a checkpoint.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::index::ShardIndex;
use super::{Checkpoint, CheckpointFile, SetFault, WeightEntry};
use crate::weights::source::{Identity, Source};
use crate::weights::{Header, HeaderLimits, WeightsError};

impl Checkpoint {
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
        let wrong = |fault| WeightsError::set(path, fault);
        let text = Source::open(path)?.read_all(limits.max_header_bytes)?;
        let index = ShardIndex::from_bytes(&text, limits).map_err(wrong)?;
        drop(text);
        let directory = path.parent().unwrap_or(Path::new(""));
        index.require_shards(path, directory)?;
        let mut checkpoint = Self::empty(path);
        for shard in &index.shards {
            checkpoint.add(&directory.join(shard), limits)?;
        }
        checkpoint.sort_names();
        checkpoint.refuse_duplicates().map_err(wrong)?;
        checkpoint.agree_with(&index).map_err(wrong)?;
        Ok(checkpoint)
    }

    /// Opens these files as one checkpoint, where there is no index: in their order, whatever
    /// they are called.
    ///
    /// # Errors
    /// [`WeightsError::NoFiles`] for an empty list, [`WeightsError::Set`] for a file that is in it
    /// twice or tensors that are in two files, and what is wrong with a file.
    pub fn open_files<P: AsRef<Path>>(
        files: &[P],
        limits: &HeaderLimits,
    ) -> Result<Self, WeightsError> {
        let Some(first) = files.first().map(AsRef::as_ref) else {
            return Err(WeightsError::NoFiles);
        };
        let wrong = |fault| WeightsError::set(first, fault);
        let mut checkpoint = Self::empty(first);
        for file in files {
            checkpoint.add(file.as_ref(), limits)?;
        }
        checkpoint.refuse_a_file_twice().map_err(wrong)?;
        checkpoint.sort_names();
        checkpoint.refuse_duplicates().map_err(wrong)?;
        Ok(checkpoint)
    }

    /// Is every file in the list only once, by whatever name?
    fn refuse_a_file_twice(&self) -> Result<(), SetFault> {
        let mut seen = BTreeMap::new();
        for file in &self.files {
            if let Some(first) = seen.insert(file.identity.key(&file.path), &file.path) {
                return Err(SetFault::FileTwice {
                    first: first.clone(),
                    second: file.path.clone(),
                });
            }
        }
        Ok(())
    }

    fn empty(path: &Path) -> Self {
        Self {
            path: path.into(),
            files: Vec::new(),
            by_name: Vec::new(),
            metadata: BTreeMap::new(),
        }
    }

    /// A checkpoint of headers that came without their files.
    #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    pub(in crate::weights) fn of_headers(
        path: &Path,
        headers: Vec<(PathBuf, Header)>,
        limits: &HeaderLimits,
    ) -> Result<Self, WeightsError> {
        let mut checkpoint = Self::empty(path);
        for (file, header) in headers {
            let identity = Identity::elsewhere(header.file_bytes());
            checkpoint.add_header(file, identity, header, limits)?;
        }
        checkpoint.sort_names();
        let wrong = |fault| WeightsError::set(path, fault);
        checkpoint.refuse_duplicates().map_err(wrong)?;
        Ok(checkpoint)
    }

    /// Reads the header of one more file.
    fn add(&mut self, path: &Path, limits: &HeaderLimits) -> Result<(), WeightsError> {
        let source = Source::open(path)?;
        let header = source.header(limits)?;
        self.add_header(path.into(), source.identity(), header, limits)
    }

    fn add_header(
        &mut self,
        path: PathBuf,
        identity: Identity,
        header: Header,
        limits: &HeaderLimits,
    ) -> Result<(), WeightsError> {
        let end = self.entries().len() + header.tensors().len();
        // Together, too: each of a thousand files may be just below the limit.
        if u32::try_from(end).is_err() || end > limits.max_tensors {
            let max_tensors = limits.max_tensors;
            let fault = SetFault::TooManyTensors { max_tensors };
            return Err(WeightsError::set(&self.path, fault));
        }
        for (key, value) in header.metadata() {
            self.metadata
                .entry(key.clone())
                .or_insert_with(|| value.clone());
        }
        self.files.push(CheckpointFile {
            path,
            identity,
            header,
            end,
        });
        Ok(())
    }

    /// In place: of two equal names the one in the earlier file comes first.
    fn sort_names(&mut self) {
        let entries = self.entries();
        let name = |at: u32| entries.get(at as usize).map(WeightEntry::name);
        let mut by_name: Vec<u32> = (0..).take(entries.len()).collect();
        by_name.sort_unstable_by(|&a, &b| (name(a), a).cmp(&(name(b), b)));
        self.by_name = by_name;
    }
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
