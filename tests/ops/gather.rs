//! `gather_rows`.

use tenslab::memory::{BorrowError, cpu};
use tenslab::tensor::TensorError;
use tenslab::types::TypeError;
use tenslab::{DType, Tensor, ops};

use super::{counted, elements};

#[test]
fn rows_come_in_the_order_they_are_named_and_as_often() {
    let table = counted(&[4, 3]);
    let dst = Tensor::zeros([5, 3], DType::U16, cpu()).unwrap();
    ops::gather_rows(&dst, &table, &[3, 0, 3, 1, 2]).unwrap();
    assert_eq!(
        elements(&dst),
        [9, 10, 11, 0, 1, 2, 9, 10, 11, 3, 4, 5, 6, 7, 8]
    );
}

#[test]
fn a_row_is_everything_behind_the_first_dimension() {
    let (vector, cube) = (counted(&[5]), counted(&[3, 2, 2]));
    let dst = Tensor::zeros([2], DType::U16, cpu()).unwrap();
    ops::gather_rows(&dst, &vector, &[4, 1]).unwrap();
    assert_eq!(elements(&dst), [4, 1]);
    let dst = Tensor::zeros([2, 2, 2], DType::U16, cpu()).unwrap();
    ops::gather_rows(&dst, &cube, &[2, 0]).unwrap();
    assert_eq!(elements(&dst), [8, 9, 10, 11, 0, 1, 2, 3]);
}

#[test]
fn both_sides_may_be_strided_and_of_any_width() {
    for dtype in [DType::U8, DType::BF16, DType::I32, DType::F64] {
        let table = ops::arange(0, 60, 1, dtype, cpu())
            .unwrap()
            .reshape([6, 10])
            .unwrap();
        let table = table.slice(1, 2, 5).unwrap();
        let whole = Tensor::zeros([3, 4], dtype, cpu()).unwrap();
        let dst = whole.transpose(0, 1).unwrap().slice(0, 1, 3).unwrap();
        ops::gather_rows(&dst, &table, &[5, 1]).unwrap();
        let row = |row: usize| table.slice(0, row, row + 1).unwrap();
        let expected = ops::cat(&[&row(5), &row(1)], 0, cpu()).unwrap();
        assert_eq!(ops::allclose(&dst, &expected, None).unwrap().mismatches, 0);
        let beside = whole.slice(1, 3, 4).unwrap();
        let zeros = ops::zeros([3, 1], dtype, cpu()).unwrap();
        assert!(ops::allclose(&beside, &zeros, None).unwrap().is_close());
    }
}

#[test]
fn no_rows_and_rows_of_nothing_are_gathered() {
    let dst = Tensor::zeros([0, 3], DType::U16, cpu()).unwrap();
    ops::gather_rows(&dst, &counted(&[4, 3]), &[]).unwrap();
    let dst = Tensor::zeros([2, 0], DType::U16, cpu()).unwrap();
    ops::gather_rows(&dst, &counted(&[4, 0]), &[3, 0]).unwrap();
    ops::gather_rows(
        &Tensor::zeros([0, 3], DType::U16, cpu()).unwrap(),
        &counted(&[0, 3]),
        &[],
    )
    .unwrap();
}

#[test]
fn a_row_that_is_not_there_is_named_and_nothing_is_written() {
    let (dst, table) = (counted(&[3, 3]), counted(&[4, 3]));
    let error = ops::gather_rows(&dst, &table, &[3, 4, u32::MAX]).unwrap_err();
    assert_eq!(
        error,
        TensorError::NoSuchRow {
            row: 4,
            rows: 4,
            position: 1
        }
    );
    assert_eq!(
        error.to_string(),
        "row 4, at position 1 of the list: the table has 4"
    );
    assert_eq!(elements(&dst), elements(&counted(&[3, 3])));
}

#[test]
fn the_target_has_the_rows_and_the_dtype_of_the_table() {
    let table = counted(&[4, 3]);
    for dims in [&[2, 2][..], &[3, 3], &[2], &[2, 3, 1]] {
        let dst = counted(dims);
        let shapes = Box::new((*dst.shape(), [2, 3].into()));
        let error = ops::gather_rows(&dst, &table, &[0, 1]).unwrap_err();
        assert_eq!(error, TensorError::ShapeMismatch { shapes });
    }
    let dst = Tensor::zeros([2, 3], DType::I16, cpu()).unwrap();
    let (asked, found) = (DType::U16, DType::I16);
    let error = ops::gather_rows(&dst, &table, &[0, 1]).unwrap_err();
    assert_eq!(error, TensorError::DTypeMismatch { asked, found });
    let error = ops::gather_rows(&counted(&[]), &counted(&[]), &[0]).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 0, rank: 0 });
    // No target could have the shape: said before its own is looked at.
    let none = Tensor::zeros([0, 1 << 62], DType::U16, cpu()).unwrap();
    let too_many = TypeError::TooManyElements {
        rank: 2,
        index: 1,
        dim: 1 << 62,
    };
    let error = ops::gather_rows(&none, &none, &[0, 0]).unwrap_err();
    assert_eq!(error, too_many.into());
}

#[test]
fn within_one_storage_the_two_may_not_meet() {
    let whole = counted(&[6, 2]);
    let (top, bottom) = (whole.slice(0, 0, 2).unwrap(), whole.slice(0, 2, 6).unwrap());
    ops::gather_rows(&top, &bottom, &[3, 3]).unwrap();
    assert_eq!(elements(&whole), [10, 11, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11]);
    let error = ops::gather_rows(&top, &whole, &[5, 4]).unwrap_err();
    let storage = whole.storage().id();
    assert_eq!(
        error,
        TensorError::Overlap {
            storage,
            first: 0,
            second: 1
        }
    );
    // Two columns share no element, but each reaches into the other's bytes.
    let (left, right) = (whole.slice(1, 0, 1).unwrap(), whole.slice(1, 1, 2).unwrap());
    let error = ops::gather_rows(&left, &right, &[0; 6]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the bytes from first to last element of tensors 0 and 1 meet in {storage}")
    );
}

#[test]
fn rows_are_not_gathered_where_somebody_is_at_the_bytes() {
    let (dst, table) = (counted(&[1, 3]), counted(&[4, 3]));
    let writer = table.write::<u16>().unwrap();
    let busy = TensorError::from(BorrowError::Writing {
        storage: table.storage().id(),
    });
    assert_eq!(ops::gather_rows(&dst, &table, &[0]).unwrap_err(), busy);
    drop(writer);
    table.freeze().unwrap();
    ops::gather_rows(&dst, &table, &[2]).unwrap();
    let frozen = TensorError::from(BorrowError::Frozen {
        storage: table.storage().id(),
    });
    assert_eq!(
        ops::gather_rows(&table, &counted(&[4, 3]), &[0, 0, 0, 0]).unwrap_err(),
        frozen
    );
}
