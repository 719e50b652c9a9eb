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
//! Memory is bounded by the file: the text itself, and one [`TensorInfo`] for
//! each listed tensor, up to [`HeaderLimits`].
//!
//! `tests/weights_bad_input.rs` has a case for every rule, and compares us with
//! the `safetensors` crate on mutated headers: what we accept it accepts too,
//! with equal contents.

use std::collections::BTreeMap;

use super::parse::{RawHeader, RawTensor, parse};
use super::{ForeignFormat, FormatFault, WeightDType};
use crate::types::Shape;

/// Width of the length field in front of a header.
pub(super) const LENGTH_BYTES: u64 = size_of::<u64>() as u64;

/// What a header may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderLimits {
    /// The most bytes of header, and of an index. The format's own limit is 100,000,000.
    pub max_header_bytes: u64,
    /// The most tensors in one file, and in an index. Each costs about 150 bytes while the file is open.
    pub max_tensors: usize,
    /// Accept bytes behind the last tensor, as some other readers do.
    pub allow_trailing: bool,
}

impl Default for HeaderLimits {
    /// 100,000,000 bytes, 2,000,000 tensors, no trailing bytes.
    fn default() -> Self {
        Self {
            max_header_bytes: 100_000_000,
            max_tensors: 2_000_000,
            allow_trailing: false,
        }
    }
}

/// One tensor as a header lists it. Its numbers have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    raw: RawTensor,
}

impl TensorInfo {
    /// Its name: any text, the empty one and control characters included.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.raw.name
    }

    /// What its elements are.
    #[must_use]
    pub fn dtype(&self) -> &WeightDType {
        &self.raw.dtype
    }

    /// Its shape; `[]` is a scalar, and any size may be 0.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.raw.shape
    }

    /// Its first byte, counted from the start of the file's data.
    #[must_use]
    pub fn begin(&self) -> u64 {
        self.raw.begin
    }

    /// One past its last byte, counted from the start of the file's data.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.raw.end
    }

    /// Its length in the file.
    #[must_use]
    pub fn nbytes(&self) -> u64 {
        self.raw.end - self.raw.begin
    }
}

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
/// assert_eq!(header.tensors()[0].name(), "x");
/// assert_eq!(header.data_start(), 8 + json.len() as u64);
///
/// file.pop();                                          // one byte short
/// let fault = Header::from_bytes(&file, &HeaderLimits::default()).unwrap_err();
/// assert!(matches!(fault, FormatFault::Truncated { .. }));
/// # Ok::<(), FormatFault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    tensors: Vec<TensorInfo>,
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
        Self::from_text(text, file_bytes, limits)
    }

    /// Checks the text of a header against the length of its file.
    ///
    /// `text` is what follows the length field, `file_bytes` the length of the
    /// whole file.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes), the length field aside.
    pub fn from_text(
        text: &[u8],
        file_bytes: u64,
        limits: &HeaderLimits,
    ) -> Result<Self, FormatFault> {
        let data_start = LENGTH_BYTES + text.len() as u64;
        let text = std::str::from_utf8(text).map_err(|error| FormatFault::NotUtf8 {
            at: error.valid_up_to(),
        })?;
        let RawHeader {
            mut tensors,
            metadata,
        } = parse(text, limits)?;

        refuse_duplicates(&mut tensors)?;
        // By offset, so that everything downstream has one order whatever the
        // order of the keys. Empty tensors share offsets; names settle those.
        tensors.sort_unstable_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
        for tensor in &tensors {
            check_length_of(tensor)?;
        }
        check_cover(&tensors)?;
        check_end(&tensors, data_start, file_bytes, limits)?;
        Ok(Self {
            tensors: tensors.into_iter().map(|raw| TensorInfo { raw }).collect(),
            metadata,
            data_start,
            file_bytes,
        })
    }

    /// All tensors, ordered by where they lie.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
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

    /// The length of the file that this header was checked against.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The tensors alone.
    pub(super) fn into_parts(self) -> (Vec<TensorInfo>, BTreeMap<String, String>) {
        (self.tensors, self.metadata)
    }
}

