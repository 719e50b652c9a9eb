//! [`cast`]: the elements of a view as another dtype, in a new packed tensor.
//!
//! ```text
//!            f32  f16  bf16                 f64  integers
//!   f32      bits of an f32, as             through f64, then f32, then half
//!   f16      integers: exact,
//!   bf16     NaNs as they are
//!   f64      through f64, then f32, then half
//!   integers through f64 …                  cut towards zero; must fit
//! ```
//!
//! One way for each pair, so the result does not depend on layout, CPU or threads. The
//! source is read in rows of the (packed) target, so each conversion is one
//! loop over two slices, whatever the strides.

use super::loops::Loops;
use super::number::{Numeric, Wide};
use super::rows::for_each_row;
use super::span::{Packed, Reading, Word};
#[cfg(feature = "rayon")]
use super::threads;
use crate::memory::SharedAllocator;
use crate::tensor::{Tensor, TensorError};
use crate::types::half::{
    bf16_bits_to_f32_bits, f16_bits_to_f32_bits, f32_bits_to_bf16_bits, f32_bits_to_f16_bits,
    narrow_bf16, narrow_f16, widen_bf16, widen_f16,
};
use crate::types::{DType, Element, MAX_RANK, bf16, f16};

/// Converts a slice into another of the same length, up to the first element that does
/// not fit: its position.
type Convert<S, D> = fn(&[S], &mut [D]) -> Option<usize>;

/// The elements of `src` as another dtype, in a new contiguous tensor.
///
/// Always new, also for the same dtype: then it is a deep copy. Booleans are neither
/// numbers here nor made of them, and are not cast to themselves either: for a deep copy of
/// any dtype there are [`Tensor::empty`] and [`ops::copy`](super::copy()).
///
/// - To a float: the value as `f64`, rounded to `f32` and that to a half, each to nearest
///   and ties to even; too large becomes infinity. Between `f32`, `f16` and `bf16` bits
///   are converted and no arithmetic is done, so a NaN keeps what fits of its payload
///   and is never quieted ([`types::half`](crate::types::half)). With an `f64` on either
///   side a NaN stays one, its payload may not.
/// - To an integer: cut towards zero. NaN, infinities and what is out of range are an
///   error that names the first such element.
///
/// ```
/// use tenslab::{DType, Tensor, bf16, memory, ops};
///
/// let wide = Tensor::zeros([2, 3], DType::F32, memory::cpu())?;
/// wide.write::<f32>()?.fill(1.5);
/// let narrow = ops::cast(&wide, DType::BF16, memory::cpu())?;
/// assert_eq!(narrow.item::<bf16>(&[1, 2]).to_bits(), 0x3fc0);
///
/// wide.write::<f32>()?[4] = 1e10;
/// let error = ops::cast(&wide, DType::I32, memory::cpu()).unwrap_err();
/// assert_eq!(error.to_string(), "10000000000 at [1, 1] is no int32");
///
/// let mask = ops::full([4], true, DType::Bool, memory::cpu())?;
/// assert!(ops::cast(&mask, DType::Bool, memory::cpu()).is_err());
/// ops::copy(&Tensor::empty([4], DType::Bool, memory::cpu())?, &mask)?;
/// # Ok::<(), tenslab::tensor::TensorError>(())
/// ```
///
/// Cost: the new tensor, and no heap block besides. With the feature `rayon`, large ones
/// are shared among the threads of the caller's pool.
///
/// # Errors
/// [`Unimplemented`](TensorError::Unimplemented) for a reserved target, before anything
/// else; [`UnsupportedCast`](TensorError::UnsupportedCast) from or to booleans; as
/// [`Tensor::empty`]; [`Borrow`](TensorError::Borrow) while somebody writes to `src`;
/// [`ElementOutOfRange`](TensorError::ElementOutOfRange).
pub fn cast(
    src: &Tensor,
    dtype: DType,
    allocator: &SharedAllocator,
) -> Result<Tensor, TensorError> {
    if dtype.is_reserved() {
        return Err(TensorError::Unimplemented { dtype });
    }
    let from = src.dtype();
    if from == DType::Bool || dtype == DType::Bool {
        return Err(TensorError::UnsupportedCast { from, to: dtype });
    }
    let dst = Tensor::empty(*src.shape(), dtype, allocator)?;
    match from {
        from if from == dtype => super::copy(&dst, src),
        DType::F32 => match dtype {
            DType::F16 => convert(&dst, src, |from, to: &mut [f16]| bits(narrow_f16, from, to)),
            DType::BF16 => convert(&dst, src, |from, to: &mut [bf16]| {
                bits(narrow_bf16, from, to)
            }),
            _ => by_value::<f32>(&dst, src),
        },
        DType::F16 => match dtype {
            DType::F32 => convert(&dst, src, |from, to| bits(widen_f16, from, to)),
            DType::BF16 => convert(&dst, src, |from, to| bits(f16_to_bf16, from, to)),
            _ => by_value::<f16>(&dst, src),
        },
        DType::BF16 => match dtype {
            DType::F32 => convert(&dst, src, |from, to| bits(widen_bf16, from, to)),
            DType::F16 => convert(&dst, src, |from, to| bits(bf16_to_f16, from, to)),
            _ => by_value::<bf16>(&dst, src),
        },
        DType::F64 => by_value::<f64>(&dst, src),
        DType::I8 => by_value::<i8>(&dst, src),
        DType::U8 => by_value::<u8>(&dst, src),
        DType::I16 => by_value::<i16>(&dst, src),
        DType::U16 => by_value::<u16>(&dst, src),
        DType::I32 => by_value::<i32>(&dst, src),
        DType::U32 => by_value::<u32>(&dst, src),
        DType::I64 => by_value::<i64>(&dst, src),
        DType::U64 => by_value::<u64>(&dst, src),
        // Refused above, and of a reserved dtype there is no tensor.
        DType::Bool | DType::F8E4M3 | DType::F8E5M2 | DType::I4 => {
            Err(TensorError::UnsupportedCast { from, to: dtype })
        }
    }?;
    Ok(dst)
}

