//! The bytes of sealed weights: an index, and the tensors.
//!
//! ```text
//!   head     | magic | version | bytes of all | bytes of head and index |      8 bytes each
//!   index    | path | files | (path | file's bytes | text of its header) … | a record a tensor … |
//!   data     | a    | b    | c | …      from the next multiple of 64 on, each at a multiple of 64
//!
//!   record   | 0 |                                                  left out
//!            | 1, or 2 + dtype | offset | bytes | 0, or 1 + rank | sizes |     1: raw bytes only
//! ```
//!
//! It is no safetensors file, for those have no room between tensors. But the headers are those
//! of the files, to the letter, so the same reader checks them, and a reader in another process
//! knows all that the loader knew: names, metadata, what was left out and what was cast.
//!
//! Reading trusts nothing but that the bytes do not change. Every number is compared with what is
//! known before it is used, and nothing is allocated that is larger than the bytes it was read
//! from, the records of the headers aside, which [`HeaderLimits`] bounds. Tensors that share bytes
//! are no fault: nobody writes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::SealedFault;
use crate::types::{DType, Shape};
use crate::weights::load::TENSOR_ALIGN;
use crate::weights::loaded::Held;
use crate::weights::{Backing, Checkpoint, Header, HeaderLimits, WeightEntry, WeightsError};

const MAGIC: [u8; 8] = *b"TENSLABW";
const VERSION: u64 = 1;
/// Bytes of a number.
const WORD: usize = size_of::<u64>();
const HEAD: usize = 4 * WORD;

/// The longest path that a system call takes.
const MAX_PATH_BYTES: u64 = 4096;

/// What a record says instead of a dtype.
const LEFT_OUT: u64 = 0;
const RAW: u64 = 1;
/// What it adds to a dtype's code.
const DTYPE: u64 = 2;

/// Head and index of an image with as many bytes of data; where the data begins is its
/// length rounded up to a multiple of [`TENSOR_ALIGN`]. `None` where the whole is more than
/// this machine can address.
pub(super) fn index(
    checkpoint: &Checkpoint,
    held: &[Option<Held>],
    data_bytes: usize,
) -> Option<Vec<u8>> {
    let mut index = Vec::from(MAGIC);
    let word = |index: &mut Vec<u8>, number: u64| index.extend(number.to_le_bytes());
    let text = |index: &mut Vec<u8>, bytes: &[u8]| {
        index.extend((bytes.len() as u64).to_le_bytes());
        index.extend(bytes);
    };
    word(&mut index, VERSION);
    // The lengths, which are known at the end.
    index.resize(HEAD, 0);
    text(&mut index, checkpoint.path().as_os_str().as_bytes());
    word(&mut index, checkpoint.files().len() as u64);
    for file in checkpoint.files() {
        text(&mut index, file.path().as_os_str().as_bytes());
        word(&mut index, file.file_bytes());
        text(&mut index, file.header().text().as_bytes());
    }
    for held in held {
        let Some(held) = held else {
            word(&mut index, LEFT_OUT);
            continue;
        };
        let kind = held
            .dtype
            .map_or(RAW, |dtype| u64::from(dtype.code()) + DTYPE);
        word(&mut index, kind);
        word(&mut index, held.offset as u64);
        word(&mut index, held.nbytes as u64);
        match &held.part {
            None => word(&mut index, 0),
            Some(shape) => {
                word(&mut index, shape.rank() as u64 + 1);
                for &size in shape.dims() {
                    word(&mut index, size as u64);
                }
            }
        }
    }
    let bytes = data_start(index.len())?.checked_add(data_bytes)?;
    index[2 * WORD..3 * WORD].copy_from_slice(&(bytes as u64).to_le_bytes());
    let length = index.len() as u64;
    index[3 * WORD..HEAD].copy_from_slice(&length.to_le_bytes());
    Some(index)
}

/// Where the data begins behind an index that ends there.
pub(super) fn data_start(index_bytes: usize) -> Option<usize> {
    index_bytes.checked_next_multiple_of(TENSOR_ALIGN)
}

/// What an image holds. Offsets are counted from its first byte.
pub(super) fn read(
    image: &[u8],
    limits: &HeaderLimits,
) -> Result<(Checkpoint, Vec<Option<Held>>), WeightsError> {
    let index_bytes = head(image)?;
    let mut index = Index {
        bytes: &image[..index_bytes],
        at: HEAD,
    };
    let checkpoint = index.checkpoint(limits)?;
    // The index ends inside the image, so its data begins there or just behind it.
    let start = data_start(index_bytes).unwrap_or(usize::MAX);
    let data_bytes = image.len().checked_sub(start);
    let data_bytes = data_bytes.ok_or(index.fault("there is no place for data behind it"))?;
    let held = checkpoint
        .entries()
        .map(|entry| index.held(entry, start, data_bytes))
        .collect::<Result<_, _>>()?;
    if index.at != index.bytes.len() {
        return Err(index.fault("it goes on behind its last record").into());
    }
    Ok((checkpoint, held))
}

