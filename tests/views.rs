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
use tenslab::types::MAX_RANK;
use tenslab::{DType, Shape, Tensor, ops};

/// One step. The numbers are taken modulo whatever they choose from.
#[derive(Debug, Clone)]
enum Step {
    /// Cuts a range out of a dimension.
    Slice(usize, usize, usize),
    /// The dimensions in another order: each number chooses among those that are left.
    Permute(Vec<usize>),
    /// Two dimensions in each other's place.
    Transpose(usize, usize),
    /// Leaves out one of the dimensions of 1.
    Squeeze(usize),
    /// A new dimension of 1.
    Unsqueeze(usize),
    /// One index of a dimension.
    Select(usize, usize),
    /// A dimension cut at two places, and one of the three parts.
    Split(usize, usize, usize, usize),
    /// A dimension in equal parts, and one of them.
    Chunk(usize, usize, usize),
    /// Goes on with `contiguous_in`: a clone or a copy, as the model knows.
    Contiguous,
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
        2 => prop::collection::vec(any::<usize>(), 8).prop_map(Step::Permute),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Step::Transpose(a, b)),
        1 => any::<usize>().prop_map(Step::Squeeze),
        1 => any::<usize>().prop_map(Step::Unsqueeze),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(dim, at)| Step::Select(dim, at)),
        1 => (any::<usize>(), any::<usize>(), any::<usize>(), any::<usize>())
            .prop_map(|(dim, a, b, which)| Step::Split(dim, a, b, which)),
        1 => (any::<usize>(), any::<usize>(), any::<usize>())
            .prop_map(|(dim, size, which)| Step::Chunk(dim, size, which)),
        1 => Just(Step::Contiguous),
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

    /// Another view, which has at each index what this one has at `from(index)`.
    fn seen(
        &self,
        tensor: Tensor,
        dims: Vec<usize>,
        from: impl Fn(Vec<usize>) -> Vec<usize>,
    ) -> Pair {
        let mut new = Pair {
            tensor,
            dims,
            places: Vec::new(),
        };
        for at in 0..new.dims.iter().product() {
            let index = from(new.index(at));
            let dims = self.dims.iter().zip(&index);
            let at = dims.fold(0, |at, (&size, &index)| at * size + index);
            new.places.push(self.places[at]);
        }
        new
    }

    fn permute(&self, numbers: &[usize]) -> Pair {
        let mut left: Vec<usize> = (0..self.dims.len()).collect();
        let mut order = Vec::new();
        for number in &numbers[..self.dims.len()] {
            order.push(left.remove(number % left.len()));
        }
        let dims = order.iter().map(|&dim| self.dims[dim]).collect();
        let tensor = self.tensor.permute(&order).unwrap();
        self.seen(tensor, dims, |new| {
            let mut old = vec![0; new.len()];
            for (&dim, index) in order.iter().zip(new) {
                old[dim] = index;
            }
            old
        })
    }

    fn transpose(&self, a: usize, b: usize) -> Option<Pair> {
        let rank = self.dims.len();
        let (a, b) = (a.checked_rem(rank)?, b % rank);
        let mut dims = self.dims.clone();
        dims.swap(a, b);
        let tensor = self.tensor.transpose(a, b).unwrap();
        Some(self.seen(tensor, dims, |mut index| {
            index.swap(a, b);
            index
        }))
    }

    fn squeeze(&self, which: usize) -> Option<Pair> {
        let ones: Vec<usize> = (0..self.dims.len())
            .filter(|&dim| self.dims[dim] == 1)
            .collect();
        let dim = ones[which.checked_rem(ones.len())?];
        let mut dims = self.dims.clone();
        dims.remove(dim);
        let tensor = self.tensor.squeeze(dim).unwrap();
        Some(self.seen(tensor, dims, |mut index| {
            index.insert(dim, 0);
            index
        }))
    }

    fn unsqueeze(&self, dim: usize) -> Option<Pair> {
        let dim = dim % (self.dims.len() + 1);
        if self.dims.len() == MAX_RANK {
            assert!(self.tensor.unsqueeze(dim).is_err());
            return None;
        }
        let mut dims = self.dims.clone();
        dims.insert(dim, 1);
        let tensor = self.tensor.unsqueeze(dim).unwrap();
        Some(self.seen(tensor, dims, |mut index| {
            index.remove(dim);
            index
        }))
    }

    fn select(&self, dim: usize, at: usize) -> Option<Pair> {
        let dim = dim.checked_rem(self.dims.len())?;
        let at = at.checked_rem(self.dims[dim])?;
        let mut dims = self.dims.clone();
        dims.remove(dim);
        let tensor = self.tensor.select(dim, at).unwrap();
        Some(self.seen(tensor, dims, |mut index| {
            index.insert(dim, at);
            index
        }))
    }

    /// The part `start..start + len` of a dimension, which is `tensor`.
    fn part(&self, tensor: Tensor, dim: usize, start: usize, len: usize) -> Pair {
        let mut dims = self.dims.clone();
        dims[dim] = len;
        self.seen(tensor, dims, |mut index| {
            index[dim] += start;
            index
        })
    }

    fn split(&self, dim: usize, a: usize, b: usize, which: usize) -> Option<Pair> {
        let dim = dim.checked_rem(self.dims.len())?;
        let size = self.dims[dim];
        let (a, b) = (a % (size + 1), b % (size + 1));
        let sizes = [a.min(b), a.abs_diff(b), size - a.max(b)];
        let [first, second, third] = self.tensor.split(dim, sizes).unwrap();
        Some(match which % 3 {
            0 => self.part(first, dim, 0, sizes[0]),
            1 => self.part(second, dim, sizes[0], sizes[1]),
            _ => self.part(third, dim, a.max(b), sizes[2]),
        })
    }

    fn chunk(&self, dim: usize, size: usize, which: usize) -> Option<Pair> {
        let dim = dim.checked_rem(self.dims.len())?;
        let all = self.dims[dim];
        let size = size % (all + 2) + 1;
        let chunks: Vec<Tensor> = self.tensor.chunks(dim, size).unwrap().collect();
        assert_eq!(chunks.len(), all.div_ceil(size));
        let which = which.checked_rem(chunks.len())?;
        let start = which * size;
        Some(self.part(chunks[which].clone(), dim, start, size.min(all - start)))
    }

    /// With the storage's elements, where it is another one.
    fn contiguous(&self, storage: &[i32]) -> Option<(Pair, Vec<i32>)> {
        let tensor = self.tensor.contiguous_in(cpu()).unwrap();
        assert!(tensor.is_contiguous());
        let shared = tensor.storage_id() == self.tensor.storage_id();
        assert_eq!(
            shared,
            self.is_contiguous(),
            "a copy only where one is needed"
        );
        if shared {
            return None;
        }
        let elements: Vec<i32> = self.places.iter().map(|&place| storage[place]).collect();
        let packed = Pair {
            tensor,
            dims: self.dims.clone(),
            places: (0..elements.len()).collect(),
        };
        Some((packed, elements))
    }

    fn slice(&self, dim: usize, a: usize, b: usize) -> Option<Pair> {
        let dim = dim.checked_rem(self.dims.len())?;
        let (a, b) = (a % (self.dims[dim] + 1), b % (self.dims[dim] + 1));
        let (start, end) = (a.min(b), a.max(b));
        let narrow = self.tensor.narrow(dim, start, end - start).unwrap();
        let slice = self.tensor.slice(dim, start, end).unwrap();
        assert_eq!(narrow.byte_offset(), slice.byte_offset());
        let kept = |&(at, _): &(usize, &usize)| (start..end).contains(&self.index(at)[dim]);
        let places = self.places.iter().enumerate().filter(kept);
        let mut dims = self.dims.clone();
        dims[dim] = end - start;
        Some(Pair {
            tensor: slice,
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
            Step::Permute(numbers) => view = view.permute(numbers),
            Step::Transpose(a, b) => view = view.transpose(*a, *b).unwrap_or(view),
            Step::Squeeze(which) => view = view.squeeze(*which).unwrap_or(view),
            Step::Unsqueeze(dim) => view = view.unsqueeze(*dim).unwrap_or(view),
            Step::Select(dim, at) => view = view.select(*dim, *at).unwrap_or(view),
            Step::Split(dim, a, b, which) => {
                view = view.split(*dim, *a, *b, *which).unwrap_or(view);
            }
            Step::Chunk(dim, size, which) => {
                view = view.chunk(*dim, *size, *which).unwrap_or(view);
            }
            Step::Contiguous => {
                if let Some((packed, elements)) = view.contiguous(&storage) {
                    (view, storage) = (packed, elements);
                    root = view.clone();
                }
            }
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