/// A conversion that every element survives.
fn bits<S, D>(convert: fn(&[S], &mut [D]), from: &[S], to: &mut [D]) -> Option<usize> {
    convert(from, to);
    None
}

fn f16_to_bf16(from: &[f16], to: &mut [bf16]) {
    for (to, from) in to.iter_mut().zip(from) {
        let wide = f16_bits_to_f32_bits(from.to_bits());
        *to = bf16::from_bits(f32_bits_to_bf16_bits(wide));
    }
}

fn bf16_to_f16(from: &[bf16], to: &mut [f16]) {
    for (to, from) in to.iter_mut().zip(from) {
        let wide = bf16_bits_to_f32_bits(from.to_bits());
        *to = f16::from_bits(f32_bits_to_f16_bits(wide));
    }
}

fn by_value<S: Numeric>(dst: &Tensor, src: &Tensor) -> Result<(), TensorError> {
    match dst.dtype() {
        DType::F32 => convert(dst, src, values::<S, f32>),
        DType::F16 => convert(dst, src, values::<S, f16>),
        DType::BF16 => convert(dst, src, values::<S, bf16>),
        DType::F64 => convert(dst, src, values::<S, f64>),
        DType::I8 => convert(dst, src, values::<S, i8>),
        DType::U8 => convert(dst, src, values::<S, u8>),
        DType::I16 => convert(dst, src, values::<S, i16>),
        DType::U16 => convert(dst, src, values::<S, u16>),
        DType::I32 => convert(dst, src, values::<S, i32>),
        DType::U32 => convert(dst, src, values::<S, u32>),
        DType::I64 => convert(dst, src, values::<S, i64>),
        DType::U64 => convert(dst, src, values::<S, u64>),
        DType::Bool | DType::F8E4M3 | DType::F8E5M2 | DType::I4 => {
            Err(TensorError::UnsupportedCast {
                from: src.dtype(),
                to: dst.dtype(),
            })
        }
    }
}

