//! The views beside `slice`, `reshape` and `view_as_dtype`: other orders, fewer or more
//! dimensions, parts of a dimension. Goldens, and each error with its numbers.
//!
//! ```text
//!   [2, 3]   0 1 2      transpose(0, 1)   0 3     select(1, 2)   2 5
//!            3 4 5      strides [1, 3]    1 4     strides [3]
//!                                         2 5
//! ```
//!
//! Chains of them are compared with a model in `tests/views.rs`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use tenslab::memory::{BorrowError, SharedAllocator, SlabAllocator, cpu};
use tenslab::tensor::TensorError;
use tenslab::types::TypeError;
use tenslab::{DType, Shape, Tensor, ops};

/// 0, 1, 2, … in row-major order.
fn counted(dims: &[usize]) -> Tensor {
    let shape = Shape::from_dims(dims).unwrap();
    let tensor = Tensor::empty(shape, DType::I32, cpu()).unwrap();
    for (element, value) in tensor.write::<i32>().unwrap().iter_mut().zip(0..) {
        *element = value;
    }
    tensor
}

/// All elements of a matrix, row by row.
fn rows(matrix: &Tensor) -> Vec<Vec<i32>> {
    let dims = matrix.shape().dims();
    let row = |row| {
        (0..dims[1])
            .map(|at| matrix.item::<i32>(&[row, at]))
            .collect()
    };
    (0..dims[0]).map(row).collect()
}

/// Dims, strides and the first element's number.
fn layout(tensor: &Tensor) -> (Vec<usize>, Vec<usize>, usize) {
    let (dims, strides) = (tensor.shape().dims(), tensor.strides().values());
    (dims.to_vec(), strides.to_vec(), tensor.byte_offset() / 4)
}

#[test]
fn permute_and_transpose_reorder_shape_and_strides_and_nothing_else() {
    let cube = counted(&[2, 3, 4]);
    let view = cube.permute(&[2, 0, 1]).unwrap();
    assert_eq!(layout(&view), (vec![4, 2, 3], vec![1, 12, 4], 0));
    assert_eq!(view.item::<i32>(&[3, 1, 2]), 23);
    assert_eq!(view.item::<i32>(&[1, 0, 2]), 9);
    assert!(!view.is_contiguous() && view.storage().is_same(cube.storage()));
    assert_eq!((view.numel(), view.nbytes()), (24, 96));
    let back = view.permute(&[1, 2, 0]).unwrap();
    assert_eq!(layout(&back), layout(&cube));
    assert!(back.is_contiguous());
    assert_eq!(layout(&cube.permute(&[0, 1, 2]).unwrap()), layout(&cube));

    let matrix = counted(&[2, 3]);
    let turned = matrix.transpose(0, 1).unwrap();
    assert_eq!(layout(&turned), (vec![3, 2], vec![1, 3], 0));
    assert_eq!(rows(&turned), [[0, 3], [1, 4], [2, 5]]);
    assert_eq!(layout(&matrix.transpose(1, 1).unwrap()), layout(&matrix));
    // A write through the other order is seen.
    matrix.write::<i32>().unwrap()[5] = 50;
    assert_eq!(turned.item::<i32>(&[2, 1]), 50);
    // Dimensions of 1 are packed whatever their place.
    assert!(
        counted(&[1, 5, 1])
            .permute(&[2, 1, 0])
            .unwrap()
            .is_contiguous()
    );
    let scalar = counted(&[]);
    assert_eq!(scalar.permute(&[]).unwrap().item::<i32>(&[]), 0);
}

#[test]
fn an_order_names_each_dimension_once() {
    let cube = counted(&[2, 3, 4]);
    for named in [0, 2, 4, 9] {
        let error = cube.permute(&vec![0; named]).unwrap_err();
        assert_eq!(error, TensorError::BadOrder { named, rank: 3 });
    }
    let error = cube.permute(&[0, 3, 0]).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 3, rank: 3 });
    let error = cube.permute(&[1, 2, 1]).unwrap_err();
    assert_eq!(error, TensorError::DimTwice { dim: 1 });
    assert_eq!(error.to_string(), "an order that names dimension 1 twice");
    for (first, second, dim) in [(3, 9, 3), (0, 9, 9), (usize::MAX, 0, usize::MAX)] {
        let error = cube.transpose(first, second).unwrap_err();
        assert_eq!(error, TensorError::NoSuchDim { dim, rank: 3 });
    }
}

