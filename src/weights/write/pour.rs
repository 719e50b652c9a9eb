//! The bytes on their way: in order, from where they lie.
//!
//! ```text
//!   contiguous        ──────────────▶  write, 4 MiB at a time
//!   small             ──▶ 64 KiB ───▶  write
//!   any other strides ──▶ 1 MiB of scratch, a few rows at a time ──▶  write
//! ```

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;

use super::SaveProgress;
use super::draft::Draft;
use super::list::{Bytes, Plan};
use crate::memory::{self, Storage};
use crate::tensor::{Tensor, TensorError, ops};
use crate::weights::WeightsError;
use crate::weights::load::TENSOR_ALIGN;

/// Bytes that are written between two looks at the progress.
const PIECE_BYTES: usize = 4 << 20;

/// What small tensors are put together in.
const BUFFER_BYTES: usize = 64 << 10;

/// What strided tensors are gathered in.
const SCRATCH_BYTES: usize = 1 << 20;

/// Where strided tensors are packed, a part at a time.
pub(super) struct Scratch {
    storage: Option<Storage>,
    gathered_bytes: u64,
}

impl Scratch {
    /// None is allocated where no tensor needs it.
    pub(super) fn for_all(plan: &Plan<'_>) -> Result<Self, WeightsError> {
        let strided = plan.tensors.iter().filter_map(|listed| match listed.bytes {
            Bytes::Strided { tensor, .. } => Some((listed.name, tensor.nbytes())),
            _ => None,
        });
        let largest = strided.max_by_key(|(_, nbytes)| *nbytes);
        let storage = largest.map(|(name, nbytes)| {
            let buffer = memory::cpu().allocate(nbytes.min(SCRATCH_BYTES), TENSOR_ALIGN);
            buffer
                .map(Storage::from)
                .map_err(|source| WeightsError::Tensor {
                    name: name.into(),
                    source: source.into(),
                })
        });
        Ok(Self {
            storage: storage.transpose()?,
            gathered_bytes: 0,
        })
    }

    pub(super) fn gathered_bytes(&self) -> u64 {
        self.gathered_bytes
    }
}

/// Why no more is written.
enum Stop {
    Disk(io::Error),
    Cancelled,
    Tensor(TensorError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<TensorError> for Stop {
    fn from(error: TensorError) -> Self {
        Self::Tensor(error)
    }
}

/// Writes header and data.
pub(super) fn pour(
    path: &Path,
    draft: &Draft<'_>,
    plan: &Plan<'_>,
    scratch: &mut Scratch,
    progress: &mut dyn FnMut(SaveProgress) -> ControlFlow<()>,
) -> Result<(), WeightsError> {
    let total_bytes = plan.tensor_bytes;
    let mut stream = Stream {
        out: BufWriter::with_capacity(BUFFER_BYTES, draft.file()),
        scratch,
        done_bytes: 0,
        told_bytes: 0,
        total_bytes,
        progress,
    };
    let mut name = "";
    let poured = stream.all(plan, &mut name);
    let done_bytes = stream.done_bytes;
    // What is left in the buffer of a file that failed is not to be tried again.
    let _ = stream.out.into_parts();
    poured.map_err(|stop| match stop {
        Stop::Disk(error) => draft.refused(error),
        Stop::Cancelled => WeightsError::Cancelled {
            path: path.into(),
            done_bytes,
            total_bytes,
        },
        Stop::Tensor(source) => WeightsError::Tensor {
            name: name.into(),
            source,
        },
    })
}

struct Stream<'a> {
    out: BufWriter<&'a File>,
    scratch: &'a mut Scratch,
    done_bytes: u64,
    /// As far as the caller knows.
    told_bytes: u64,
    total_bytes: u64,
    progress: &'a mut dyn FnMut(SaveProgress) -> ControlFlow<()>,
}

impl Stream<'_> {
    fn all<'a>(&mut self, plan: &'a Plan<'_>, name: &mut &'a str) -> Result<(), Stop> {
        self.tell()?;
        self.out.write_all(&plan.header)?;
        for listed in &plan.tensors {
            *name = listed.name;
            match &listed.bytes {
                Bytes::Slice(bytes) => self.bytes(bytes)?,
                Bytes::Packed(bytes) => self.bytes(bytes)?,
                Bytes::Strided { tensor, .. } => self.gather(tensor)?,
            }
        }
        self.out.flush()?;
        self.tell()
    }

    fn tell(&mut self) -> Result<(), Stop> {
        self.told_bytes = self.done_bytes;
        let told = (self.progress)(SaveProgress {
            done_bytes: self.done_bytes,
            total_bytes: self.total_bytes,
        });
        match told {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stop::Cancelled),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.out.write_all(piece)?;
            self.done_bytes += piece.len() as u64;
            let due = self.done_bytes - self.told_bytes >= PIECE_BYTES as u64;
            // The end is told once, when all is with the system.
            if due && self.done_bytes < self.total_bytes {
                self.tell()?;
            }
        }
        Ok(())
    }

    /// Writes a tensor in row-major order: packed parts of it from where they are, others
    /// through the scratch.
    fn gather(&mut self, tensor: &Tensor) -> Result<(), Stop> {
        if tensor.is_contiguous() {
            return self.bytes(&tensor.read_bytes()?);
        }
        let nbytes = tensor.nbytes();
        let room = self.scratch.storage.clone();
        if let Some(room) = room.filter(|room| nbytes <= room.len()) {
            let packed = Tensor::from_storage(&room, 0, *tensor.shape(), tensor.dtype())?;
            ops::copy(&packed, tensor)?;
            self.scratch.gathered_bytes += nbytes as u64;
            return self.bytes(&packed.read_bytes()?);
        }
        // It is larger than the scratch, so it has more than one element. A part is either
        // small enough or one index of this dimension, so this ends after the last dimension.
        let dims = tensor.shape().dims();
        let dim = dims.iter().position(|&size| size > 1).unwrap_or(0);
        let rows = (SCRATCH_BYTES / (nbytes / dims[dim]).max(1)).max(1);
        for part in tensor.chunks(dim, rows)? {
            self.gather(&part)?;
        }
        Ok(())
    }
}
