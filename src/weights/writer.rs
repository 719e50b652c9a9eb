//! [`save`]: tensors into one safetensors file, all or nothing.
//!
//! ```text
//!  | n | JSON, padded with spaces | f64 … | f32 … | f16, bf16 … | u8 … |
//!                                 ^ a multiple of 64
//! ```
//!
//! The data begins at a multiple of 64 and the widest elements come first, so
//! every tensor is aligned for its own elements without a gap. (Many writers
//! align to 8 bytes only; then a map of the file has to be realigned.) Equal
//! tensors give equal bytes, whatever order they come in.
//!
//! The file appears under its name when it is complete and on the disk: it is
//! written beside it under a temporary name, synced and renamed. Any error, a full disk
//! above all, removes the temporary file; only a killed process leaves it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use super::header::{HeaderLimits, LENGTH_BYTES};
use super::slab::TENSOR_ALIGN;
use super::{FormatFault, WeightsError};
use crate::tensor::{ReadGuard, Tensor};

/// Writes tensors and metadata to `path`, replacing what is there.
///
/// The tensors are borrowed for reading until the file is complete, so what it
/// holds is one state of them. They need not be frozen, but contiguous.
///
/// # Errors
/// [`WeightsError`], and then nothing at `path` has changed:
/// - [`InvalidName`](WeightsError::InvalidName) for two tensors of one name and for `__metadata__`;
/// - [`Tensor`](WeightsError::Tensor) for one that is not contiguous or is being written to;
/// - [`UnsupportedDType`](WeightsError::UnsupportedDType) where the format has no tag for it;
/// - [`Format`](WeightsError::Format) for names that make the header longer than readers take;
/// - [`Io`](WeightsError::Io) for whatever the disk says. Only where the action is "sync"
///   is the new file at `path`, complete, but may not outlive a loss of power.
pub fn save<N: AsRef<str>>(
    path: impl AsRef<Path>,
    tensors: &[(N, Tensor)],
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightsError> {
    let path = path.as_ref();
    let list = list(path, tensors)?;
    let header = header(path, &list, metadata)?;

    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut temporary = Temporary::create(path, directory)?;
    // Before the rename: a directory that cannot be opened is an error that changed nothing.
    let synced = open_directory(directory)?;
    let file = &mut temporary.file;
    // Small tensors are gathered; a large one goes straight through the buffer.
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let written = write_all(&mut out, &header, &list)
        .and_then(|()| out.into_inner().map_err(io::IntoInnerError::into_error))
        .and_then(|file| file.sync_all());
    written.map_err(|error| WeightsError::io(path, "write", error))?;
    temporary.rename_to(path)?;
    // Makes the rename itself last.
    synced
        .map_or(Ok(()), |synced| synced.sync_all())
        .map_err(|error| WeightsError::io(directory, "sync", error))
}

/// One tensor to write.
struct Listed<'a> {
    name: &'a str,
    tag: &'static str,
    shape: &'a [usize],
    width: usize,
    bytes: ReadGuard<'a, u8>,
}

/// Checks and borrows all tensors, in the order of the file.
fn list<'a, N: AsRef<str>>(
    path: &Path,
    tensors: &'a [(N, Tensor)],
) -> Result<Vec<Listed<'a>>, WeightsError> {
    let mut names = HashSet::with_capacity(tensors.len());
    let mut list = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let name = name.as_ref();
        let refused = |reason| WeightsError::InvalidName {
            path: path.into(),
            name: name.into(),
            reason,
        };
        if name == "__metadata__" {
            return Err(refused("the format keeps that name for the metadata"));
        }
        if !names.insert(name) {
            return Err(refused("another tensor of this file has that name"));
        }
        let dtype = tensor.dtype();
        let tag = dtype
            .safetensors_tag()
            .ok_or_else(|| WeightsError::UnsupportedDType {
                path: path.into(),
                name: name.into(),
                tag: dtype.name().into(),
            })?;
        let bytes = tensor.read_bytes().map_err(|source| WeightsError::Tensor {
            name: name.into(),
            source,
        })?;
        list.push(Listed {
            name,
            tag,
            shape: tensor.shape().dims(),
            width: dtype.bytes(),
            bytes,
        });
    }
    list.sort_unstable_by(|a, b| b.width.cmp(&a.width).then(a.name.cmp(b.name)));
    Ok(list)
}

/// Length field and JSON, padded so that the data begins at a multiple of 64.
fn header(
    path: &Path,
    list: &[Listed<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, WeightsError> {
    let mut bytes = vec![0; size_of::<u64>()];
    serde_json::to_writer(&mut bytes, &HeaderJson { list, metadata })
        .map_err(|error| WeightsError::io(path, "write", error.into()))?;
    bytes.resize(bytes.len().next_multiple_of(TENSOR_ALIGN), b' ');
    let header_bytes = bytes.len() as u64 - LENGTH_BYTES;
    let max_bytes = HeaderLimits::default().max_header_bytes;
    if header_bytes > max_bytes {
        let fault = FormatFault::HeaderTooLarge {
            header_bytes,
            max_bytes,
        };
        return Err(WeightsError::format(path, fault));
    }
    bytes[..size_of::<u64>()].copy_from_slice(&header_bytes.to_le_bytes());
    Ok(bytes)
}

struct HeaderJson<'a> {
    list: &'a [Listed<'a>],
    metadata: &'a BTreeMap<String, String>,
}

impl Serialize for HeaderJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry("__metadata__", self.metadata)?;
        }
        let mut begin = 0;
        for tensor in self.list {
            // Lengths of slices that are alive together: their sum is no overflow
            // unless one tensor is listed many times over.
            let end = tensor
                .bytes
                .len()
                .checked_add(begin)
                .ok_or_else(|| serde::ser::Error::custom("more bytes than a file can have"))?;
            map.serialize_entry(tensor.name, &InfoJson { tensor, begin, end })?;
            begin = end;
        }
        map.end()
    }
}

struct InfoJson<'a> {
    tensor: &'a Listed<'a>,
    begin: usize,
    end: usize,
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

fn write_all(out: &mut impl Write, header: &[u8], list: &[Listed<'_>]) -> io::Result<()> {
    out.write_all(header)?;
    for tensor in list {
        out.write_all(&tensor.bytes)?;
    }
    out.flush()
}

/// A file beside the final one that goes away unless it is renamed.
struct Temporary {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Temporary {
    fn create(target: &Path, directory: &Path) -> Result<Self, WeightsError> {
        let Some(name) = target.file_name() else {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
            return Err(WeightsError::io(target, "write", error));
        };
        // Two threads may save at once: whoever finds a name taken tries the next.
        let mut number = 0_u32;
        let (path, file) = loop {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{number}.tmp", std::process::id()));
            let path = directory.join(hidden);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {
                    number += 1;
                }
                Err(error) => return Err(WeightsError::io(target, "create", error)),
            }
        };
        Ok(Self {
            path,
            file,
            renamed: false,
        })
    }

    fn rename_to(&mut self, target: &Path) -> Result<(), WeightsError> {
        fs::rename(&self.path, target).map_err(|error| WeightsError::io(target, "write", error))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // The error that brought us here is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The directory, to be synced. None where directories cannot be opened.
fn open_directory(directory: &Path) -> Result<Option<File>, WeightsError> {
    cfg!(unix)
        .then(|| File::open(directory))
        .transpose()
        .map_err(|error| WeightsError::io(directory, "open", error))
}