/// Checks the head. Returns the bytes of head and index.
fn head(image: &[u8]) -> Result<usize, SealedFault> {
    let bytes = image.len() as u64;
    let not_weights = SealedFault::NotWeights { bytes };
    let Some((head, _)) = image.split_first_chunk::<HEAD>() else {
        return Err(not_weights);
    };
    if !head.starts_with(&MAGIC) {
        return Err(not_weights);
    }
    let mut index = Index {
        bytes: head,
        at: WORD,
    };
    let (found, said) = (index.word()?, index.word()?);
    if found != VERSION {
        let known = VERSION;
        return Err(SealedFault::Version { found, known });
    }
    if said != bytes {
        return Err(SealedFault::Length { said, bytes });
    }
    let at = index.fault("it is longer than the memory, or shorter than its head");
    usize::try_from(index.word()?)
        .ok()
        .filter(|length| (HEAD..=image.len()).contains(length))
        .ok_or(at)
}

/// The index, and how far it has been read.
struct Index<'a> {
    /// Up to its end, the head included.
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Index<'a> {
    /// Something is wrong with what comes next.
    fn fault(&self, what: &'static str) -> SealedFault {
        let at = self.at as u64;
        SealedFault::Index { at, what }
    }

    fn take(&mut self, bytes: u64, most: u64) -> Result<&'a [u8], SealedFault> {
        if bytes > most {
            return Err(self.fault("a text is longer than the limits allow"));
        }
        let end = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.at.checked_add(bytes));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.fault("it is cut off"))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn word(&mut self) -> Result<u64, SealedFault> {
        let bytes = self.take(WORD as u64, WORD as u64)?;
        // As many bytes were taken.
        Ok(bytes
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word)))
    }

    fn text(&mut self, most: u64) -> Result<&'a [u8], SealedFault> {
        let bytes = self.word()?;
        self.take(bytes, most)
    }

    fn path(&mut self) -> Result<&'a Path, SealedFault> {
        let bytes = self.text(MAX_PATH_BYTES)?;
        Ok(Path::new(OsStr::from_bytes(bytes)))
    }

    /// The headers, each checked as that of a file is.
    fn checkpoint(&mut self, limits: &HeaderLimits) -> Result<Checkpoint, WeightsError> {
        // The bytes behind the last tensor stayed in the file.
        let header_limits = HeaderLimits {
            allow_trailing: true,
            ..limits.clone()
        };
        let path = self.path()?;
        let files = self.word()?;
        if files > limits.max_tensors as u64 {
            return Err(self.fault("more files than the limit of tensors").into());
        }
        let mut headers: Vec<(PathBuf, Header)> = Vec::new();
        for _ in 0..files {
            let file = self.path()?;
            let file_bytes = self.word()?;
            let text = self.text(limits.header_bytes())?;
            let header = Header::from_text(text.into(), file_bytes, &header_limits)
                .map_err(|fault| WeightsError::format(file, fault))?;
            headers.push((file.into(), header));
        }
        Checkpoint::of_headers(path, headers, limits)
    }

    /// The record of one tensor.
    fn held(
        &mut self,
        entry: WeightEntry<'_>,
        data_start: usize,
        data_bytes: usize,
    ) -> Result<Option<Held>, WeightsError> {
        let name = || entry.name().to_owned();
        let unknown = self.fault("no such dtype");
        let dtype = match self.word()? {
            LEFT_OUT => return Ok(None),
            RAW => None,
            kind => {
                let code = u8::try_from(kind - DTYPE).ok();
                Some(code.and_then(DType::from_code).ok_or(unknown)?)
            }
        };
        if !fits(entry, dtype) {
            let (name, tag) = (name(), entry.dtype().tag().into());
            return Err(SealedFault::WrongDType {
                name,
                tag,
                found: dtype,
            }
            .into());
        }
        let (offset, nbytes) = (self.word()?, self.word()?);
        let part = self.part(entry)?;
        let data = data_bytes as u64;
        let end = offset.checked_add(nbytes).filter(|&end| end <= data);
        if end.is_none() {
            return Err(SealedFault::OutOfBounds {
                name: name(),
                offset,
                nbytes,
                data_bytes: data,
            }
            .into());
        }
        if !offset.is_multiple_of(TENSOR_ALIGN as u64) {
            let name = name();
            return Err(SealedFault::Unaligned { name, offset }.into());
        }
        let expected_bytes = expected(entry, dtype, part.as_deref());
        if expected_bytes != nbytes {
            return Err(SealedFault::WrongLength {
                name: name(),
                nbytes,
                expected_bytes,
            }
            .into());
        }
        #[allow(
            clippy::cast_possible_truncation,
            reason = "not more than the data, which is in memory"
        )]
        Ok(Some(Held {
            storage: 0,
            offset: data_start + offset as usize,
            nbytes: nbytes as usize,
            dtype,
            part,
            backing: Backing::Sealed,
        }))
    }

    /// The shape of a tensor of which only a part is here.
    fn part(&mut self, entry: WeightEntry<'_>) -> Result<Option<Box<Shape>>, WeightsError> {
        let rank = self.word()?;
        if rank == 0 {
            return Ok(None);
        }
        let whole = entry.shape();
        let wrong = || SealedFault::WrongPart {
            name: entry.name().into(),
        };
        if rank - 1 != whole.rank() as u64 {
            return Err(wrong().into());
        }
        let mut sizes = Vec::with_capacity(whole.rank());
        for &most in whole.dims() {
            let size = usize::try_from(self.word()?).ok();
            sizes.push(size.filter(|&size| size <= most).ok_or_else(wrong)?);
        }
        let shape = Shape::from_dims(&sizes).map_err(|_| wrong())?;
        Ok(Some(Box::new(shape)))
    }
}