#[test]
fn squeeze_and_unsqueeze_leave_out_and_put_in_a_dimension_of_one() {
    let matrix = counted(&[2, 3]);
    let goldens: [(usize, Vec<usize>, Vec<usize>); 3] = [
        (0, vec![1, 2, 3], vec![6, 3, 1]),
        (1, vec![2, 1, 3], vec![3, 3, 1]),
        (2, vec![2, 3, 1], vec![3, 1, 1]),
    ];
    for (dim, dims, strides) in goldens {
        let view = matrix.unsqueeze(dim).unwrap();
        assert_eq!(layout(&view), (dims, strides, 0));
        assert!(view.is_contiguous());
        assert_eq!(layout(&view.squeeze(dim).unwrap()), layout(&matrix));
    }
    let error = matrix.unsqueeze(3).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 3, rank: 2 });
    let error = matrix.squeeze(2).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 2, rank: 2 });
    let error = matrix.squeeze(1).unwrap_err();
    assert_eq!(error, TensorError::NotOne { dim: 1, size: 3 });
    assert_eq!(
        error.to_string(),
        "dimension 1 has 3, only one of size 1 can be left out"
    );
    let none = counted(&[2, 0]);
    let error = none.squeeze(1).unwrap_err();
    assert_eq!(error, TensorError::NotOne { dim: 1, size: 0 });
    assert_eq!(none.unsqueeze(1).unwrap().shape().dims(), [2, 1, 0]);

    let full = counted(&[1; 8]);
    let too_high = TypeError::RankTooHigh { rank: 9, max: 8 };
    assert_eq!(full.unsqueeze(4).unwrap_err(), too_high.into());
    let error = full.unsqueeze(9).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 9, rank: 8 });
    let mut last = full;
    for rank in (0..8).rev() {
        last = last.squeeze(rank / 2).unwrap();
        assert_eq!((last.rank(), last.numel()), (rank, 1));
    }
}

/// The largest strides there are: those of a tensor without elements.
#[test]
fn no_stride_overflows_however_large_the_dimensions() {
    let huge = counted(&[0, 1 << 31, 1 << 31]);
    for dim in 0..=3 {
        let view = huge.unsqueeze(dim).unwrap();
        assert_eq!((view.numel(), view.rank()), (0, 4));
    }
    let turned = huge.permute(&[2, 0, 1]).unwrap().unsqueeze(0).unwrap();
    assert_eq!(turned.select(1, (1 << 31) - 1).unwrap().byte_offset(), 0);
    let [left, right] = huge.split(1, [1, (1 << 31) - 1]).unwrap();
    assert_eq!((left.byte_offset(), right.byte_offset()), (0, 0));
}

#[test]
fn select_is_a_slice_of_one_index_without_its_dimension() {
    let cube = counted(&[2, 3, 4]);
    let goldens = [
        (0, 1, (vec![3, 4], vec![4, 1], 12)),
        (1, 2, (vec![2, 4], vec![12, 1], 8)),
        (2, 3, (vec![2, 3], vec![12, 4], 3)),
    ];
    for (dim, index, golden) in goldens {
        let view = cube.select(dim, index).unwrap();
        assert_eq!(layout(&view), golden);
        let sliced = cube.slice(dim, index, index + 1).unwrap();
        assert_eq!(layout(&sliced.squeeze(dim).unwrap()), golden);
    }
    let element = cube.select(0, 1).unwrap().select(0, 2).unwrap();
    let element = element.select(0, 3).unwrap();
    assert_eq!((element.rank(), element.item::<i32>(&[])), (0, 23));

    for index in [3, usize::MAX] {
        let error = cube.select(1, index).unwrap_err();
        let (dim, size) = (1, 3);
        assert_eq!(error, TensorError::BadIndex { dim, index, size });
    }
    assert_eq!(
        cube.select(2, 4).unwrap_err().to_string(),
        "index 4 does not lie in dimension 2, which has 4"
    );
    let error = cube.select(3, 0).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 3, rank: 3 });
}

#[test]
fn narrow_is_a_slice_by_length() {
    let matrix = counted(&[3, 4]);
    let view = matrix.narrow(1, 1, 2).unwrap();
    assert_eq!(layout(&view), layout(&matrix.slice(1, 1, 3).unwrap()));
    assert_eq!(matrix.narrow(0, 3, 0).unwrap().numel(), 0);
    for (start, len, end) in [(3, 2, 5), (2, usize::MAX, usize::MAX), (9, 0, 9)] {
        let error = matrix.narrow(1, start, len).unwrap_err();
        let (dim, size) = (1, 4);
        let bad = TensorError::BadRange {
            dim,
            start,
            end,
            size,
        };
        assert_eq!(error, bad);
    }
}

