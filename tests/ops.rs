//! `copy`, `cast` and `Display`, on packed and on strided tensors.
//!
//! ```text
//!   copy   by logical index          cast   f32 ─ f16 ─ bf16, and each to itself
//!     [0 1 2 3]      [. 0 1 .]         every bit pattern, through a strided view
//!     [4 5 6 7]  ─▶  [. 4 5 .]         signalling NaNs stay signalling
//! ```
//!
//! The conversions themselves are checked in `tests/half.rs`; here it is that `cast`
//! uses them and nothing else, whatever the layout.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use tenslab::memory::{AllocError, BorrowError, SharedAllocator, SlabAllocator, Storage, cpu};
use tenslab::tensor::TensorError;
use tenslab::types::half::{
    bf16_bits_to_f32_bits, f16_bits_to_f32_bits, f32_bits_to_bf16_bits, f32_bits_to_f16_bits,
};
use tenslab::{Bool8, DType, Element, Shape, Tensor, bf16, f16, ops};

fn tensor<T: Element>(dims: &[usize], elements: &[T]) -> Tensor {
    let shape = Shape::from_dims(dims).unwrap();
    let tensor = Tensor::empty(shape, T::DTYPE, cpu()).unwrap();
    tensor.write::<T>().unwrap().copy_from_slice(elements);
    tensor
}

fn counted(dims: &[usize]) -> Tensor {
    let numel: usize = dims.iter().product();
    tensor::<u16>(
        dims,
        &(0..numel)
            .map(|at| u16::try_from(at).unwrap())
            .collect::<Vec<_>>(),
    )
}

fn elements(tensor: &Tensor) -> Vec<u16> {
    tensor.read::<u16>().unwrap().to_vec()
}

#[test]
fn packed_tensors_are_copied_as_a_whole() {
    let src = counted(&[3, 4]);
    let dst = Tensor::zeros([3, 4], DType::U16, cpu()).unwrap();
    ops::copy(&dst, &src).unwrap();
    assert_eq!(elements(&dst), elements(&src));
    src.write::<u16>().unwrap()[0] = 99;
    assert_eq!(dst.item::<u16>(&[0, 0]), 0, "a copy shares nothing");
}

#[test]
fn only_the_elements_of_a_strided_target_are_written() {
    let src = counted(&[2, 4]);
    let whole = tensor::<u16>(&[4, 4], &[77; 16]);
    let dst = whole.slice(0, 1, 3).unwrap().slice(1, 1, 3).unwrap();
    ops::copy(&dst, &src.slice(1, 2, 4).unwrap()).unwrap();
    #[rustfmt::skip]
    assert_eq!(elements(&whole), [
        77, 77, 77, 77,
        77,  2,  3, 77,
        77,  6,  7, 77,
        77, 77, 77, 77,
    ]);
}

/// Against the slow way, element by element, over all boxes of two shapes.
#[test]
fn every_pair_of_layouts_copies_by_logical_index() {
    let src = counted(&[3, 4, 5]);
    for (from, to) in [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)] {
        for dim in 0..3 {
            let part = src.slice(dim, from, to).unwrap();
            for other in 0..3 {
                // A target whose layout is cut out of a larger one along another dimension.
                let mut dims = part.shape().dims().to_vec();
                dims[other] += 2;
                let whole = tensor::<u16>(&dims, &vec![999; dims.iter().product()]);
                let size = part.shape().dim(other);
                let dst = whole.slice(other, 1, 1 + size).unwrap();
                ops::copy(&dst, &part).unwrap();
                let mut written = 0;
                for_each_index(part.shape().dims(), |index| {
                    assert_eq!(dst.item::<u16>(index), part.item::<u16>(index), "{index:?}");
                    written += 1;
                });
                let untouched = elements(&whole).iter().filter(|&&e| e == 999).count();
                assert_eq!(untouched, whole.numel() - written);
            }
        }
    }
}

fn for_each_index(dims: &[usize], mut visit: impl FnMut(&[usize])) {
    for mut at in 0..dims.iter().product() {
        let mut index = vec![0; dims.len()];
        for (dim, &size) in dims.iter().enumerate().rev() {
            index[dim] = at % size;
            at /= size;
        }
        visit(&index);
    }
}