/// Can a tensor of the file be of this dtype in memory? As it was, or cast.
fn fits(entry: WeightEntry<'_>, dtype: Option<DType>) -> bool {
    let is_cast = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    let own = entry.dtype().loadable();
    own == dtype || (own.is_some_and(is_cast) && dtype.is_some_and(is_cast))
}

/// The bytes that a tensor needs. `u64::MAX`, which none has, for a part of what has no width.
fn expected(entry: WeightEntry<'_>, dtype: Option<DType>, part: Option<&Shape>) -> u64 {
    let bits = match dtype {
        Some(dtype) => u32::try_from(dtype.bits()).ok(),
        None if part.is_none() => return entry.nbytes(),
        None => entry.dtype().bits(),
    };
    let numel = part.map_or_else(|| entry.shape().numel(), Shape::numel);
    // numel <= i64::MAX and bits <= 64: 128 bits hold the product.
    let total = bits.map(|bits| numel as u128 * u128::from(bits));
    total
        .filter(|total| total.is_multiple_of(8))
        .and_then(|total| u64::try_from(total / 8).ok())
        .unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::weights::LoadOptions;
    use crate::weights::load::Plan;

    /// What was left out stays known and left out, and a part of a tensor is that part.
    #[test]
    fn what_was_left_out_and_what_is_a_part_survive() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        let json = br#"{"a":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]},"b":{"dtype":"U8","shape":[3],"data_offsets":[32,35]},"c":{"dtype":"X1","shape":[3],"data_offsets":[35,36]}}"#;
        let length = (json.len() as u64).to_le_bytes();
        std::fs::write(&path, [&length, &json[..], &[0; 36]].concat()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let plan = Plan::new(&checkpoint, &LoadOptions::default()).unwrap();
        let bytes = plan.slab_bytes;
        let mut all = plan.held(&checkpoint, Backing::Sealed);
        all[1] = None;
        let part = |rows: usize, nbytes| {
            let held = all[0].clone().unwrap();
            let part = Some(Box::new(Shape::from([rows, 2])));
            Some(Held {
                part,
                nbytes,
                ..held
            })
        };
        let read_back = |first: Option<Held>| {
            let held = [first, None, all[2].clone()];
            let mut image = index(&checkpoint, &held, bytes).unwrap();
            let start = data_start(image.len()).unwrap();
            image.resize(start + bytes, 0);
            read(&image, &HeaderLimits::default()).map(|(_, held)| (start, held))
        };
        let (start, held) = read_back(part(1, 8)).unwrap();
        let first = held[0].as_ref().unwrap();
        assert_eq!((first.offset, first.nbytes), (start, 8));
        assert_eq!(first.part.as_deref(), Some(&Shape::from([1, 2])));
        assert!(held[1].is_none());
        assert_eq!(held[2].as_ref().unwrap().dtype, None);
        // More rows than there are, and bytes for other rows.
        for (rows, nbytes) in [(5, 40), (1, 16), (3, 8)] {
            assert!(read_back(part(rows, nbytes)).is_err(), "{rows} rows");
        }
    }
}
