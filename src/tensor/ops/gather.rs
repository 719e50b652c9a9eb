//! [`gather_rows`]: rows of a table by number, which is what an embedding is.
//!
//! ```text
//!   table  0 | a a a |      rows [2, 0, 2]   ──▶   | c c c |
//!          1 | b b b |                             | a a a |
//!          2 | c c c |                             | c c c |
//! ```

use super::copy::copy_spans;
use super::loops::Loops;
use super::span::{Reading, Writing};
use crate::tensor::{Tensor, TensorError};
use crate::types::{MAX_RANK, Shape};

/// Copies row `rows[i]` of `table` to row `i` of `dst`, for each `i`.
///
/// A row is everything behind the first dimension; `dst` has as many rows as are named,
/// each of the table's shape. Either side may be a strided view.
///
/// ```
/// use tenslab::{DType, Tensor, memory, ops};
///
/// let table = ops::arange(0, 12, 1, None, memory::cpu())?.reshape([4, 3])?;
/// let hidden = Tensor::empty([2, 3], DType::I64, memory::cpu())?;
/// ops::gather_rows(&hidden, &table, &[3, 1])?;
/// assert_eq!(*hidden.read::<i64>()?, [9, 10, 11, 3, 4, 5]);
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// Cost: no heap block; a copy for each row. Nothing is written unless all of it can be.
///
/// # Errors
/// [`DTypeMismatch`](TensorError::DTypeMismatch);
/// [`NoSuchDim`](TensorError::NoSuchDim) for a table without dimensions;
/// [`TooManyElements`](crate::types::TypeError::TooManyElements) for so many rows that no shape holds them;
/// [`ShapeMismatch`](TensorError::ShapeMismatch) of `dst` and what it should be;
/// [`NoSuchRow`](TensorError::NoSuchRow), the first in the list;
/// [`Overlap`](TensorError::Overlap) where `dst` and `table` are of one storage and the bytes
/// from first to last element meet;
/// [`Borrow`](TensorError::Borrow) where somebody else is at the bytes of either side or
/// `dst` is frozen.
pub fn gather_rows(dst: &Tensor, table: &Tensor, rows: &[u32]) -> Result<(), TensorError> {
    if dst.dtype() != table.dtype() {
        return Err(TensorError::DTypeMismatch {
            asked: table.dtype(),
            found: dst.dtype(),
        });
    }
    let rank = table.rank();
    if rank == 0 {
        return Err(TensorError::NoSuchDim { dim: 0, rank });
    }
    let mut dims = [0; MAX_RANK];
    dims[..rank].copy_from_slice(table.shape().dims());
    dims[0] = rows.len();
    let expected = Shape::from_dims(&dims[..rank])?;
    if *dst.shape() != expected {
        return Err(TensorError::ShapeMismatch {
            shapes: Box::new((*dst.shape(), expected)),
        });
    }
    let count = table.shape().dim(0);
    let beyond = |&row: &u32| usize::try_from(row).map_or(true, |row| row >= count);
    if let Some(position) = rows.iter().position(beyond) {
        return Err(TensorError::NoSuchRow {
            row: rows[position],
            rows: count,
            position,
        });
    }
    match dst.dtype().bytes() {
        1 => gather_words::<1>(dst, table, rows),
        2 => gather_words::<2>(dst, table, rows),
        4 => gather_words::<4>(dst, table, rows),
        _ => gather_words::<8>(dst, table, rows),
    }
}

fn gather_words<const N: usize>(
    dst: &Tensor,
    table: &Tensor,
    rows: &[u32],
) -> Result<(), TensorError> {
    let mut writing = Writing::of(dst)?;
    if dst.storage().is_same(table.storage()) {
        let Some((to, from)) = writing.beside::<N>(table) else {
            return Err(TensorError::Overlap {
                storage: dst.storage().id(),
                first: 0,
                second: 1,
            });
        };
        copy_each(dst, table, rows, to, from);
        return Ok(());
    }
    let reading = Reading::of(table)?;
    if let (Some(to), Some(from)) = (writing.aligned(), reading.aligned::<[u8; N]>()) {
        copy_each(dst, table, rows, to, from);
    }
    Ok(())
}

fn copy_each<const N: usize>(
    dst: &Tensor,
    table: &Tensor,
    rows: &[u32],
    to: &mut [[u8; N]],
    from: &[[u8; N]],
) {
    let (to_strides, from_strides) = (dst.strides().values(), table.strides().values());
    let row_dims = &table.shape().dims()[1..];
    let Some(row) = Loops::in_memory_order(row_dims, &to_strides[1..], &from_strides[1..]) else {
        return;
    };
    for (at, &number) in rows.iter().enumerate() {
        // Below the number of rows, so a `usize`.
        let number = number as usize;
        let (to_at, from_at) = (at * to_strides[0], number * from_strides[0]);
        copy_spans(&row, &mut to[to_at..], &from[from_at..]);
    }
}