/// The length of the header, from the first bytes of a file, or what the file
/// is instead. `first` is the whole file or at least its first 64 bytes.
pub(super) fn check_length(
    first: &[u8],
    file_bytes: u64,
    limits: &HeaderLimits,
) -> Result<usize, FormatFault> {
    if file_bytes == 0 {
        return Err(FormatFault::Empty);
    }
    let foreign = || {
        let first = &first[..first.len().min(64)];
        ForeignFormat::detect(first).map(|format| FormatFault::Foreign { format })
    };
    let Some(length) = first.first_chunk() else {
        return Err(foreign().unwrap_or(FormatFault::TooSmall { file_bytes }));
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes == 0 {
        return Err(FormatFault::EmptyHeader);
    }
    // A foreign file can hold a small number here by chance, but never in front of `{`.
    let text = first[length.len()..].trim_ascii_start();
    let max_bytes = limits.max_header_bytes;
    if header_bytes > max_bytes {
        return Err(foreign().unwrap_or(FormatFault::HeaderTooLarge {
            header_bytes,
            max_bytes,
        }));
    }
    if text.first().is_some_and(|&byte| byte != b'{')
        && let Some(fault) = foreign()
    {
        return Err(fault);
    }
    let needed_bytes = LENGTH_BYTES.saturating_add(header_bytes);
    usize::try_from(header_bytes)
        .ok()
        .filter(|_| needed_bytes <= file_bytes)
        .ok_or(FormatFault::HeaderTruncated {
            needed_bytes,
            file_bytes,
        })
}

/// Sorts by name to find a name that comes twice; needs no memory of its own.
fn refuse_duplicates(tensors: &mut [RawTensor]) -> Result<(), FormatFault> {
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    for pair in tensors.windows(2) {
        if pair[0].name == pair[1].name {
            return Err(FormatFault::DuplicateTensor {
                name: pair[0].name.clone(),
            });
        }
    }
    Ok(())
}

/// Does the range have the bytes that shape and dtype need?
///
/// The width of an unknown dtype is unknown, so its range is taken as it is.
fn check_length_of(tensor: &RawTensor) -> Result<(), FormatFault> {
    let range_bytes =
        tensor
            .end
            .checked_sub(tensor.begin)
            .ok_or_else(|| FormatFault::BackwardRange {
                name: tensor.name.clone(),
                begin: tensor.begin,
                end: tensor.end,
            })?;
    let Some(bits) = tensor.dtype.bits() else {
        return Ok(());
    };
    // numel <= i64::MAX and bits <= 64: 128 bits hold the product.
    let total_bits = tensor.shape.numel() as u128 * u128::from(bits);
    if !total_bits.is_multiple_of(8) {
        return Err(FormatFault::PartialByte {
            name: tensor.name.clone(),
            dtype: tensor.dtype.clone(),
            shape: Box::new(tensor.shape),
            total_bits: saturate(total_bits),
        });
    }
    if total_bits / 8 != u128::from(range_bytes) {
        return Err(FormatFault::WrongLength {
            name: tensor.name.clone(),
            dtype: tensor.dtype.clone(),
            shape: Box::new(tensor.shape),
            expected_bytes: saturate(total_bits / 8),
            range_bytes,
        });
    }
    Ok(())
}

fn saturate(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Do the ranges, ordered by offset, follow each other without hole or overlap?
fn check_cover(tensors: &[RawTensor]) -> Result<(), FormatFault> {
    let mut covered = 0;
    let mut previous: Option<&RawTensor> = None;
    for tensor in tensors {
        if tensor.begin > covered {
            return Err(FormatFault::Hole {
                previous: previous.map(|tensor| tensor.name.clone()),
                next: tensor.name.clone(),
                begin: covered,
                end: tensor.begin,
            });
        }
        if let Some(previous) = previous.filter(|_| tensor.begin < covered) {
            return Err(FormatFault::Overlap {
                first: previous.name.clone(),
                second: tensor.name.clone(),
                first_end: covered,
                second_begin: tensor.begin,
            });
        }
        covered = tensor.end;
        previous = Some(tensor);
    }
    Ok(())
}

/// Does the data end where the file ends?
fn check_end(
    tensors: &[RawTensor],
    data_start: u64,
    file_bytes: u64,
    limits: &HeaderLimits,
) -> Result<(), FormatFault> {
    let data_bytes = tensors.last().map_or(0, |tensor| tensor.end);
    let needed_bytes = data_start.saturating_add(data_bytes);
    if needed_bytes > file_bytes {
        return Err(FormatFault::Truncated {
            name: tensors.last().map_or_else(String::new, |t| t.name.clone()),
            needed_bytes,
            file_bytes,
        });
    }
    let trailing_bytes = file_bytes - needed_bytes;
    if trailing_bytes > 0 && !limits.allow_trailing {
        return Err(FormatFault::TrailingBytes {
            trailing_bytes,
            expected_bytes: needed_bytes,
        });
    }
    Ok(())
}
