//! [`Shard`]: one rank's part of a tensor, and where it lies in the file.
//!
//! ```text
//!   dim 0, rank 1 of 2      dim 1, rank 1 of 2
//!   | . . . . |             | . . # # |        # is loaded
//!   | # # # # |             | . . # # |
//!   one run                 a run for each row, `stride` bytes apart
//! ```

use std::fmt;

use crate::types::{Shape, TypeError};
use crate::weights::WeightEntry;

/// One rank's part of a tensor that is cut along a dimension, for tensor-parallel models.
///
/// Only its bytes are read. Along dimension 0, or where all dimensions in front have one
/// element, they are one run of the file. Along others they are gathered row by row: gaps of up
/// to 4 KiB are read along, in calls of up to 256 KiB, and thrown away, because a call costs
/// more than that; around larger ones each row is a read of its own.
///
/// ```
/// use tenslab::weights::{LoadOptions, Shard, ShardRule, Weights, save};
/// use tenslab::{DType, Tensor, memory};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("model.safetensors");
/// let matrix = Tensor::zeros([2, 5], DType::I32, memory::cpu())?;
/// matrix.write::<i32>()?.copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
/// save(&path, &[("w", matrix)], &Default::default())?;
///
/// let shard = Shard { dim: 1, rank: 0, world: 2, uneven: true };
/// let shards = vec![ShardRule::part("w", shard)];
/// let weights = Weights::load(&path, &LoadOptions { shards, ..LoadOptions::default() })?;
/// assert_eq!(*weights.get("w")?.read::<i32>()?, [0, 1, 2, 5, 6, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The dimension that is cut.
    pub dim: usize,
    /// Whose part, from 0.
    pub rank: usize,
    /// How many parts.
    pub world: usize,
    /// May parts differ in size? Then the first `size % world` ranks get one element more, as
    /// `torch.tensor_split` cuts. If not, a size that `world` does not divide is an error.
    pub uneven: bool,
}

/// Why a tensor cannot be cut like that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardFault {
    /// It has no such dimension.
    Dimension {
        /// What was asked for.
        dim: usize,
        /// How many it has.
        rank: usize,
    },
    /// There is no such rank.
    Rank {
        /// What was asked for.
        rank: usize,
        /// How many there are.
        world: usize,
    },
    /// The parts would differ in size.
    Indivisible {
        /// The dimension.
        dim: usize,
        /// Its size.
        size: usize,
        /// In how many parts.
        world: usize,
    },
    /// Its elements are not whole bytes, as far as is known.
    Elements {
        /// Bits of an element; none where the dtype is not known.
        bits: Option<u32>,
    },
    /// The tensor is larger than the address space.
    TooLarge {
        /// Its bytes.
        bytes: u64,
    },
}

impl fmt::Display for ShardFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Dimension { dim, rank } => {
                write!(f, "there is no dimension {dim}, it has {rank}")
            }
            Self::Rank { rank, world } => write!(f, "rank {rank} is none of {world}"),
            Self::Indivisible { dim, size, world } => write!(
                f,
                "the {size} of dimension {dim} are not {world} equal parts; allow uneven ones"
            ),
            Self::Elements { bits: Some(bits) } => {
                write!(
                    f,
                    "its elements have {bits} bits and may begin within a byte"
                )
            }
            Self::Elements { bits: None } => {
                f.write_str("nobody knows how many bits its elements have")
            }
            Self::TooLarge { bytes } => {
                write!(
                    f,
                    "its {bytes} bytes are more than this machine can address"
                )
            }
        }
    }
}

impl std::error::Error for ShardFault {}

/// A part of a tensor: its shape, and its runs of bytes in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) shape: Shape,
    /// Bytes of the tensor in front of the first run.
    pub(super) skip: u64,
    /// Bytes of a run.
    pub(super) run: usize,
    /// From one run to the next.
    pub(super) stride: usize,
    pub(super) runs: usize,
}

impl Part {
    /// Bytes of all runs.
    pub(super) fn source_bytes(&self) -> usize {
        self.run * self.runs
    }
}

impl Shard {
    /// From where to where along the dimension, if its size is `size`.
    fn range(self, size: usize) -> Result<(usize, usize), ShardFault> {
        let Self {
            dim, rank, world, ..
        } = self;
        if rank >= world {
            return Err(ShardFault::Rank { rank, world });
        }
        let (each, more) = (size / world, size % world);
        if more > 0 && !self.uneven {
            return Err(ShardFault::Indivisible { dim, size, world });
        }
        // No overflow: both are at most `size`, for `rank` is below `world`.
        Ok((
            rank * each + rank.min(more),
            each + usize::from(rank < more),
        ))
    }

    /// This part of that tensor.
    pub(super) fn of(self, entry: WeightEntry<'_>) -> Result<Part, ShardFault> {
        let shape = entry.shape();
        let dims = shape.dims();
        let (dim, rank) = (self.dim, dims.len());
        let size = *dims.get(dim).ok_or(ShardFault::Dimension { dim, rank })?;
        let (begin, length) = self.range(size)?;
        let bits = entry.dtype().bits();
        let width = bits
            .filter(|bits| bits % 8 == 0)
            .and_then(|bits| usize::try_from(bits / 8).ok())
            .ok_or(ShardFault::Elements { bits })?;
        let bytes = entry.nbytes();
        usize::try_from(bytes).map_err(|_| ShardFault::TooLarge { bytes })?;
        let mut part = [0; 8];
        let part = &mut part[..rank];
        part.copy_from_slice(dims);
        part[dim] = length;
        // A part of a valid shape is one: no product of its dimensions is larger.
        let shape =
            Shape::from_dims(part).map_err(|_: TypeError| ShardFault::TooLarge { bytes })?;
        if shape.numel() == 0 {
            // Others of its dimensions may be so large that their bytes overflow.
            return Ok(Part {
                shape,
                skip: 0,
                run: 0,
                stride: 0,
                runs: 1,
            });
        }
        // From here on all products are at most the tensor's bytes.
        let inner = dims[dim + 1..].iter().product::<usize>() * width;
        let (runs, run, stride) = (
            dims[..dim].iter().product::<usize>(),
            length * inner,
            size * inner,
        );
        let one = runs == 1 || run == stride;
        Ok(Part {
            shape,
            skip: (begin * inner) as u64,
            run: if one { run * runs } else { run },
            stride,
            runs: if one { 1 } else { runs },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_parts_are_those_of_tensor_split() {
        let parts = |size, world| -> Vec<_> {
            let shard = |rank| Shard {
                dim: 0,
                rank,
                world,
                uneven: true,
            };
            (0..world)
                .map(|rank| shard(rank).range(size).unwrap())
                .collect()
        };
        // torch.tensor_split(torch.arange(7), 3), and of 2 into 4.
        assert_eq!(parts(7, 3), [(0, 3), (3, 2), (5, 2)]);
        assert_eq!(parts(2, 4), [(0, 1), (1, 1), (2, 0), (2, 0)]);
        assert_eq!(parts(0, 2), [(0, 0), (0, 0)]);
        assert_eq!(parts(usize::MAX, 1), [(0, usize::MAX)]);
    }
}
