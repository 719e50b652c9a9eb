use std::collections::BTreeMap;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::types::Shape;
use crate::weights::source::Identity;
use crate::weights::{Header, TensorInfo, WeightDType};

/// One tensor of a checkpoint, as its file lists it: a view of the header there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightEntry<'a> {
    info: TensorInfo<'a>,
    file: usize,
    data_start: u64,
}

impl<'a> WeightEntry<'a> {
    /// Its name.
    #[inline]
    #[must_use]
    pub fn name(self) -> &'a str {
        self.info.name()
    }

    /// What its elements are in the file.
    #[inline]
    #[must_use]
    pub fn dtype(self) -> &'a WeightDType {
        self.info.dtype()
    }

    /// Its shape.
    #[must_use]
    pub fn shape(self) -> Shape {
        self.info.shape()
    }

    /// Its length in the file, in bytes.
    #[inline]
    #[must_use]
    pub fn nbytes(self) -> u64 {
        self.info.nbytes()
    }

    /// Which of [`Checkpoint::files`](super::Checkpoint::files) holds it.
    #[inline]
    #[must_use]
    pub fn file(self) -> usize {
        self.file
    }

    /// Where its first byte is, counted from the start of its file.
    #[inline]
    #[must_use]
    pub fn offset(self) -> u64 {
        // The header was checked: the sum is at most the file's length.
        self.data_start + self.info.begin()
    }

    /// What the header says about it, offsets counted from the start of the data.
    #[inline]
    #[must_use]
    pub fn info(self) -> TensorInfo<'a> {
        self.info
    }
}

/// Tensors of a checkpoint, ordered by file and by offset in it.
///
/// An iterator over what is left of them, which also knows each by its position. A step costs
/// a binary search among the files.
#[derive(Clone)]
pub struct WeightEntries<'a> {
    files: &'a [CheckpointFile],
    range: Range<usize>,
}

impl<'a> WeightEntries<'a> {
    /// Those of `files`, which are all files of the checkpoint, whose numbers are in `range`.
    pub(super) fn new(files: &'a [CheckpointFile], range: Range<usize>) -> Self {
        Self { files, range }
    }

    /// The tensor at this position, 0 being the one that comes next.
    #[inline]
    #[must_use]
    pub fn get(&self, position: usize) -> Option<WeightEntry<'a>> {
        let number = self.range.start.checked_add(position)?;
        let known = number < self.range.end;
        known.then(|| self.number(number)).flatten()
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The tensor of this number among all of the checkpoint.
    fn number(&self, number: usize) -> Option<WeightEntry<'a>> {
        let file = self.files.partition_point(|file| file.end <= number);
        let holder = self.files.get(file)?;
        let tensors = holder.header.tensors();
        // Counted from the end of the file: no tensor is in front of the first one's.
        let info = tensors.get((number + tensors.len()).checked_sub(holder.end)?)?;
        Some(WeightEntry {
            info,
            file,
            data_start: holder.header.data_start(),
        })
    }
}

impl<'a> Iterator for WeightEntries<'a> {
    type Item = WeightEntry<'a>;

    fn next(&mut self) -> Option<WeightEntry<'a>> {
        let number = self.range.next()?;
        self.number(number)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }

    fn nth(&mut self, n: usize) -> Option<WeightEntry<'a>> {
        let number = self.range.nth(n)?;
        self.number(number)
    }
}

impl DoubleEndedIterator for WeightEntries<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let number = self.range.next_back()?;
        self.number(number)
    }
}

impl ExactSizeIterator for WeightEntries<'_> {}

impl FusedIterator for WeightEntries<'_> {}

impl fmt::Debug for WeightEntries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// One file of a checkpoint.
#[derive(Debug, Clone)]
pub struct CheckpointFile {
    pub(super) path: PathBuf,
    pub(in crate::weights) identity: Identity,
    pub(super) header: Header,
    /// One past the number of its last tensor among all of the checkpoint.
    pub(super) end: usize,
}

impl CheckpointFile {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says about itself.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its length in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.header.file_bytes()
    }

    /// Where its data begins, in bytes.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.header.data_start()
    }

    /// Its own `__metadata__`.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        self.header.metadata()
    }
}
