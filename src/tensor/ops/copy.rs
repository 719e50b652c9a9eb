use super::runs::for_each_run;
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
/// # Errors
/// [`DTypeMismatch`](TensorError::DTypeMismatch),
/// [`ShapeMismatch`](TensorError::ShapeMismatch),
/// [`Overlap`](TensorError::Overlap), and [`Borrow`](TensorError::Borrow) where somebody
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
    let one_storage = dst.storage().is_same(src.storage());
    if one_storage && dst.byte_offset() == src.byte_offset() && same_steps(dst, src) {
        return Ok(());
    }
    let _writes = dst.storage().exclude()?;
    // Within one storage the one writer borrow is for both sides.
    let _reads = if one_storage {
        None
    } else {
        Some(src.storage().share()?)
    };
    let packed = dst.is_contiguous() && src.is_contiguous();
    if one_storage && !packed && dst.overlaps(src) {
        return Err(TensorError::Overlap {
            storage: dst.storage().id(),
            first: 0,
            second: 1,
        });
    }
    let width = dst.dtype().bytes();
    let (to, from) = (dst.first_byte(), src.first_byte());
    for_each_run(
        dst.shape(),
        dst.strides(),
        src.strides(),
        |to_at, from_at, elements| {
            // SAFETY: an element of the view, so inside its storage.
            let to = unsafe { to.add(to_at * width) };
            // SAFETY: an element of that view, so inside its storage.
            let from = unsafe { from.add(from_at * width) };
            // SAFETY: a run is inside both views; `dst` is ours alone and nobody
            // writes `src` while the two borrows live. The ranges may meet only
            // where both tensors are one run, and then this moves them as a whole.
            unsafe { to.copy_from(from, elements * width) };
        },
    );
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
