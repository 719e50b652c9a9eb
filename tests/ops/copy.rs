//! `copy`: by logical index, between any two views.

use tenslab::memory::{BorrowError, Storage, cpu};
use tenslab::tensor::TensorError;
use tenslab::{DType, Tensor, ops};

use super::{counted, elements, for_each_index, tensor};

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