fn values<S: Numeric, D: Numeric>(from: &[S], to: &mut [D]) -> Option<usize> {
    for (at, (to, from)) in to.iter_mut().zip(from).enumerate() {
        match from.widen().narrow() {
            Some(value) => *to = value,
            None => return Some(at),
        }
    }
    None
}

fn convert<S: Numeric, D: Element>(
    dst: &Tensor,
    src: &Tensor,
    convert: Convert<S, D>,
) -> Result<(), TensorError> {
    let mut writing = dst.write::<D>()?;
    let reading = Reading::of(src)?;
    let Some(loops) = Loops::in_order(
        src.shape().dims(),
        dst.strides().values(),
        src.strides().values(),
    ) else {
        return Ok(());
    };
    let unfit = match reading.aligned::<S>() {
        Some(from) => convert_spans(&loops, &mut writing, from, convert),
        None => convert_spans(&loops, &mut writing, reading.packed::<S>(), |from, to| {
            convert_packed(from, to, convert)
        }),
    };
    match unfit {
        None => Ok(()),
        Some(position) => Err(out_of_range::<S>(src, &reading, position, D::DTYPE)),
    }
}

/// The first position in `to` whose element does not fit, if there is one.
fn convert_spans<S: Word, D: Element>(
    loops: &Loops,
    to: &mut [D],
    from: &[S],
    convert: impl Fn(&[S], &mut [D]) -> Option<usize> + Copy + Sync,
) -> Option<usize> {
    #[cfg(feature = "rayon")]
    if let Some((first, second, to_at, from_at)) = threads::halves::<S>(loops) {
        let (to, to_second) = to.split_at_mut(to_at);
        let from_second = &from[from_at..];
        let (unfit, unfit_second) = rayon::join(
            || convert_spans(&first, to, from, convert),
            || convert_spans(&second, to_second, from_second, convert),
        );
        return unfit.or(unfit_second.map(|at| to_at + at));
    }
    let mut first_unfit: Option<usize> = None;
    for_each_row::<false, _, _>(loops, from, to, |at, elements, to| {
        let unfit = convert(elements, to);
        // Rows come tile by tile, so a later one may hold an earlier element.
        if let Some(unfit) = unfit.map(|unfit| at + unfit) {
            first_unfit = Some(first_unfit.map_or(unfit, |first| first.min(unfit)));
        }
    });
    first_unfit
}

/// A misaligned source, aligned a few elements at a time.
fn convert_packed<S: Element, D: Element>(
    from: &[Packed<S>],
    to: &mut [D],
    convert: Convert<S, D>,
) -> Option<usize> {
    const PART: usize = 64;
    let &Packed(first) = from.first()?;
    let mut aligned = [first; PART];
    for (part, (from, to)) in from.chunks(PART).zip(to.chunks_mut(PART)).enumerate() {
        for (aligned, &Packed(element)) in aligned.iter_mut().zip(from) {
            *aligned = element;
        }
        if let Some(unfit) = convert(&aligned[..from.len()], to) {
            return Some(part * PART + unfit);
        }
    }
    None
}

/// The error about the element at a row-major position.
#[cold]
fn out_of_range<S: Numeric>(
    src: &Tensor,
    reading: &Reading<'_>,
    position: usize,
    dtype: DType,
) -> TensorError {
    let (mut index, rank) = ([0; MAX_RANK], src.rank());
    let (mut rest, mut element) = (position, 0);
    for dim in (0..rank).rev() {
        let size = src.shape().dim(dim);
        index[dim] = rest % size;
        rest /= size;
        element += index[dim] * src.strides().stride(dim);
    }
    let Packed(value) = reading.packed::<S>()[element];
    TensorError::ElementOutOfRange {
        value: value.number(),
        dtype,
        index: index[..rank].into(),
    }
}
