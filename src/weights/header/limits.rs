/// What a header may ask for.
///
/// Each limit is compared before anything of that size is allocated: the length field
/// before the text is read, the number of tensors while they are counted.
///
/// An open header costs its own text, which is kept, and 40 bytes a tensor beside the text: a
/// record of 32 bytes, and 8 for each dimension of its shape. Names stay where they stand in
/// the text; only those that are spelled with escapes are copied. A
/// [`Checkpoint`](crate::weights::Checkpoint) adds 4 bytes a tensor for the order by name, and
/// metadata is kept as strings. Checking takes no more: the records are sorted in place.
/// `tests/weights_large_header.rs` measures it: 98.6 MB of header with 1.7 million tensors of
/// one dimension are refused by the defaults with 68 KiB, and open in 166 MiB with
/// [`of_format`](Self::of_format).
///
/// ```
/// use tenslab::weights::HeaderLimits;
///
/// let trusted = HeaderLimits { allow_trailing: true, ..HeaderLimits::of_format() };
/// assert!(trusted.max_tensors > HeaderLimits::default().max_tensors);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderLimits {
    /// The most bytes of header, and of an index. Above 2,147,483,647 counts as that.
    pub max_header_bytes: u64,
    /// The most tensors in one file, in an index, and in all files of a checkpoint together.
    pub max_tensors: usize,
    /// The most keys in the `__metadata__` of one file.
    pub max_metadata: usize,
    /// Accept bytes behind the last tensor, as some other readers do.
    pub allow_trailing: bool,
}

impl HeaderLimits {
    /// What the format allows: 100,000,000 bytes, and more tensors and metadata than fit
    /// those in practice (2,000,000 and 1,000,000). No trailing bytes.
    ///
    /// For files that are trusted. [`Default`] has room for any model that is known.
    #[must_use]
    pub fn of_format() -> Self {
        Self {
            max_header_bytes: 100_000_000,
            max_tensors: 2_000_000,
            max_metadata: 1_000_000,
            allow_trailing: false,
        }
    }

    /// The most bytes of header: positions in one are 32 bits wide, twice its length included.
    pub(in crate::weights) fn header_bytes(&self) -> u64 {
        self.max_header_bytes.min(i32::MAX as u64)
    }
}

impl Default for HeaderLimits {
    /// 32 MiB, 500,000 tensors, 100,000 keys of metadata, no trailing bytes.
    fn default() -> Self {
        Self {
            max_header_bytes: 32 << 20,
            max_tensors: 500_000,
            max_metadata: 100_000,
            allow_trailing: false,
        }
    }
}