#[test]
fn a_copy_within_one_storage_moves_what_was_there_before() {
    let src = counted(&[10]);
    let (low, high) = (src.slice(0, 0, 8).unwrap(), src.slice(0, 2, 10).unwrap());
    ops::copy(&high, &low).unwrap();
    assert_eq!(elements(&src), [0, 1, 0, 1, 2, 3, 4, 5, 6, 7]);
    ops::copy(&low, &high).unwrap();
    assert_eq!(elements(&src), [0, 1, 2, 3, 4, 5, 6, 7, 6, 7]);
    // Strided views that do not meet.
    let matrix = counted(&[4, 3]);
    let (top, bottom) = (
        matrix.slice(0, 0, 2).unwrap(),
        matrix.slice(0, 2, 4).unwrap(),
    );
    ops::copy(
        &top.slice(1, 0, 1).unwrap(),
        &bottom.slice(1, 2, 3).unwrap(),
    )
    .unwrap();
    assert_eq!(elements(&matrix), [8, 1, 2, 11, 4, 5, 6, 7, 8, 9, 10, 11]);
}

#[test]
fn a_copy_of_a_view_onto_itself_does_nothing_and_never_fails() {
    let matrix = counted(&[4, 4]);
    let view = matrix.slice(1, 1, 3).unwrap();
    ops::copy(&view, &view.clone()).unwrap();
    ops::copy(&matrix, &matrix.reshape([4, 4]).unwrap()).unwrap();
    // The same elements under another stride, of a dimension that is never stepped.
    let one = matrix.reshape([4, 4, 1]).unwrap().slice(1, 0, 1).unwrap();
    let two = matrix.reshape([4, 2, 2]).unwrap().slice(1, 0, 1).unwrap();
    let two = two.slice(2, 0, 1).unwrap();
    assert_eq!(one.shape(), two.shape());
    assert_ne!(one.strides(), two.strides());
    ops::copy(&one, &two).unwrap();
    matrix.freeze().unwrap();
    ops::copy(&view, &view).unwrap();
    assert_eq!(elements(&matrix), elements(&counted(&[4, 4])));
}

#[test]
fn strided_views_that_meet_are_refused() {
    let matrix = counted(&[4, 4]);
    let storage = matrix.storage().id();
    let (left, right) = (
        matrix.slice(1, 0, 2).unwrap(),
        matrix.slice(1, 1, 3).unwrap(),
    );
    let overlap = TensorError::Overlap {
        storage,
        first: 0,
        second: 1,
    };
    assert_eq!(ops::copy(&left, &right).unwrap_err(), overlap);
    assert_eq!(
        elements(&matrix),
        elements(&counted(&[4, 4])),
        "nothing was moved"
    );
    assert!(matrix.write::<u16>().is_ok(), "and nothing is borrowed");
}

#[test]
fn a_copy_converts_and_broadcasts_nothing() {
    let dst = counted(&[2, 3]);
    let signed = dst.view_as_dtype(DType::I16).unwrap();
    let mismatch = TensorError::DTypeMismatch {
        asked: DType::I16,
        found: DType::U16,
    };
    assert_eq!(ops::copy(&dst, &signed).unwrap_err(), mismatch);
    for dims in [&[3, 2][..], &[6], &[2, 1], &[1, 3], &[2, 3, 1]] {
        let src = counted(dims);
        let shapes = Box::new((*dst.shape(), *src.shape()));
        let mismatch = TensorError::ShapeMismatch { shapes };
        assert_eq!(ops::copy(&dst, &src).unwrap_err(), mismatch);
    }
}

#[test]
fn a_copy_is_refused_where_somebody_is_at_the_bytes() {
    let (dst, src) = (counted(&[4]), counted(&[4]));
    let reader = dst.read::<u16>().unwrap();
    let (storage, readers) = (dst.storage().id(), 1);
    let error = ops::copy(&dst, &src).unwrap_err();
    assert_eq!(error, BorrowError::Reading { storage, readers }.into());
    drop(reader);
    let writer = src.write::<u16>().unwrap();
    let storage = src.storage().id();
    let error = ops::copy(&dst, &src).unwrap_err();
    assert_eq!(error, BorrowError::Writing { storage }.into());
    let error = ops::cast(&src, DType::U16, cpu()).unwrap_err();
    assert_eq!(error, BorrowError::Writing { storage }.into());
    drop(writer);
    let _reader = src.read::<u16>().unwrap();
    ops::copy(&dst, &src).unwrap();
    dst.freeze().unwrap();
    let storage = dst.storage().id();
    let error = ops::copy(&dst, &src).unwrap_err();
    assert_eq!(error, BorrowError::Frozen { storage }.into());
}

