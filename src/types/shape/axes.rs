//! Shapes and strides with one dimension changed, gone or new, or in another order.
//!
//! None of them can leave the range of valid shapes, so none can fail: dimensions only
//! get smaller, go where they are 1, come as 1, or change places. They work in place: a
//! view is a clone with a few numbers changed, and copying those again would cost more
//! than changing them.

use super::{Dims, MAX_RANK, Shape, Strides};

impl Dims {
    fn remove(&mut self, index: usize) {
        self.as_mut_slice().copy_within(index + 1.., index);
        self.rank -= 1;
    }

    fn insert(&mut self, index: usize, value: usize) {
        self.rank += 1;
        let values = self.as_mut_slice();
        let last = values.len() - 1;
        values.copy_within(index..last, index + 1);
        values[index] = value;
    }

    fn reorder(&mut self, order: &[usize]) {
        let before = self.values;
        for (to, &from) in self.as_mut_slice().iter_mut().zip(order) {
            *to = before[from];
        }
    }
}

impl Shape {
    /// With dimension `index` cut down to `size`, which is at most what it has.
    #[inline]
    pub(crate) fn with_dim(&self, index: usize, size: usize) -> Shape {
        debug_assert!(size <= self.dim(index), "{size} of dimension {index}");
        let at = |dim: usize| {
            if dim == index {
                size
            } else {
                self.dims.values[dim]
            }
        };
        Shape {
            dims: Dims {
                values: std::array::from_fn(at),
                rank: self.dims.rank,
            },
            // No overflow: no factor is more than it was.
            numel: (0..self.rank()).map(at).product(),
        }
    }

    /// Leaves out dimension `index`, which is 1.
    pub(crate) fn remove_dim(&mut self, index: usize) {
        debug_assert_eq!(self.dim(index), 1, "dimension {index} of {self}");
        self.dims.remove(index);
    }

    /// A new dimension of 1 before dimension `index`. The rank is below [`MAX_RANK`].
    pub(crate) fn insert_dim(&mut self, index: usize) {
        debug_assert!(self.rank() < MAX_RANK && index <= self.rank());
        self.dims.insert(index, 1);
    }

    /// Another order, which names each dimension once.
    pub(crate) fn reorder(&mut self, order: &[usize]) {
        self.dims.reorder(order);
    }

    /// Two dimensions in each other's place.
    pub(crate) fn swap_dims(&mut self, first: usize, second: usize) {
        self.dims.as_mut_slice().swap(first, second);
    }
}

impl Strides {
    /// Leaves out the stride of dimension `index`.
    pub(crate) fn remove_dim(&mut self, index: usize) {
        self.dims.remove(index);
    }

    /// A new stride before that of dimension `index`. The rank is below [`MAX_RANK`].
    pub(crate) fn insert_dim(&mut self, index: usize, stride: usize) {
        self.dims.insert(index, stride);
    }

    /// Another order, which names each dimension once.
    pub(crate) fn reorder(&mut self, order: &[usize]) {
        self.dims.reorder(order);
    }

    /// Two strides in each other's place.
    pub(crate) fn swap_dims(&mut self, first: usize, second: usize) {
        self.dims.as_mut_slice().swap(first, second);
    }
}
