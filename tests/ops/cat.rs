//! `cat` and `stack`.

use tenslab::memory::{AllocError, BorrowError, SharedAllocator, SlabAllocator, cpu};
use tenslab::tensor::TensorError;
use tenslab::types::TypeError;
use tenslab::{DType, Tensor, ops};

use super::{counted, elements, for_each_index};

#[test]
fn cat_joins_along_a_dimension_that_is_there() {
    let (a, b) = (counted(&[2, 3]), counted(&[1, 3]));
    let rows = ops::cat(&[&a, &b, &a], 0, cpu()).unwrap();
    assert_eq!(rows.shape().dims(), [5, 3]);
    assert_eq!(
        elements(&rows),
        [0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2, 3, 4, 5]
    );
    let c = counted(&[2, 1]);
    let columns = ops::cat(&[&c, &a], 1, cpu()).unwrap();
    assert_eq!(elements(&columns), [0, 0, 1, 2, 1, 3, 4, 5]);
    let one = ops::cat(&[&a], 1, cpu()).unwrap();
    assert_eq!(elements(&one), elements(&a));
    assert!(!one.storage().is_same(a.storage()), "always new");
}

#[test]
fn stack_joins_along_a_new_dimension_anywhere() {
    let (a, b) = (counted(&[2, 3]), counted(&[3, 2]).transpose(0, 1).unwrap());
    for dim in 0..=2 {
        let both = ops::stack(&[&a, &b], dim, cpu()).unwrap();
        for (which, part) in [&a, &b].into_iter().enumerate() {
            let found = both.select(dim, which).unwrap();
            assert_eq!(found.shape(), part.shape());
            for_each_index(&[2, 3], |index| {
                assert_eq!(
                    found.item::<u16>(index),
                    part.item::<u16>(index),
                    "{dim} {index:?}"
                );
            });
        }
        assert!(both.is_contiguous());
    }
    let scalars = ops::stack(&[&counted(&[]), &counted(&[])], 0, cpu()).unwrap();
    assert_eq!(
        (scalars.shape().dims(), elements(&scalars)),
        (&[2][..], vec![0, 0])
    );
}

#[test]
fn parts_may_be_strided_of_any_width_and_the_same_twice() {
    for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
        let grid = ops::arange(0, 24, 1, dtype, cpu())
            .unwrap()
            .reshape([4, 6])
            .unwrap();
        let (left, right) = (grid.slice(1, 0, 2).unwrap(), grid.slice(1, 2, 6).unwrap());
        let again = ops::cat(&[&left, &right], 1, cpu()).unwrap();
        assert!(ops::allclose(&again, &grid, None).unwrap().is_close());
        let turned = grid.transpose(0, 1).unwrap();
        let twice = ops::cat(&[&turned, &turned], 0, cpu()).unwrap();
        for half in [
            twice.slice(0, 0, 6).unwrap(),
            twice.slice(0, 6, 12).unwrap(),
        ] {
            assert!(ops::allclose(&half, &turned, None).unwrap().is_close());
        }
    }
}

#[test]
fn parts_without_elements_are_joined_too() {
    let (a, none) = (counted(&[2, 3]), counted(&[0, 3]));
    assert_eq!(
        elements(&ops::cat(&[&none, &a, &none], 0, cpu()).unwrap()),
        elements(&a)
    );
    let nothing = ops::cat(&[&none, &none], 0, cpu()).unwrap();
    assert_eq!(nothing.shape().dims(), [0, 3]);
    assert_eq!(
        ops::stack(&[&none, &none], 2, cpu())
            .unwrap()
            .shape()
            .dims(),
        [0, 3, 2]
    );
}