#[test]
fn split_cuts_a_dimension_into_parts_that_make_it_up() {
    let matrix = counted(&[2, 6]);
    let [q, k, v] = matrix.split(1, [3, 1, 2]).unwrap();
    assert_eq!(rows(&q), [[0, 1, 2], [6, 7, 8]]);
    assert_eq!(rows(&k), [[3], [9]]);
    assert_eq!(rows(&v), [[4, 5], [10, 11]]);
    let [whole] = matrix.split(0, [2]).unwrap();
    assert_eq!(layout(&whole), layout(&matrix));
    let [none, all] = matrix.split(0, [0, 2]).unwrap();
    assert_eq!((none.numel(), all.numel()), (0, 12));
    let parts: [Tensor; 0] = counted(&[0]).split(0, []).unwrap();
    assert!(parts.is_empty());

    let (dim, size) = (1, 6);
    for (sizes, sum) in [
        ([3, 1, 1], 5),
        ([3, 3, 1], 7),
        ([usize::MAX, 1, 6], usize::MAX),
    ] {
        let error = matrix.split(1, sizes).unwrap_err();
        assert_eq!(error, TensorError::BadParts { dim, sum, size });
    }
    assert_eq!(
        matrix.split(1, [2, 2]).unwrap_err().to_string(),
        "parts of 4 in all do not make up dimension 1, which has 6"
    );
    let error = matrix.split(2, [1]).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 2, rank: 2 });
}

#[test]
fn chunks_are_equal_but_for_the_last() {
    let matrix = counted(&[7, 2]);
    let mut chunks = matrix.chunks(0, 3).unwrap();
    let mut sizes = Vec::new();
    for left in (1..=3).rev() {
        assert_eq!(chunks.len(), left);
        let chunk = chunks.next().unwrap();
        sizes.push((chunk.shape().dim(0), chunk.item::<i32>(&[0, 0])));
    }
    assert_eq!(sizes, [(3, 0), (3, 6), (1, 12)]);
    assert!(chunks.next().is_none() && chunks.next().is_none());
    let whole: Vec<Tensor> = matrix.chunks(1, usize::MAX).unwrap().collect();
    assert_eq!((whole.len(), layout(&whole[0])), (1, layout(&matrix)));
    assert_eq!(counted(&[0, 2]).chunks(0, 3).unwrap().len(), 0);
    let error = matrix.chunks(1, 0).unwrap_err();
    assert_eq!(error, TensorError::EmptyParts { dim: 1 });
    let error = matrix.chunks(2, 0).unwrap_err();
    assert_eq!(error, TensorError::NoSuchDim { dim: 2, rank: 2 });
}

#[test]
fn contiguous_in_shares_what_is_packed_and_copies_what_is_not() {
    let slab = SharedAllocator::new(SlabAllocator::new(4096, 4).unwrap());
    let matrix = counted(&[3, 4]);
    let same = matrix.contiguous_in(&slab).unwrap();
    assert_eq!(same.storage_id(), matrix.storage_id());
    assert_eq!(layout(&same), layout(&matrix));
    assert_eq!(slab.outstanding(), 0, "no copy");

    let turned = matrix.transpose(0, 1).unwrap();
    let packed = turned.contiguous_in(&slab).unwrap();
    assert_eq!(layout(&packed), (vec![4, 3], vec![3, 1], 0));
    assert_eq!(rows(&packed), rows(&turned));
    assert_ne!(packed.storage_id(), matrix.storage_id());
    assert_eq!(slab.outstanding(), 1, "in the allocator that was named");
    matrix.write::<i32>().unwrap()[1] = -1;
    assert_eq!(packed.item::<i32>(&[1, 0]), 1, "bytes of its own");

    // Errors: somebody writes, and no memory.
    let writer = matrix.write::<i32>().unwrap();
    let storage = matrix.storage_id();
    let error = turned.contiguous_in(&slab).unwrap_err();
    assert_eq!(error, BorrowError::Writing { storage }.into());
    assert_eq!(slab.outstanding(), 1, "nothing is left over");
    drop(writer);
    let full = SharedAllocator::new(SlabAllocator::new(64, 1).unwrap());
    let _taken = full.allocate(64, 64).unwrap();
    let error = turned.contiguous_in(&full).unwrap_err();
    assert!(matches!(error, TensorError::Alloc(_)), "{error}");
    // What is frozen may be copied; the copy is not.
    matrix.freeze().unwrap();
    let copy = turned.contiguous_in(&slab).unwrap();
    assert!(copy.write::<i32>().is_ok());
    // And a deep copy whatever the layout is a cast to the same dtype.
    let deep = ops::cast(&matrix, DType::I32, &slab).unwrap();
    assert_ne!(deep.storage_id(), matrix.storage_id());
}
