//! [`Header`]: what a safetensors file says about itself, checked in full.
//!
//! ```text
//!  byte 0      8                    8 + n                          end of file
//!  | n: u64 LE | JSON, n bytes        | data                                  |
//!              {"a":{"dtype":"F32",   | a: begin..end | b: … |            |
//!               "shape":[2,3],          ^ data_offsets count from here
//!               "data_offsets":[0,24]},…}
//! ```
//!
//! A header comes from a stranger. So nothing in it is believed before it has
//! been compared with what is known: `n` with the length of the file before a
//! byte is allocated for it, the ranges with each other (no hole, no overlap),
//! with shape and dtype, and with the length of the file. What passes is true of
//! the file: a loader needs no further checks, only reads that may come up short.
//!
//! Names listed twice are refused. The reference reader keeps the last one; a
//! file that two readers understand differently is an attack or a bug.
//!
//! Memory is bounded by the file and by [`HeaderLimits`], which say what it is: the text
//! itself, kept once, and a record of 32 bytes for each tensor in a [`catalog`]. A
//! [`TensorInfo`] is a view of that.
//!
//! `tests/weights_bad_input` has a case for every rule, `tests/weights_large_header.rs`
//! measures the memory, and `tests/weights_mutations` says what must be answered to each way
//! of breaking a header. `tests/weights_differential.rs` and `fuzz/fuzz_targets/header.rs`
//! compare us with the `safetensors` crate: what we accept it accepts too, with equal
//! contents.

mod catalog;
mod check;
mod info;
mod limits;
mod parse;
mod visit;

use std::collections::BTreeMap;
use std::fmt;

use self::catalog::Catalog;
use self::check::check;
use self::parse::{Parsed, parse};
use super::FormatFault;

pub(super) use self::check::check_length;
pub use self::info::{TensorInfo, TensorInfos};
pub use self::limits::HeaderLimits;
pub(super) use self::visit::Skip;

/// Width of the length field in front of a header.
pub(super) const LENGTH_BYTES: u64 = size_of::<u64>() as u64;

/// The header of one safetensors file.
///
/// ```
/// use tenslab::weights::{FormatFault, Header, HeaderLimits};
///
/// let json = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let mut file = Vec::from((json.len() as u64).to_le_bytes());
/// file.extend(json);
/// file.extend([0; 8]);
///
/// let header = Header::from_bytes(&file, &HeaderLimits::default())?;
/// assert_eq!(header.tensors().get(0).unwrap().name(), "x");
/// assert_eq!(header.data_start(), 8 + json.len() as u64);
///
/// file.pop();                                          // one byte short
/// let fault = Header::from_bytes(&file, &HeaderLimits::default()).unwrap_err();
/// assert!(matches!(fault, FormatFault::Truncated { .. }));
/// # Ok::<(), FormatFault>(())
/// ```
#[derive(Clone)]
pub struct Header {
    catalog: Catalog,
    metadata: BTreeMap<String, String>,
    data_start: u64,
    file_bytes: u64,
}

impl Header {
    /// Reads the header of a file that lies in memory.
    ///
    /// # Errors
    /// Whatever is wrong with it: the first [`FormatFault`] in the order length
    /// field, text, names, ranges, end of the file.
    pub fn from_bytes(file: &[u8], limits: &HeaderLimits) -> Result<Self, FormatFault> {
        let file_bytes = file.len() as u64;
        let header_bytes = check_length(file, file_bytes, limits)?;
        let text = &file[size_of::<u64>()..][..header_bytes];
        Self::from_text(text.into(), file_bytes, limits)
    }

    /// Checks the text of a header against the length of its file.
    ///
    /// `text` is what follows the length field, and is kept; `file_bytes` is the length
    /// of the whole file.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes), the length field aside.
    pub fn from_text(
        text: Vec<u8>,
        file_bytes: u64,
        limits: &HeaderLimits,
    ) -> Result<Self, FormatFault> {
        let (header_bytes, max_bytes) = (text.len() as u64, limits.header_bytes());
        if header_bytes > max_bytes {
            return Err(FormatFault::HeaderTooLarge {
                header_bytes,
                max_bytes,
            });
        }
        let text = String::from_utf8(text).map_err(|error| FormatFault::NotUtf8 {
            at: error.utf8_error().valid_up_to(),
        })?;
        let Parsed {
            mut lists,
            metadata,
        } = parse(&text, limits)?;
        lists.shrink();
        let mut catalog = Catalog { text, lists };
        let data_start = LENGTH_BYTES + header_bytes;
        check(&mut catalog, data_start, file_bytes, limits)?;
        Ok(Self {
            catalog,
            metadata,
            data_start,
            file_bytes,
        })
    }

    /// All tensors, ordered by where they lie.
    #[must_use]
    pub fn tensors(&self) -> TensorInfos<'_> {
        TensorInfos::new(&self.catalog)
    }

    /// The `__metadata__` of the file; empty if there is none.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Where the data begins: what `begin` and `end` count from.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Its text, as it stands in the file behind the length field.
    #[cfg(all(target_os = "linux", not(tenslab_portable)))]
    pub(super) fn text(&self) -> &str {
        &self.catalog.text
    }

    /// The length of the file that this header was checked against.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

impl PartialEq for Header {
    /// The same tensors and metadata at the same places, however the text spells them.
    fn eq(&self, other: &Self) -> bool {
        (self.data_start, self.file_bytes) == (other.data_start, other.file_bytes)
            && self.metadata == other.metadata
            && self.tensors().eq(other.tensors())
    }
}

impl Eq for Header {}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("tensors", &self.tensors())
            .field("metadata", &self.metadata)
            .field("data_start", &self.data_start)
            .field("file_bytes", &self.file_bytes)
            .finish()
    }
}