#[test]
fn scalars_tensors_without_elements_and_misaligned_ones_are_copied_too() {
    let (dst, src) = (tensor::<f64>(&[], &[1.0]), tensor::<f64>(&[], &[2.5]));
    ops::copy(&dst, &src).unwrap();
    assert_eq!(dst.item::<f64>(&[]), 2.5);
    ops::copy(&counted(&[2, 0]), &counted(&[2, 0])).unwrap();
    let storage = Storage::from(cpu().allocate_zeroed(64, 64).unwrap());
    let odd = Tensor::from_storage(&storage, 3, [2, 2], DType::U16).unwrap();
    ops::copy(&odd, &counted(&[2, 2])).unwrap();
    assert_eq!(odd.item::<u16>(&[1, 1]), 3);
    ops::copy(&counted(&[2, 1]), &odd.slice(1, 1, 2).unwrap()).unwrap();
}

/// The middle column of three: a strided view of all these elements.
fn middle_column<T: Element>(all: &[T]) -> Tensor {
    let padded: Vec<T> = all.iter().flat_map(|&e| [all[0], e, all[0]]).collect();
    let view = tensor::<T>(&[all.len(), 3], &padded)
        .slice(1, 1, 2)
        .unwrap();
    assert!(!view.is_contiguous());
    view
}

fn same_bits<S: Element, D: Element>(all: &[S], expected: &[D], to_bits: fn(&D) -> u32) {
    let packed = tensor::<S>(&[all.len(), 1], all);
    for src in [packed, middle_column(all)] {
        let cast = ops::cast(&src, D::DTYPE, cpu()).unwrap();
        assert!(cast.is_contiguous());
        assert_eq!((cast.shape(), cast.dtype()), (src.shape(), D::DTYPE));
        assert!(!cast.storage().is_same(src.storage()));
        let found = cast.read::<D>().unwrap();
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let (from, to) = (S::DTYPE, D::DTYPE);
            assert_eq!(
                to_bits(found),
                to_bits(expected),
                "{from} to {to}, element {at}"
            );
        }
    }
}

#[test]
fn every_cast_of_every_half_is_exact_bit_for_bit() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = bits.iter().copied().map(f16::from_bits).collect();
    let brains: Vec<bf16> = bits.iter().copied().map(bf16::from_bits).collect();
    let as_f16 = |half: &f16| u32::from(half.to_bits());
    let as_bf16 = |half: &bf16| u32::from(half.to_bits());
    let wide = |bits: u32| f32::from_bits(bits);

    let from_f16: Vec<u32> = bits
        .iter()
        .map(|&bits| f16_bits_to_f32_bits(bits))
        .collect();
    let from_bf16: Vec<u32> = bits
        .iter()
        .map(|&bits| bf16_bits_to_f32_bits(bits))
        .collect();
    let widened: Vec<f32> = from_f16.iter().copied().map(wide).collect();
    same_bits(&halves, &widened, |element| element.to_bits());
    same_bits(&widened, &halves, as_f16);
    let to_bf16 = |&bits: &u32| bf16::from_bits(f32_bits_to_bf16_bits(bits));
    same_bits(
        &halves,
        &from_f16.iter().map(to_bf16).collect::<Vec<_>>(),
        as_bf16,
    );

    let widened: Vec<f32> = from_bf16.iter().copied().map(wide).collect();
    same_bits(&brains, &widened, |element| element.to_bits());
    same_bits(&widened, &brains, as_bf16);
    let to_f16 = |&bits: &u32| f16::from_bits(f32_bits_to_f16_bits(bits));
    same_bits(
        &brains,
        &from_bf16.iter().map(to_f16).collect::<Vec<_>>(),
        as_f16,
    );

    same_bits(&halves, &halves, as_f16);
    same_bits(&brains, &brains, as_bf16);
}

#[test]
fn a_signalling_nan_stays_signalling_in_a_strided_cast() {
    let narrow = middle_column(&[f16::from_bits(0x7d00), f16::from_bits(0xfd55)]);
    let wide = ops::cast(&narrow, DType::F32, cpu()).unwrap();
    let bits = wide.view_as_dtype(DType::U32).unwrap();
    assert_eq!(*bits.read::<u32>().unwrap(), [0x7fa0_0000, 0xffaa_a000]);
    let back = ops::cast(&wide, DType::F16, cpu()).unwrap();
    let bits = back.view_as_dtype(DType::U16).unwrap();
    assert_eq!(*bits.read::<u16>().unwrap(), [0x7d00, 0xfd55]);
}

#[test]
fn a_cast_to_the_same_dtype_is_a_copy_of_any_dtype() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let src = Tensor::zeros([3, 4], dtype, cpu()).unwrap();
        let cast = ops::cast(&src.slice(1, 1, 3).unwrap(), dtype, cpu()).unwrap();
        assert!(cast.is_contiguous() && !cast.storage().is_same(src.storage()));
        assert_eq!(cast.shape(), &Shape::from([3, 2]));
    }
    let src = middle_column(&[1_i64, -2, i64::MIN]);
    let cast = ops::cast(&src, DType::I64, cpu()).unwrap();
    assert_eq!(*cast.read::<i64>().unwrap(), [1, -2, i64::MIN]);
}

