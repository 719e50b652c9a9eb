//! Shapes and strides with one dimension changed, gone or new, or in another order.
//!
//! None of them can leave the range of valid shapes, so none can fail: dimensions only
//! get smaller, go where they are 1, come as 1, or change places.

use super::{Dims, MAX_RANK, Shape, Strides};

impl Dims {
    fn with(mut self, index: usize, value: usize) -> Dims {
        self.as_mut_slice()[index] = value;
        self
    }

    fn without(mut self, index: usize) -> Dims {
        self.as_mut_slice().copy_within(index + 1.., index);
        self.rank -= 1;
        // What is past the rank is 0, whichever way the numbers came to be.
        self.values[usize::from(self.rank)] = 0;
        self
    }

    fn with_new(mut self, index: usize, value: usize) -> Dims {
        self.rank += 1;
        let values = self.as_mut_slice();
        let last = values.len() - 1;
        values.copy_within(index..last, index + 1);
        values[index] = value;
        self
    }

    fn reordered(self, order: &[usize]) -> Dims {
        let mut dims = self;
        for (to, &from) in dims.as_mut_slice().iter_mut().zip(order) {
            *to = self.values[from];
        }
        dims
    }
}

impl Shape {
    /// Dimension `index` cut down to `size`, which is at most what it has.
    pub(crate) fn with_dim(&self, index: usize, size: usize) -> Shape {
        debug_assert!(size <= self.dim(index), "{size} of dimension {index}");
        let dims = self.dims.with(index, size);
        Shape {
            dims,
            // No overflow: no factor is more than it was.
            numel: dims.as_slice().iter().product(),
        }
    }

    /// Without dimension `index`, which is 1.
    pub(crate) fn without_dim(&self, index: usize) -> Shape {
        debug_assert_eq!(self.dim(index), 1, "dimension {index} of {self}");
        Shape {
            dims: self.dims.without(index),
            numel: self.numel,
        }
    }

    /// With a new dimension of 1 before dimension `index`. The rank is below [`MAX_RANK`].
    pub(crate) fn with_new_dim(&self, index: usize) -> Shape {
        debug_assert!(self.rank() < MAX_RANK && index <= self.rank());
        Shape {
            dims: self.dims.with_new(index, 1),
            numel: self.numel,
        }
    }

    /// The dimensions in another order, which names each of them once.
    pub(crate) fn reordered(&self, order: &[usize]) -> Shape {
        Shape {
            dims: self.dims.reordered(order),
            numel: self.numel,
        }
    }
}

impl Strides {
    /// Without the stride of dimension `index`.
    pub(crate) fn without_dim(&self, index: usize) -> Strides {
        Strides {
            dims: self.dims.without(index),
        }
    }

    /// With a new stride before that of dimension `index`. The rank is below [`MAX_RANK`].
    pub(crate) fn with_new_dim(&self, index: usize, stride: usize) -> Strides {
        Strides {
            dims: self.dims.with_new(index, stride),
        }
    }

    /// The strides in another order, which names each dimension once.
    pub(crate) fn reordered(&self, order: &[usize]) -> Strides {
        Strides {
            dims: self.dims.reordered(order),
        }
    }
}
