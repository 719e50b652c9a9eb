//! [`copy`]: elements from view to view, by logical index.
//!
//! ```text
//!   both packed               one block move
//!   rows packed in both       a move for each row           [T, H, D] ─▶ [H, T, D]
//!   rows against columns      turned tile by tile           a transposed matrix
//!     few and wide            column by column
//!   anything else             element by element            a column
//! ```
//!
//! The order in which elements are moved follows the target's memory. Below, elements
//! are arrays of bytes: a copy has no opinion on values or on alignment, and moves no
//! NaN through a register that could quiet it.

use super::loops::{Loop, Loops};
use super::rows::for_each_row;
use super::span::{Reading, Writing};
#[cfg(feature = "rayon")]
use super::threads;
use crate::tensor::{Tensor, TensorError};

/// Copies the elements of `src` into `dst`, by logical index.
///
/// Shapes and dtypes have to be equal: nothing is converted or broadcast. Either side
/// may be a strided view; only the elements of `dst` are written. Two contiguous tensors
/// are one block move.
///
/// Within one storage: a `dst` that is the very same view as `src` is left alone;
/// two contiguous tensors may share bytes, and the result is what `src` held before;
/// strided views whose ranges of bytes meet are refused.
///
/// ```
/// use tenslab::{DType, Tensor, memory, ops};
///
/// let matrix = Tensor::zeros([4, 6], DType::F32, memory::cpu())?;
/// let column = matrix.slice(1, 2, 3)?;                       // not contiguous
/// let packed = Tensor::empty([4, 1], DType::F32, memory::cpu())?;
/// ops::copy(&packed, &column)?;
/// assert_eq!(packed.read::<f32>()?.len(), 4);
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// Cost: no heap block. With the feature `rayon`, a large copy that is more than moving
/// rows is shared among the threads of the caller's pool; one thread moves rows as fast
/// as memory takes them.
///
/// # Errors
/// [`DTypeMismatch`](TensorError::DTypeMismatch),
/// [`ShapeMismatch`](TensorError::ShapeMismatch), [`Overlap`](TensorError::Overlap) of
/// strided views as above, and [`Borrow`](TensorError::Borrow) where somebody
/// else is at the bytes of either side or `dst` is frozen.
pub fn copy(dst: &Tensor, src: &Tensor) -> Result<(), TensorError> {
    if dst.dtype() != src.dtype() {
        return Err(TensorError::DTypeMismatch {
            asked: src.dtype(),
            found: dst.dtype(),
        });
    }
    if dst.shape() != src.shape() {
        return Err(TensorError::ShapeMismatch {
            shapes: Box::new((*dst.shape(), *src.shape())),
        });
    }
    match dst.dtype().bytes() {
        1 => copy_words::<1>(dst, src),
        2 => copy_words::<2>(dst, src),
        4 => copy_words::<4>(dst, src),
        _ => copy_words::<8>(dst, src),
    }
}

fn copy_words<const N: usize>(dst: &Tensor, src: &Tensor) -> Result<(), TensorError> {
    let loops = Loops::in_memory_order(
        dst.shape().dims(),
        dst.strides().values(),
        src.strides().values(),
    );
    if !dst.storage().is_same(src.storage()) {
        let mut writing = Writing::of(dst)?;
        let reading = Reading::of(src)?;
        if let (Some(loops), Some(to), Some(from)) =
            (loops, writing.aligned(), reading.aligned::<[u8; N]>())
        {
            copy_spans(&loops, to, from);
        }
        return Ok(());
    }
    if dst.byte_offset() == src.byte_offset() && same_steps(dst, src) {
        return Ok(());
    }
    // Within one storage the one writer borrow is for both sides.
    let mut writing = Writing::of(dst)?;
    let Some(loops) = loops else {
        return Ok(());
    };
    if let Some((to, from)) = writing.beside::<N>(src) {
        copy_spans(&loops, to, from);
        return Ok(());
    }
    if !dst.is_contiguous() || !src.is_contiguous() {
        return Err(TensorError::Overlap {
            storage: dst.storage().id(),
            first: 0,
            second: 1,
        });
    }
    let (to, from) = (dst.first_byte(), src.first_byte());
    // SAFETY: both ranges lie inside the one storage, for the views are contiguous and were
    // checked; they are bytes, so aligned; they may meet, and this is a move that allows
    // it; `writing` keeps everybody else away from the storage.
    unsafe { to.copy_from(from, dst.nbytes()) };
    Ok(())
}

/// Do two tensors of one shape step alike? The stride of a dimension of size 1 is never
/// stepped.
fn same_steps(a: &Tensor, b: &Tensor) -> bool {
    let strides = a.strides().values().iter().zip(b.strides().values());
    strides
        .zip(a.shape().dims())
        .all(|((a, b), &dim)| dim == 1 || a == b)
}

