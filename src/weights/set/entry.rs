use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::types::Shape;
use crate::weights::source::Identity;
use crate::weights::{TensorInfo, WeightDType};

/// One tensor of a checkpoint, as its file lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightEntry {
    pub(super) info: TensorInfo,
    pub(super) file: usize,
    pub(super) offset: u64,
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

    /// Which of [`Checkpoint::files`](super::Checkpoint::files) holds it.
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
    pub(super) path: PathBuf,
    pub(in crate::weights) identity: Identity,
    pub(super) file_bytes: u64,
    pub(super) data_start: u64,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) entries: Range<usize>,
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

    /// Its tensors: a range of [`Checkpoint::entries`](super::Checkpoint::entries).
    #[must_use]
    pub fn entries(&self) -> Range<usize> {
        self.entries.clone()
    }
}
