//! [`TensorInfo`] and [`TensorInfos`]: views of what a header lists.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

use super::catalog::{Catalog, Record};
use crate::types::Shape;
use crate::weights::WeightDType;

/// One tensor as a header lists it. Its numbers have been checked.
///
/// Two references into the [`Header`](super::Header), which holds all there is.
#[derive(Clone, Copy)]
pub struct TensorInfo<'a> {
    catalog: &'a Catalog,
    record: &'a Record,
}

impl<'a> TensorInfo<'a> {
    /// Its name: any text, the empty one and control characters included.
    #[inline]
    #[must_use]
    pub fn name(self) -> &'a str {
        self.catalog.name(self.record)
    }

    /// What its elements are.
    #[inline]
    #[must_use]
    pub fn dtype(self) -> &'a WeightDType {
        self.catalog.dtype(self.record)
    }

    /// Its shape; `[]` is a scalar, and any size may be 0.
    #[must_use]
    pub fn shape(self) -> Shape {
        self.catalog.shape(self.record)
    }

    /// Its first byte, counted from the start of the file's data.
    #[inline]
    #[must_use]
    pub fn begin(self) -> u64 {
        self.record.begin
    }

    /// One past its last byte, counted from the start of the file's data.
    #[inline]
    #[must_use]
    pub fn end(self) -> u64 {
        self.record.end
    }

    /// Its length in the file, in bytes.
    #[inline]
    #[must_use]
    pub fn nbytes(self) -> u64 {
        self.record.end - self.record.begin
    }
}

impl PartialEq for TensorInfo<'_> {
    /// The same name, dtype, shape and range, in whatever header.
    fn eq(&self, other: &Self) -> bool {
        (self.begin(), self.end()) == (other.begin(), other.end())
            && (self.name(), self.dtype()) == (other.name(), other.dtype())
            && self.shape() == other.shape()
    }
}

impl Eq for TensorInfo<'_> {}

impl fmt::Debug for TensorInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorInfo")
            .field("name", &self.name())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("begin", &self.begin())
            .field("end", &self.end())
            .finish()
    }
}

/// The tensors of a header, ordered by where they lie: by offset and, of empty ones that
/// share it, by name.
///
/// An iterator over what is left of them, which also knows each by its position.
#[derive(Clone)]
pub struct TensorInfos<'a> {
    catalog: &'a Catalog,
    range: Range<usize>,
}

impl<'a> TensorInfos<'a> {
    pub(super) fn new(catalog: &'a Catalog) -> Self {
        Self {
            catalog,
            range: 0..catalog.records().len(),
        }
    }

    /// The tensor at this position, 0 being the one that comes next.
    #[inline]
    #[must_use]
    pub fn get(&self, position: usize) -> Option<TensorInfo<'a>> {
        let record = self.catalog.records()[self.range.clone()].get(position)?;
        Some(self.info(record))
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    fn info(&self, record: &'a Record) -> TensorInfo<'a> {
        TensorInfo {
            catalog: self.catalog,
            record,
        }
    }
}

impl<'a> Iterator for TensorInfos<'a> {
    type Item = TensorInfo<'a>;

    #[inline]
    fn next(&mut self) -> Option<TensorInfo<'a>> {
        let at = self.range.next()?;
        Some(self.info(&self.catalog.records()[at]))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }

    fn nth(&mut self, n: usize) -> Option<TensorInfo<'a>> {
        let at = self.range.nth(n)?;
        Some(self.info(&self.catalog.records()[at]))
    }
}

impl DoubleEndedIterator for TensorInfos<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let at = self.range.next_back()?;
        Some(self.info(&self.catalog.records()[at]))
    }
}

impl ExactSizeIterator for TensorInfos<'_> {}

impl FusedIterator for TensorInfos<'_> {}

impl fmt::Debug for TensorInfos<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}