#[test]
fn what_does_not_fit_is_named() {
    let a = counted(&[2, 3]);
    assert_eq!(
        ops::cat(&[], 0, cpu()).unwrap_err(),
        TensorError::NothingToJoin
    );
    assert_eq!(
        ops::stack(&[], 0, cpu()).unwrap_err(),
        TensorError::NothingToJoin
    );
    assert_eq!(
        ops::cat(&[&a], 2, cpu()).unwrap_err(),
        TensorError::NoSuchDim { dim: 2, rank: 2 }
    );
    // A stack's dimensions are one more.
    assert_eq!(
        ops::stack(&[&a], 3, cpu()).unwrap_err(),
        TensorError::NoSuchDim { dim: 3, rank: 3 }
    );
    let signed = a.view_as_dtype(DType::I16).unwrap();
    let (asked, found) = (DType::U16, DType::I16);
    let mismatch = TensorError::DTypeMismatch { asked, found };
    assert_eq!(ops::cat(&[&a, &signed], 0, cpu()).unwrap_err(), mismatch);
    assert_eq!(ops::stack(&[&a, &signed], 0, cpu()).unwrap_err(), mismatch);
    for dims in [&[2, 4][..], &[3], &[2, 3, 1]] {
        let b = counted(dims);
        let shapes = Box::new((*a.shape(), *b.shape()));
        let mismatch = TensorError::JoinMismatch {
            shapes,
            position: 2,
            dim: 0,
        };
        assert_eq!(ops::cat(&[&a, &a, &b], 0, cpu()).unwrap_err(), mismatch);
        let shapes = Box::new((*a.shape(), *b.shape()));
        let mismatch = TensorError::StackMismatch {
            shapes,
            position: 2,
        };
        assert_eq!(ops::stack(&[&a, &a, &b], 0, cpu()).unwrap_err(), mismatch);
    }
    // Each says what its own rule is: of a stack's parts no dimension may differ.
    let b = counted(&[7, 3]);
    assert_eq!(
        ops::stack(&[&a, &b], 0, cpu()).unwrap_err().to_string(),
        "tensor 1 has shape [7, 3] and the first one [2, 3]: only equal ones are stacked"
    );
    assert_eq!(
        ops::cat(&[&a, &b], 1, cpu()).unwrap_err().to_string(),
        "tensor 1 has shape [7, 3] and the first one [2, 3]: they may differ in dimension 1 only"
    );
    assert!(ops::cat(&[&a, &counted(&[7, 3])], 0, cpu()).is_ok());
    assert!(ops::stack(&[&a, &counted(&[7, 3])], 0, cpu()).is_err());
}

#[test]
fn the_joined_shape_has_to_be_one() {
    let deep = counted(&[1; 8]);
    let error = ops::stack(&[&deep], 0, cpu()).unwrap_err();
    assert_eq!(error, TypeError::RankTooHigh { rank: 9, max: 8 }.into());
    assert!(ops::cat(&[&deep, &deep], 7, cpu()).is_ok());
    let wide = Tensor::zeros([1 << 62, 0], DType::U16, cpu()).unwrap();
    let error = ops::cat(&[&wide, &wide], 0, cpu()).unwrap_err();
    let too_many = TypeError::TooManyElements {
        rank: 2,
        index: 0,
        dim: 1 << 63,
    };
    assert_eq!(error, too_many.into());
    assert!(
        ops::cat(&[&wide, &wide, &wide, &wide], 0, cpu()).is_err(),
        "and no sum wraps"
    );
    let half = Tensor::zeros([0, 1 << 62], DType::U16, cpu()).unwrap();
    assert!(ops::stack(&[&half], 0, cpu()).is_ok());
    let error = ops::stack(&[&half, &half], 0, cpu()).unwrap_err();
    let too_many = TypeError::TooManyElements {
        rank: 3,
        index: 2,
        dim: 1 << 62,
    };
    assert_eq!(error, too_many.into());
}

#[test]
fn the_allocator_and_the_borrows_are_asked() {
    let a = counted(&[2, 3]);
    let slab = SharedAllocator::new(SlabAllocator::new(64, 0).unwrap());
    let none = TensorError::from(AllocError::Exhausted { blocks: 0 });
    assert_eq!(ops::cat(&[&a, &a], 0, &slab).unwrap_err(), none);
    assert_eq!(ops::stack(&[&a, &a], 0, &slab).unwrap_err(), none);
    let _writer = a.write::<u16>().unwrap();
    let busy = TensorError::from(BorrowError::Writing {
        storage: a.storage().id(),
    });
    assert_eq!(ops::cat(&[&a], 0, cpu()).unwrap_err(), busy);
    assert_eq!(ops::stack(&[&a], 0, cpu()).unwrap_err(), busy);
}
