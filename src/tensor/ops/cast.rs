use std::ptr::NonNull;

use super::runs::for_each_run;
use crate::memory::SharedAllocator;
use crate::tensor::{Tensor, TensorError};
use crate::types::half::{
    bf16_bits_to_f32_bits, f16_bits_to_f32_bits, f32_bits_to_bf16_bits, f32_bits_to_f16_bits,
};
use crate::types::{DType, Element, bf16, f16};

/// A floating-point element, as the bits of the `f32` it stands for.
///
/// Bits and not values: a signalling NaN that goes through an `f32` operation comes out
/// quiet, and here it does not.
trait Float: Element {
    fn to_f32_bits(self) -> u32;
    fn from_f32_bits(bits: u32) -> Self;
}

impl Float for f32 {
    fn to_f32_bits(self) -> u32 {
        self.to_bits()
    }

    fn from_f32_bits(bits: u32) -> Self {
        f32::from_bits(bits)
    }
}

impl Float for f16 {
    fn to_f32_bits(self) -> u32 {
        f16_bits_to_f32_bits(self.to_bits())
    }

    fn from_f32_bits(bits: u32) -> Self {
        f16::from_bits(f32_bits_to_f16_bits(bits))
    }
}

impl Float for bf16 {
    fn to_f32_bits(self) -> u32 {
        bf16_bits_to_f32_bits(self.to_bits())
    }

    fn from_f32_bits(bits: u32) -> Self {
        bf16::from_bits(f32_bits_to_bf16_bits(bits))
    }
}

/// The elements of `src` as another dtype, in a new contiguous tensor.
///
/// Always new, also for the same dtype: then it is a deep copy. Narrowing rounds to
/// nearest, ties to even; too large becomes infinity; a NaN keeps what fits of its
/// payload and is never quieted ([`types::half`](crate::types::half)).
///
/// ```
/// use tenslab::{DType, Tensor, bf16, memory, ops};
///
/// let wide = Tensor::zeros([2, 3], DType::F32, memory::cpu())?;
/// wide.write::<f32>()?.fill(1.5);
/// let narrow = ops::cast(&wide, DType::BF16, memory::cpu())?;
/// assert_eq!(narrow.item::<bf16>(&[1, 2]).to_bits(), 0x3fc0);
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// # Errors
/// [`Unimplemented`](TensorError::Unimplemented) for a reserved target, before anything
/// else; [`UnsupportedCast`](TensorError::UnsupportedCast) outside float32, float16 and
/// bfloat16; the allocator's error; [`Borrow`](TensorError::Borrow) while somebody writes
/// to `src`.
pub fn cast(
    src: &Tensor,
    dtype: DType,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    if dtype.is_reserved() {
        return Err(TensorError::Unimplemented { dtype });
    }
    let convert = match (src.dtype(), dtype) {
        (from, to) if from == to => None,
        (DType::F32, DType::F16) => Some(convert::<f32, f16> as Convert),
        (DType::F32, DType::BF16) => Some(convert::<f32, bf16> as Convert),
        (DType::F16, DType::F32) => Some(convert::<f16, f32> as Convert),
        (DType::F16, DType::BF16) => Some(convert::<f16, bf16> as Convert),
        (DType::BF16, DType::F32) => Some(convert::<bf16, f32> as Convert),
        (DType::BF16, DType::F16) => Some(convert::<bf16, f16> as Convert),
        (from, to) => return Err(TensorError::UnsupportedCast { from, to }),
    };
    let dst = Tensor::empty(*src.shape(), dtype, allocator)?;
    match convert {
        None => super::copy(&dst, src)?,
        Some(convert) => convert(&dst, src)?,
    }
    Ok(dst)
}

type Convert = fn(&Tensor, &Tensor) -> Result<(), TensorError>;

fn convert<S: Float, D: Float>(dst: &Tensor, src: &Tensor) -> Result<(), TensorError> {
    let mut to = dst.write::<D>()?;
    let _reads = src.storage().share()?;
    let from: NonNull<S> = src.first_byte().cast();
    for_each_run(
        dst.shape(),
        dst.strides(),
        src.strides(),
        |to_at, from_at, elements| {
            for (step, to) in to[to_at..to_at + elements].iter_mut().enumerate() {
                // SAFETY: an element of the view, so inside its storage.
                let place = unsafe { from.add(from_at + step) };
                // SAFETY: an element of the view, so readable; initialised, every pattern
                // is an `S`, and nobody writes while the borrow lives. Unaligned, because
                // a view may begin anywhere.
                let element = unsafe { place.read_unaligned() };
                *to = D::from_f32_bits(element.to_f32_bits());
            }
        },
    );
    Ok(())
}
