//! Several tensors into one new one: [`cat`] and [`stack`].
//!
//! ```text
//!   a [2, 3]   b [4, 3]        cat along 0    [6, 3]
//!   a [2, 3]   b [2, 3]        stack at 0     [2, 2, 3]      at 2    [2, 3, 2]
//! ```

use super::copy::copy_spans;
use super::loops::Loops;
use super::span::{Reading, Writing};
use crate::memory::SharedAllocator;
use crate::tensor::{Tensor, TensorError};
use crate::types::{MAX_RANK, Shape, TypeError};

/// Joins tensors along a dimension that they have. All others must be equal.
///
/// ```
/// use tenslab::{DType, memory, ops};
///
/// let old = ops::full([2, 1], 1, DType::I32, memory::cpu())?;
/// let new = ops::full([2, 2], 2, DType::I32, memory::cpu())?;
/// let both = ops::cat(&[&old, &new], 1, memory::cpu())?;
/// assert_eq!(*both.read::<i32>()?, [1, 2, 2, 1, 2, 2]);
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// Cost: the new tensor, one copy of each element, and no heap block besides.
///
/// # Errors
/// [`NothingToJoin`](TensorError::NothingToJoin) for an empty list;
/// [`NoSuchDim`](TensorError::NoSuchDim);
/// [`DTypeMismatch`](TensorError::DTypeMismatch) and
/// [`JoinMismatch`](TensorError::JoinMismatch) with the first tensor that does not fit;
/// [`TooManyElements`](TypeError::TooManyElements) where the joined shape is none; as
/// [`Tensor::empty`]; [`Borrow`](TensorError::Borrow) while somebody writes to one of them.
pub fn cat(
    tensors: &[&Tensor],
    dim: usize,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    let &first = tensors.first().ok_or(TensorError::NothingToJoin)?;
    let rank = first.rank();
    if dim >= rank {
        return Err(TensorError::NoSuchDim { dim, rank });
    }
    let mut dims = [0; MAX_RANK];
    dims[..rank].copy_from_slice(first.shape().dims());
    dims[dim] = 0;
    for (position, tensor) in tensors.iter().enumerate() {
        same_dtype(first, tensor)?;
        let size = tensor.shape().dims().get(dim).copied().unwrap_or(0);
        let mut others = [0; MAX_RANK];
        others[..tensor.rank()].copy_from_slice(tensor.shape().dims());
        others[dim] = dims[dim];
        if tensor.rank() != rank || others != dims {
            let shapes = Box::new((*first.shape(), *tensor.shape()));
            return Err(TensorError::JoinMismatch {
                shapes,
                position,
                dim,
            });
        }
        dims[dim] = dims[dim]
            .checked_add(size)
            .ok_or(TypeError::TooManyElements {
                rank,
                index: dim,
                dim: usize::MAX,
            })?;
    }
    join(tensors, dim, &dims[..rank], false, allocator)
}

/// Joins tensors of one shape along a new dimension, which will be dimension `dim`. Where
/// that is the tensors' rank, it is the last.
///
/// ```
/// use tenslab::{DType, memory, ops};
///
/// let (a, b) = (
///     ops::full([2], 1, DType::I32, memory::cpu())?,
///     ops::full([2], 2, DType::I32, memory::cpu())?,
/// );
/// let rows = ops::stack(&[&a, &b], 0, memory::cpu())?;
/// assert_eq!(*rows.read::<i32>()?, [1, 1, 2, 2]);
/// let columns = ops::stack(&[&a, &b], 1, memory::cpu())?;
/// assert_eq!(*columns.read::<i32>()?, [1, 2, 1, 2]);
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// Cost: as [`cat`].
///
/// # Errors
/// [`NothingToJoin`](TensorError::NothingToJoin) for an empty list;
/// [`NoSuchDim`](TensorError::NoSuchDim), of the dimensions there will be;
/// [`DTypeMismatch`](TensorError::DTypeMismatch) and
/// [`StackMismatch`](TensorError::StackMismatch) with the first tensor that does not fit;
/// [`RankTooHigh`](TypeError::RankTooHigh) of tensors that have 8 dimensions already, and
/// [`TooManyElements`](TypeError::TooManyElements); as [`Tensor::empty`];
/// [`Borrow`](TensorError::Borrow) while somebody writes to one of them.
pub fn stack(
    tensors: &[&Tensor],
    dim: usize,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    let &first = tensors.first().ok_or(TensorError::NothingToJoin)?;
    let rank = first.rank() + 1;
    if dim >= rank {
        return Err(TensorError::NoSuchDim { dim, rank });
    }
    for (position, tensor) in tensors.iter().enumerate() {
        same_dtype(first, tensor)?;
        if tensor.shape() != first.shape() {
            let shapes = Box::new((*first.shape(), *tensor.shape()));
            return Err(TensorError::StackMismatch { shapes, position });
        }
    }
    let mut dims = [0; MAX_RANK + 1];
    dims[..rank - 1].copy_from_slice(first.shape().dims());
    dims[..rank].copy_within(dim..rank - 1, dim + 1);
    dims[dim] = tensors.len();
    join(tensors, dim, &dims[..rank], true, allocator)
}

fn same_dtype(first: &Tensor, tensor: &Tensor) -> Result<(), TensorError> {
    if tensor.dtype() == first.dtype() {
        return Ok(());
    }
    Err(TensorError::DTypeMismatch {
        asked: first.dtype(),
        found: tensor.dtype(),
    })
}

/// The caller has checked that the parts fit; where `is_new`, dimension `dim` is one that they
/// do not have, and each takes one step of it.
fn join(
    parts: &[&Tensor],
    dim: usize,
    dims: &[usize],
    is_new: bool,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    let whole = Tensor::empty(Shape::from_dims(dims)?, parts[0].dtype(), allocator)?;
    match whole.dtype().bytes() {
        1 => join_words::<1>(&whole, parts, dim, is_new),
        2 => join_words::<2>(&whole, parts, dim, is_new),
        4 => join_words::<4>(&whole, parts, dim, is_new),
        _ => join_words::<8>(&whole, parts, dim, is_new),
    }?;
    Ok(whole)
}

fn join_words<const N: usize>(
    whole: &Tensor,
    parts: &[&Tensor],
    dim: usize,
    is_new: bool,
) -> Result<(), TensorError> {
    let step = whole.strides().stride(dim);
    let mut strides = [0; MAX_RANK];
    strides[..whole.rank()].copy_from_slice(whole.strides().values());
    if is_new {
        strides.copy_within(dim + 1.., dim);
    }
    let mut writing = Writing::of(whole)?;
    let mut at = 0;
    for part in parts {
        let reading = Reading::of(part)?;
        let part_dims = part.shape().dims();
        let loops = Loops::in_memory_order(part_dims, &strides, part.strides().values());
        if let (Some(loops), Some(to), Some(from)) =
            (loops, writing.aligned(), reading.aligned::<[u8; N]>())
        {
            copy_spans(&loops, &mut to[at * step..], from);
        }
        at += if is_new { 1 } else { part_dims[dim] };
    }
    Ok(())
}