#[test]
fn casts_that_are_not_there_are_refused_before_anything_is_allocated() {
    let slab = SharedAllocator::new(SlabAllocator::new(64, 0).unwrap());
    let floats = [DType::F32, DType::F16, DType::BF16];
    for from in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let src = Tensor::zeros([2], from, cpu()).unwrap();
        for to in DType::ALL {
            let error = ops::cast(&src, to, &slab).unwrap_err();
            if to.is_reserved() {
                assert_eq!(error, TensorError::Unimplemented { dtype: to });
            } else if from == to || (floats.contains(&from) && floats.contains(&to)) {
                assert_eq!(error, AllocError::Exhausted { blocks: 0 }.into());
            } else {
                assert_eq!(error, TensorError::UnsupportedCast { from, to });
            }
        }
    }
}

#[test]
fn small_tensors_are_shown_whole() {
    let header = |shape, dtype| format!("Tensor(shape={shape}, dtype={dtype}, device=cpu)\n");
    let scalar = tensor::<f32>(&[], &[1.5]);
    assert_eq!(scalar.to_string(), header("[]", "float32") + "1.5");
    let row = tensor::<i32>(&[3], &[1, -2, 3]);
    assert_eq!(row.to_string(), header("[3]", "int32") + "[1, -2, 3]");
    let matrix = counted(&[2, 3]);
    assert_eq!(
        matrix.to_string(),
        header("[2, 3]", "uint16") + "[[0, 1, 2],\n [3, 4, 5]]"
    );
    let cube = counted(&[2, 2, 2]);
    let text = "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]";
    assert_eq!(cube.to_string(), header("[2, 2, 2]", "uint16") + text);
    let column = matrix.slice(1, 1, 2).unwrap();
    assert_eq!(
        column.to_string(),
        header("[2, 1]", "uint16") + "[[1],\n [4]]"
    );
    let booleans = tensor::<Bool8>(&[2], &[Bool8::new(true), Bool8::new(false)]);
    assert_eq!(
        booleans.to_string(),
        header("[2]", "bool") + "[true, false]"
    );
}

#[test]
fn numbers_keep_four_digits_and_never_hide() {
    let values = [
        0.0,
        -0.0,
        1.0,
        0.1,
        1.0 / 3.0,
        1e-5,
        -2.5e-7,
        123_456.78,
        1e8,
        -3.4e38,
        f32::INFINITY,
        f32::NAN,
    ];
    let text = tensor::<f32>(&[values.len()], &values).to_string();
    assert_eq!(
        text.lines().nth(1).unwrap(),
        "[0., -0., 1., 0.1, 0.3333, 1.0000e-5, -2.5000e-7, 123456.7812, 1.0000e8, -3.4000e38, \
         inf, NaN]"
    );
    let halves = tensor::<f16>(&[1], &[f16::from_bits(0x3555)]);
    assert!(halves.to_string().ends_with("[0.3333]"));
}

#[test]
fn large_tensors_show_three_elements_at_each_edge() {
    let row = counted(&[1001]);
    assert!(
        row.to_string()
            .ends_with("\n[0, 1, 2, ..., 998, 999, 1000]")
    );
    assert!(
        counted(&[1000]).to_string().contains("499, 500, 501"),
        "1,000 are shown whole"
    );
    let matrix = counted(&[100, 20]).to_string();
    let rows: Vec<&str> = matrix.lines().skip(1).collect();
    assert_eq!(rows[0], "[[0, 1, 2, ..., 17, 18, 19],");
    assert_eq!(rows[3], " ...,");
    assert_eq!(rows[6], " [1980, 1981, 1982, ..., 1997, 1998, 1999]]");
    assert_eq!(rows.len(), 7);
}

#[test]
fn what_cannot_be_shown_is_not_waited_for() {
    let matrix = counted(&[2, 2]);
    let guard = matrix.write::<u16>().unwrap();
    let text = "Tensor(shape=[2, 2], dtype=uint16, device=cpu)\n<borrowed>";
    assert_eq!(matrix.to_string(), text);
    drop(guard);
    let _reader = matrix.read::<u16>().unwrap();
    assert!(matrix.to_string().ends_with("[[0, 1],\n [2, 3]]"));
    // No elements in very many rows: shown at once.
    let empty = Tensor::zeros([1 << 62, 0], DType::F32, cpu()).unwrap();
    assert!(empty.to_string().ends_with("\n[]"));
}