/// Copies what the loops visit.
pub(super) fn copy_spans<const N: usize>(loops: &Loops, to: &mut [[u8; N]], from: &[[u8; N]]) {
    #[cfg(feature = "rayon")]
    if let row = loops.innermost()
        && (row.to != 1 || row.from != 1)
        && let Some((first, second, to_at, from_at)) = threads::halves::<[u8; N]>(loops)
    {
        let (to, to_second) = to.split_at_mut(to_at);
        let from_second = &from[from_at..];
        rayon::join(
            || copy_spans(&first, to, from),
            || copy_spans(&second, to_second, from_second),
        );
        return;
    }
    copy_loops(loops, to, from);
}

fn copy_loops<const N: usize>(loops: &Loops, to: &mut [[u8; N]], from: &[[u8; N]]) {
    let row = loops.innermost();
    if row.to == 1 && row.from == 1 {
        return copy_rows(loops, row.size * N, to, from);
    }
    if N == 8
        && let Some(column) = columns_that_stay(loops, N)
    {
        let outer = loops.without(loops.all().len() - 2);
        return outer.for_each(1, |to_at, from_at| {
            for at in 0..column.size {
                let to = &mut to[to_at + at * column.to..][..row.size];
                copy_column(to, &from[from_at + at..], row.from);
            }
        });
    }
    if row.to == 1 && loops.all().len() > 1 {
        return for_each_row::<true, _, _>(loops, from, to, |_, elements, to| {
            to.copy_from_slice(elements)
        });
    }
    loops.for_each(1, |to_at, from_at| {
        let to = to[to_at..].iter_mut().step_by(row.to);
        let from = from[from_at..].iter().step_by(row.from);
        for (to, from) in to.zip(from).take(row.size) {
            *to = *from;
        }
    });
}

/// The loop over the source's columns, if each is a row of the target and its cache lines are
/// so few that they stay in the first cache until all of each was read.
///
/// Then turning wide elements two at a time is no gain on one at a time, whose reads and
/// writes never split a line.
fn columns_that_stay(loops: &Loops, width: usize) -> Option<Loop> {
    let [.., column, row] = *loops.all() else {
        return None;
    };
    // Lines that are a power of two apart meet in few of the 64 sets of a first cache of
    // 4 KiB a way, of which half of 8 ways are counted on.
    let apart = 1 << (row.from * width).trailing_zeros().clamp(6, 12);
    let sets = 4096 / apart;
    (row.to == 1 && column.from == 1 && row.size <= 4 * sets).then_some(column)
}

/// A column of the source, whose elements are `step` apart.
fn copy_column<const N: usize>(to: &mut [[u8; N]], from: &[[u8; N]], step: usize) {
    let mut rest = from;
    let (fours, last) = to.as_chunks_mut::<4>();
    for four in fours {
        // One look at the bounds for all of them.
        let from = &rest[..3 * step + 1];
        // Four moves: an array at once would be put together in a vector first.
        four[0] = from[0];
        four[1] = from[step];
        four[2] = from[2 * step];
        four[3] = from[3 * step];
        rest = if rest.len() > 4 * step {
            &rest[4 * step..]
        } else {
            &[]
        };
    }
    for (to, from) in last.iter_mut().zip(rest.iter().step_by(step)) {
        *to = *from;
    }
}

/// Rows that are packed on both sides. A short one is a move or two of a known width
/// and not a call.
fn copy_rows<const N: usize>(
    loops: &Loops,
    row_bytes: usize,
    to: &mut [[u8; N]],
    from: &[[u8; N]],
) {
    let (to, from) = (to.as_flattened_mut(), from.as_flattened());
    match row_bytes {
        2 => copy_rows_of::<2>(loops, N, to, from),
        4 => copy_rows_of::<4>(loops, N, to, from),
        6 => copy_rows_of::<6>(loops, N, to, from),
        8 => copy_rows_of::<8>(loops, N, to, from),
        12 => copy_rows_of::<12>(loops, N, to, from),
        16 => copy_rows_of::<16>(loops, N, to, from),
        32 => copy_rows_of::<32>(loops, N, to, from),
        64 => copy_rows_of::<64>(loops, N, to, from),
        _ => loops.for_each(1, |to_at, from_at| {
            let to = &mut to[to_at * N..][..row_bytes];
            to.copy_from_slice(&from[from_at * N..][..row_bytes]);
        }),
    }
}

fn copy_rows_of<const ROW: usize>(loops: &Loops, width: usize, to: &mut [u8], from: &[u8]) {
    loops.for_each(1, |to_at, from_at| {
        let to = to[to_at * width..].first_chunk_mut::<ROW>();
        let from = from[from_at * width..].first_chunk::<ROW>();
        if let (Some(to), Some(from)) = (to, from) {
            *to = *from;
        }
    });
}
