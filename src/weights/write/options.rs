use std::collections::BTreeMap;

use crate::tensor::Tensor;
use crate::weights::HeaderLimits;

/// One tensor of a file to be written: elements of this crate's, or bytes with a tag.
#[derive(Debug, Clone, Copy)]
pub struct SaveEntry<'a> {
    pub(super) name: &'a str,
    pub(super) content: Content<'a>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Content<'a> {
    Tensor(&'a Tensor),
    Raw {
        tag: &'a str,
        shape: &'a [usize],
        bytes: RawBytes<'a>,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum RawBytes<'a> {
    Slice(&'a [u8]),
    Tensor(&'a Tensor),
}

impl<'a> SaveEntry<'a> {
    /// A tensor under its own dtype and shape. Its strides may be any: a contiguous one is
    /// written from where it lies, another one is gathered through scratch.
    ///
    /// The name is any text but `__metadata__`, the empty one and control characters included.
    #[must_use]
    pub fn tensor(name: &'a str, tensor: &'a Tensor) -> Self {
        let content = Content::Tensor(tensor);
        Self { name, content }
    }

    /// Bytes of a dtype that this crate may have no tensors of, as the format lays them out.
    ///
    /// `tag` is the format's word: `F8_E4M3`, say. `bytes` have to be as many as dtype and shape
    /// need, which is checked as far as the width is known. A tag that the format does not
    /// define is written as it is; this crate reads such a file, the reference reader does not.
    #[must_use]
    pub fn raw(name: &'a str, tag: &'a str, shape: &'a [usize], bytes: &'a [u8]) -> Self {
        let bytes = RawBytes::Slice(bytes);
        let content = Content::Raw { tag, shape, bytes };
        Self { name, content }
    }

    /// As [`raw`](Self::raw), with the bytes of a tensor, whatever its own dtype and
    /// shape: what [`Weights::raw`](crate::weights::Weights::raw) gives, say.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use tenslab::weights::{SaveEntry, SaveOptions, Weights, save_with};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let (path, copy) = (directory.path().join("a"), directory.path().join("b"));
    /// # let made = [SaveEntry::raw("q", "F4", &[4], &[1, 2])];
    /// # save_with(&path, &made, &SaveOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    /// // All of a checkpoint, also what this crate has no tensors of.
    /// let weights = Weights::load(&path, &Default::default())?;
    /// let bytes = weights.names().map(|name| weights.raw(name)).collect::<Result<Vec<_>, _>>()?;
    /// let shapes: Vec<_> = weights.entries().map(|at| at.shape()).collect();
    /// let entries: Vec<_> = weights
    ///     .entries()
    ///     .zip(shapes.iter().zip(&bytes))
    ///     .map(|(at, (shape, bytes))| {
    ///         SaveEntry::raw_tensor(at.name(), at.dtype().tag(), shape.dims(), bytes)
    ///     })
    ///     .collect();
    /// let options = SaveOptions { metadata: weights.metadata().clone(), ..Default::default() };
    /// save_with(&copy, &entries, &options, &mut |_| ControlFlow::Continue(()))?;
    /// # assert_eq!(std::fs::read(path)?, std::fs::read(copy)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn raw_tensor(name: &'a str, tag: &'a str, shape: &'a [usize], bytes: &'a Tensor) -> Self {
        let bytes = RawBytes::Tensor(bytes);
        let content = Content::Raw { tag, shape, bytes };
        Self { name, content }
    }
}

/// How a file is written.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// The file's `__metadata__`; none is written where it is empty.
    pub metadata: BTreeMap<String, String>,
    /// Wait until the file is on the disk before it gets its name, and until the name is.
    /// Without, a loss of power may leave a file of the right length and wrong bytes, and
    /// what a disk says only when it is asked to sync is not heard.
    pub sync: bool,
    /// What the header may be, so that readers with these limits take it.
    pub limits: HeaderLimits,
}

impl Default for SaveOptions {
    /// No metadata, synced, the limits of this crate's reader, which are narrower than the
    /// format's: [`HeaderLimits::of_format`].
    fn default() -> Self {
        Self {
            metadata: BTreeMap::new(),
            sync: true,
            limits: HeaderLimits::default(),
        }
    }
}

/// How far writing has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveProgress {
    /// Bytes of tensors given to the system so far.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SaveReport {
    /// Tensors in the file, raw ones included.
    pub tensors: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Where the data begins: bytes of length field, header and padding. A multiple of 64.
    pub data_start: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Those of them that went through scratch, because they were not contiguous.
    pub gathered_bytes: u64,
    /// Was there a file in its place?
    pub replaced: bool,
    /// Had the file no name until it was complete? If not, a kill would have left a part of it.
    pub unnamed: bool,
    /// Wall-clock seconds.
    pub seconds: f64,
}
