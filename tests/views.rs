//! Random programs of views and writes, against a model that knows no strides.
//!
//! ```text
//!   tensor   storage ─ offset ─ shape ─ strides          the code
//!   model    storage ─ [7, 8, 11, 12]   shape            which element is where, written out
//! ```
//!
//! The model says what a view holds, what a write through it changes, and whether it is
//! contiguous: its list counts up by one. Every step compares everything.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use proptest::prelude::*;
use tenslab::memory::cpu;
use tenslab::tensor::TensorError;
use tenslab::{DType, Shape, Tensor, ops};

/// One step. The numbers are taken modulo whatever they choose from.
#[derive(Debug, Clone)]
enum Step {
    /// Cuts a range out of a dimension.
    Slice(usize, usize, usize),
    /// Another shape: some divisors of the number of elements, then the rest.
    Reshape(Vec<usize>),
    /// The same bits as another dtype, and back at the end of the step.
    AsDType(usize),
    /// Writes numbers that were never there before into all elements.
    Overwrite,
    /// Goes on with a packed copy, in a storage of its own.
    Pack,
    /// Goes on with the first view.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (any::<usize>(), any::<usize>(), any::<usize>())
            .prop_map(|(dim, a, b)| Step::Slice(dim, a, b)),
        3 => prop::collection::vec(any::<usize>(), 0..4).prop_map(Step::Reshape),
        1 => any::<usize>().prop_map(Step::AsDType),
        2 => Just(Step::Overwrite),
        1 => Just(Step::Pack),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..30)
}

/// A view, and what it should be.
#[derive(Clone)]
struct Pair {
    tensor: Tensor,
    dims: Vec<usize>,
    /// Where in the storage each element is, in row-major order of the logical index.
    places: Vec<usize>,
}

impl Pair {
    fn is_contiguous(&self) -> bool {
        self.places.windows(2).all(|pair| pair[1] == pair[0] + 1)
    }

    fn index(&self, mut at: usize) -> Vec<usize> {
        let mut index = vec![0; self.dims.len()];
        for (dim, &size) in self.dims.iter().enumerate().rev() {
            index[dim] = at % size;
            at /= size;
        }
        index
    }

    fn check(&self, storage: &[i32]) {
        assert_eq!(self.tensor.shape().dims(), self.dims);
        assert_eq!(self.tensor.numel(), self.places.len());
        assert_eq!(self.tensor.is_contiguous(), self.is_contiguous());
        let expected: Vec<i32> = self.places.iter().map(|&place| storage[place]).collect();
        for (at, expected) in expected.iter().enumerate() {
            assert_eq!(self.tensor.item::<i32>(&self.index(at)), *expected);
        }
        match self.tensor.read::<i32>() {
            Ok(elements) => assert_eq!(*elements, expected),
            Err(error) => {
                assert!(
                    matches!(error, TensorError::NotContiguous { .. }),
                    "{error}"
                );
                assert!(!self.is_contiguous());
            }
        }
    }

    fn slice(&self, dim: usize, a: usize, b: usize) -> Option<Pair> {
        let dim = dim.checked_rem(self.dims.len())?;
        let (a, b) = (a % (self.dims[dim] + 1), b % (self.dims[dim] + 1));
        let (start, end) = (a.min(b), a.max(b));
        let kept = |&(at, _): &(usize, &usize)| (start..end).contains(&self.index(at)[dim]);
        let places = self.places.iter().enumerate().filter(kept);
        let mut dims = self.dims.clone();
        dims[dim] = end - start;
        Some(Pair {
            tensor: self.tensor.slice(dim, start, end).unwrap(),
            dims,
            places: places.map(|(_, &place)| place).collect(),
        })
    }

    fn reshape(&self, divisors: &[usize]) -> Option<Pair> {
        let mut rest = self.places.len();
        let mut dims = Vec::new();
        for &divisor in divisors {
            let all: Vec<usize> = (1..=rest).filter(|d| rest.is_multiple_of(*d)).collect();
            let dim = all.get(divisor % all.len().max(1)).copied().unwrap_or(1);
            dims.push(dim);
            rest /= dim;
        }
        dims.push(rest);
        match self.tensor.reshape(Shape::from_dims(&dims).unwrap()) {
            Ok(tensor) => {
                assert!(self.is_contiguous());
                let places = self.places.clone();
                Some(Pair {
                    tensor,
                    dims,
                    places,
                })
            }
            Err(error) => {
                assert!(
                    matches!(error, TensorError::NotContiguous { .. }),
                    "{error}"
                );
                assert!(!self.is_contiguous());
                None
            }
        }
    }
}

/// A packed tensor of this shape whose elements count up from `first`.
fn counting(dims: &[usize], first: i32) -> Tensor {
    let shape = Shape::from_dims(dims).unwrap();
    let tensor = Tensor::empty(shape, DType::I32, cpu()).unwrap();
    let mut elements = tensor.write::<i32>().unwrap();
    for (element, value) in elements.iter_mut().zip(first..) {
        *element = value;
    }
    drop(elements);
    tensor
}

fn run(dims: &[usize], steps: &[Step]) {
    let first = Pair {
        tensor: counting(dims, 0),
        dims: dims.to_vec(),
        places: (0..dims.iter().product()).collect(),
    };
    let mut storage: Vec<i32> = (0..).take(first.places.len()).collect();
    let mut fresh = 1_000_000;
    let (mut root, mut view) = (first.clone(), first);
    for step in steps {
        match step {
            Step::Slice(dim, a, b) => view = view.slice(*dim, *a, *b).unwrap_or(view),
            Step::Reshape(divisors) => view = view.reshape(divisors).unwrap_or(view),
            Step::AsDType(which) => {
                let to = [DType::U32, DType::F32, DType::I32][which % 3];
                let other = view.tensor.view_as_dtype(to).unwrap();
                view.tensor = other.view_as_dtype(DType::I32).unwrap();
            }
            Step::Overwrite => {
                ops::copy(&view.tensor, &counting(&view.dims, fresh)).unwrap();
                for &place in &view.places {
                    storage[place] = fresh;
                    fresh += 1;
                }
            }
            Step::Pack => {
                storage = view.places.iter().map(|&place| storage[place]).collect();
                view.tensor = ops::cast(&view.tensor, DType::I32, cpu()).unwrap();
                view.places = (0..storage.len()).collect();
                root = view.clone();
            }
            Step::Restart => view = root.clone(),
        }
        view.check(&storage);
        root.check(&storage);
    }
}

proptest! {
    #[test]
    fn views_hold_what_a_model_without_strides_says(
        dims in prop::collection::vec(0_usize..5, 0..5),
        steps in steps(),
    ) {
        run(&dims, &steps);
    }
}

/// A model that could not disagree would prove nothing.
#[test]
fn the_model_sees_a_wrong_write() {
    let dims = [3, 4];
    let pair = Pair {
        tensor: counting(&dims, 0),
        dims: dims.to_vec(),
        places: (0..12).collect(),
    };
    let column = pair.slice(1, 1, 3).unwrap();
    assert_eq!(column.places, [1, 2, 5, 6, 9, 10]);
    let mut storage: Vec<i32> = (0..12).collect();
    column.check(&storage);
    storage[5] = 50;
    let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| column.check(&storage)));
    assert!(wrong.is_err());
}
