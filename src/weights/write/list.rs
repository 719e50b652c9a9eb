//! [`Plan`]: what the file will hold, checked and borrowed, and its header.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use super::options::{Content, RawBytes};
use super::{SaveEntry, SaveOptions};
use crate::memory::Shared;
use crate::tensor::{ReadGuard, Tensor};
use crate::weights::header::LENGTH_BYTES;
use crate::weights::load::TENSOR_ALIGN;
use crate::weights::{Header, WeightDType, WeightsError};

/// Offsets in a file are signed, and a header has to go before the data.
const MAX_DATA_BYTES: u64 = i64::MAX.unsigned_abs() / 2;

/// A file to be written. While it lives nobody writes to its tensors.
pub(super) struct Plan<'a> {
    /// In the order of the file.
    pub(super) tensors: Vec<Listed<'a>>,
    /// Length field, JSON and padding.
    pub(super) header: Vec<u8>,
    pub(super) tensor_bytes: u64,
}

/// One tensor to write.
pub(super) struct Listed<'a> {
    pub(super) name: &'a str,
    tag: &'a str,
    shape: &'a [usize],
    /// Width of an element in bits; 0 where the format does not say.
    bits: u32,
    pub(super) bytes: Bytes<'a>,
}

/// Where the bytes are.
pub(super) enum Bytes<'a> {
    Slice(&'a [u8]),
    Packed(ReadGuard<'a, u8>),
    /// To be gathered.
    Strided {
        tensor: &'a Tensor,
        _held: Shared<'a>,
    },
}

impl Bytes<'_> {
    fn len(&self) -> u64 {
        let len = match self {
            Self::Slice(bytes) => bytes.len(),
            Self::Packed(bytes) => bytes.len(),
            Self::Strided { tensor, .. } => tensor.nbytes(),
        };
        len as u64
    }
}

impl<'a> Plan<'a> {
    /// Checks and borrows all tensors.
    pub(super) fn new(
        path: &Path,
        entries: &[SaveEntry<'a>],
        options: &SaveOptions,
    ) -> Result<Self, WeightsError> {
        refuse_names(path, entries)?;
        let listed = entries.iter().map(|entry| Listed::new(path, entry));
        let mut tensors = listed.collect::<Result<Vec<_>, _>>()?;
        // No tensor of a narrow dtype stands before one of a wide dtype, and a tensor is as
        // long as a multiple of its width: so each begins at such a multiple.
        tensors.sort_unstable_by(|a, b| b.bits.cmp(&a.bits).then(a.name.cmp(b.name)));
        let sum = tensors
            .iter()
            .try_fold(0_u64, |sum, tensor| sum.checked_add(tensor.bytes.len()));
        let tensor_bytes =
            sum.filter(|&sum| sum <= MAX_DATA_BYTES)
                .ok_or_else(|| WeightsError::TooLarge {
                    path: path.into(),
                    bytes: sum.unwrap_or(u64::MAX),
                })?;
        let header = header(path, &tensors, options)?;
        let file_bytes = header.len() as u64 + tensor_bytes;
        let text = &header[size_of::<u64>()..];
        Header::from_text(text.to_vec(), file_bytes, &options.limits)
            .map_err(|fault| WeightsError::format(path, fault))?;
        Ok(Self {
            tensors,
            header,
            tensor_bytes,
        })
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.header.len() as u64 + self.tensor_bytes
    }
}

fn refuse_names(path: &Path, entries: &[SaveEntry<'_>]) -> Result<(), WeightsError> {
    let mut names = HashSet::with_capacity(entries.len());
    for entry in entries {
        let reason = if entry.name == "__metadata__" {
            "the format keeps that name for the metadata"
        } else if !names.insert(entry.name) {
            "another tensor of this file has that name"
        } else {
            continue;
        };
        return Err(WeightsError::InvalidName {
            path: path.into(),
            name: entry.name.into(),
            reason,
        });
    }
    Ok(())
}

impl<'a> Listed<'a> {
    fn new(path: &Path, entry: &SaveEntry<'a>) -> Result<Self, WeightsError> {
        let name = entry.name;
        let (tag, shape, bytes) = match entry.content {
            Content::Tensor(tensor) => {
                let dtype = tensor.dtype();
                let tag = dtype.safetensors_tag();
                let tag = tag.ok_or_else(|| WeightsError::UnsupportedDType {
                    path: path.into(),
                    name: name.into(),
                    tag: dtype.name().into(),
                })?;
                (tag, tensor.shape().dims(), RawBytes::Tensor(tensor))
            }
            Content::Raw { tag, shape, bytes } => (tag, shape, bytes),
        };
        let bytes = match bytes {
            RawBytes::Slice(bytes) => Bytes::Slice(bytes),
            RawBytes::Tensor(tensor) => borrow(name, tensor)?,
        };
        Ok(Self {
            name,
            tag,
            shape,
            bits: WeightDType::from_tag(tag).bits().unwrap_or(0),
            bytes,
        })
    }
}

fn borrow<'a>(name: &str, tensor: &'a Tensor) -> Result<Bytes<'a>, WeightsError> {
    let borrowed = if tensor.is_contiguous() {
        tensor.read_bytes().map(Bytes::Packed)
    } else {
        let held = tensor.storage().share();
        held.map_err(Into::into).map(|held| Bytes::Strided {
            tensor,
            _held: held,
        })
    };
    borrowed.map_err(|source| WeightsError::Tensor {
        name: name.into(),
        source,
    })
}

/// Length field and JSON, padded so that the data begins at a multiple of 64.
fn header(
    path: &Path,
    tensors: &[Listed<'_>],
    options: &SaveOptions,
) -> Result<Vec<u8>, WeightsError> {
    let mut bytes = vec![0; size_of::<u64>()];
    let metadata = &options.metadata;
    serde_json::to_writer(&mut bytes, &HeaderJson { tensors, metadata })
        .map_err(|error| WeightsError::io(path, "write", error.into()))?;
    bytes.resize(bytes.len().next_multiple_of(TENSOR_ALIGN), b' ');
    let header_bytes = bytes.len() as u64 - LENGTH_BYTES;
    let max_bytes = options.limits.max_header_bytes;
    if header_bytes > max_bytes {
        return Err(WeightsError::HeaderTooLong {
            path: path.into(),
            header_bytes,
            max_bytes,
        });
    }
    bytes[..size_of::<u64>()].copy_from_slice(&header_bytes.to_le_bytes());
    Ok(bytes)
}

struct HeaderJson<'a> {
    tensors: &'a [Listed<'a>],
    metadata: &'a BTreeMap<String, String>,
}

impl Serialize for HeaderJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry("__metadata__", self.metadata)?;
        }
        let mut begin = 0;
        for tensor in self.tensors {
            // The sum of all is known to be no overflow.
            let end = begin + tensor.bytes.len();
            map.serialize_entry(tensor.name, &InfoJson { tensor, begin, end })?;
            begin = end;
        }
        map.end()
    }
}

struct InfoJson<'a> {
    tensor: &'a Listed<'a>,
    begin: u64,
    end: u64,
}

impl Serialize for InfoJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut info = serializer.serialize_struct("TensorInfo", 3)?;
        info.serialize_field("dtype", self.tensor.tag)?;
        info.serialize_field("shape", self.tensor.shape)?;
        info.serialize_field("data_offsets", &[self.begin, self.end])?;
        info.end()
    }
}
