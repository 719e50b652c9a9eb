//! Sizes and distances along the dimensions of a tensor, inline.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use super::TypeError;

mod axes;

/// The most dimensions a shape holds. Inference needs five.
pub const MAX_RANK: usize = 8;

/// The most elements a shape may stand for, whatever `usize` is.
const MAX_NUMEL: u64 = i64::MAX as u64;

/// Up to [`MAX_RANK`] numbers, inline.
#[derive(Clone, Copy)]
struct Dims {
    values: [usize; MAX_RANK],
    rank: u8,
}

impl Dims {
    const EMPTY: Dims = Dims {
        values: [0; MAX_RANK],
        rank: 0,
    };

    /// The first [`MAX_RANK`] of `values`; callers have checked that there are no more.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the rank is at most MAX_RANK, which is 8"
    )]
    #[inline]
    fn of(values: &[usize]) -> Dims {
        debug_assert!(values.len() <= MAX_RANK, "{} dimensions", values.len());
        let mut dims = Dims::EMPTY;
        for (to, from) in dims.values.iter_mut().zip(values) {
            *to = *from;
        }
        dims.rank = values.len().min(MAX_RANK) as u8;
        dims
    }

    #[inline]
    fn as_slice(&self) -> &[usize] {
        &self.values[..usize::from(self.rank)]
    }

    #[inline]
    fn as_mut_slice(&mut self) -> &mut [usize] {
        &mut self.values[..usize::from(self.rank)]
    }
}

/// The size of a tensor along each of its dimensions, inline and `Copy`.
///
/// Rank 0 is a scalar and has one element; a dimension of 0 makes a tensor with
/// none. The product of the non-zero dimensions is at most `i64::MAX`: that is the
/// number of elements where no dimension is 0, and it bounds every row-major
/// stride, so stride arithmetic on a valid shape cannot overflow.
///
/// ```
/// use tenslab::Shape;
///
/// let shape = Shape::from([2, 3, 4]);                  // a literal
/// assert_eq!((shape.rank(), shape.numel()), (3, 24));
/// assert_eq!(shape.to_string(), "[2, 3, 4]");
///
/// let huge = [1 << 40, 1 << 40];                       // from a file
/// assert!(Shape::from_dims(&huge).is_err());
/// ```
#[derive(Clone, Copy)]
pub struct Shape {
    dims: Dims,
    numel: usize,
}

impl Shape {
    /// The shape of a scalar: rank 0, one element.
    pub const SCALAR: Shape = Shape {
        dims: Dims::EMPTY,
        numel: 1,
    };

    /// A shape from data: files, requests, arithmetic.
    ///
    /// # Errors
    /// [`RankTooHigh`](TypeError::RankTooHigh) and
    /// [`TooManyElements`](TypeError::TooManyElements).
    pub fn from_dims(dims: &[usize]) -> Result<Shape, TypeError> {
        let numel = count(dims)?;
        Ok(Shape {
            dims: Dims::of(dims),
            numel,
        })
    }

    /// The number of dimensions.
    #[inline]
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.dims.rank as usize
    }

    /// The size along dimension `index`.
    ///
    /// # Panics
    /// If `index` is not below the rank.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn dim(&self, index: usize) -> usize {
        let dims = self.dims();
        assert!(
            index < dims.len(),
            "dimension {index} of a shape of rank {}",
            dims.len()
        );
        dims[index]
    }

    /// All sizes, outermost first.
    #[inline]
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        self.dims.as_slice()
    }

    /// The number of elements. Computed once, when the shape is made.
    #[inline]
    #[must_use]
    pub const fn numel(&self) -> usize {
        self.numel
    }
}

/// The elements of a shape of these dimensions, if it is one.
#[inline]
fn count(dims: &[usize]) -> Result<usize, TypeError> {
    let rank = dims.len();
    if rank > MAX_RANK {
        return Err(TypeError::RankTooHigh {
            rank,
            max: MAX_RANK,
        });
    }
    let mut product: u64 = 1;
    for (index, &dim) in dims.iter().enumerate() {
        product = u64::try_from(dim.max(1))
            .ok()
            .and_then(|dim| product.checked_mul(dim))
            .filter(|&product| product <= MAX_NUMEL && usize::try_from(product).is_ok())
            .ok_or(TypeError::TooManyElements { rank, index, dim })?;
    }
    if dims.contains(&0) {
        return Ok(0);
    }
    Ok(dims.iter().product())
}

impl Default for Shape {
    /// A scalar.
    fn default() -> Self {
        Self::SCALAR
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    /// A shape written in the source.
    ///
    /// # Panics
    /// If there are more than [`MAX_RANK`] dimensions or more than `i64::MAX`
    /// elements. Data goes through [`Shape::from_dims`].
    #[inline]
    #[track_caller]
    fn from(dims: [usize; N]) -> Self {
        match count(&dims) {
            Ok(numel) => Shape {
                dims: Dims::of(&dims),
                numel,
            },
            Err(error) => panic!("{dims:?} is no shape: {error}"),
        }
    }
}

impl TryFrom<&[usize]> for Shape {
    type Error = TypeError;

    /// [`Shape::from_dims`], with its errors.
    fn try_from(dims: &[usize]) -> Result<Self, Self::Error> {
        Self::from_dims(dims)
    }
}

impl TryFrom<&[i64]> for Shape {
    type Error = TypeError;

    /// The door for dimensions that come signed.
    ///
    /// # Errors
    /// [`RankTooHigh`](TypeError::RankTooHigh), [`NegativeDim`](TypeError::NegativeDim) and
    /// [`TooManyElements`](TypeError::TooManyElements), in this order.
    fn try_from(dims: &[i64]) -> Result<Self, Self::Error> {
        if dims.len() > MAX_RANK {
            return Err(TypeError::RankTooHigh {
                rank: dims.len(),
                max: MAX_RANK,
            });
        }
        let mut unsigned = [0; MAX_RANK];
        for (index, (to, &dim)) in unsigned.iter_mut().zip(dims).enumerate() {
            *to = usize::try_from(dim).map_err(|_| {
                if dim < 0 {
                    TypeError::NegativeDim { index, dim }
                } else {
                    // Only where usize is narrower than 64 bits.
                    TypeError::TooManyElements {
                        rank: dims.len(),
                        index,
                        dim: usize::MAX,
                    }
                }
            })?;
        }
        Self::from_dims(&unsigned[..dims.len()])
    }
}

/// How far apart neighbours are along each dimension, in **elements**.
///
/// Elements and not bytes (PyTorch's convention), so that a view as another dtype
/// of the same width keeps them. Never negative.
#[derive(Clone, Copy)]
pub struct Strides {
    dims: Dims,
}

impl Strides {
    /// Strides from data. Any number will do; a tensor's own are checked where it is made.
    ///
    /// # Errors
    /// [`RankTooHigh`](TypeError::RankTooHigh).
    pub fn from_values(values: &[usize]) -> Result<Strides, TypeError> {
        let rank = values.len();
        if rank > MAX_RANK {
            return Err(TypeError::RankTooHigh {
                rank,
                max: MAX_RANK,
            });
        }
        Ok(Strides {
            dims: Dims::of(values),
        })
    }

    /// The number of dimensions.
    #[inline]
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.dims.rank as usize
    }

    /// All strides, outermost first.
    #[inline]
    #[must_use]
    pub fn values(&self) -> &[usize] {
        self.dims.as_slice()
    }

    /// The stride along dimension `index`.
    ///
    /// # Panics
    /// If `index` is not below the rank.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn stride(&self, index: usize) -> usize {
        let values = self.values();
        assert!(
            index < values.len(),
            "stride {index} of {} strides",
            values.len()
        );
        values[index]
    }

    /// Are the elements of `shape` under these strides packed in row-major order?
    ///
    /// A dimension of size 1 puts no condition on its stride, and a shape without
    /// elements none at all.
    #[inline]
    #[must_use]
    pub fn are_contiguous_for(&self, shape: &Shape) -> bool {
        if shape.rank() != self.rank() {
            return false;
        }
        if shape.numel() == 0 {
            return true;
        }
        let mut packed = 1;
        for (&dim, &stride) in shape.dims().iter().zip(self.values()).rev() {
            if dim != 1 && stride != packed {
                return false;
            }
            packed *= dim;
        }
        true
    }
}

impl TryFrom<&[usize]> for Strides {
    type Error = TypeError;

    /// [`Strides::from_values`], with its errors.
    fn try_from(values: &[usize]) -> Result<Self, Self::Error> {
        Self::from_values(values)
    }
}

/// The strides of a packed tensor of this shape, the last dimension fastest.
///
/// A dimension of 0 counts as 1 (PyTorch's convention), so that strides stay
/// positive.
///
/// ```
/// use tenslab::{Shape, types::row_major_strides};
///
/// assert_eq!(row_major_strides(&Shape::from([2, 3, 4])).values(), [12, 4, 1]);
/// assert_eq!(row_major_strides(&Shape::from([2, 0, 4])).values(), [4, 4, 1]);
/// ```
#[must_use]
#[inline]
pub fn row_major_strides(shape: &Shape) -> Strides {
    let mut dims = shape.dims;
    let mut packed = 1;
    for value in dims.as_mut_slice().iter_mut().rev() {
        let dim = (*value).max(1);
        *value = packed;
        packed *= dim;
    }
    Strides { dims }
}

/// The numbers of `[2, 3, 4]`; a list that prints differently is none.
fn parse(text: &str) -> Result<Vec<usize>, TypeError> {
    let not_dims = || TypeError::NotDims { text: text.into() };
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let inner = inner.ok_or_else(not_dims)?;
    if inner.is_empty() {
        return Ok(Vec::new());
    }
    let number = |digits: &str| {
        // `parse` itself accepts `+2` and `02`.
        let exact = digits == "0" || digits.starts_with(|first| matches!(first, '1'..='9'));
        digits.parse().ok().filter(|_| exact).ok_or_else(not_dims)
    };
    inner.split(", ").map(number).collect()
}

macro_rules! like_a_slice {
    ($($type:ty),*) => {$(
        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                self.dims.as_slice() == other.dims.as_slice()
            }
        }

        impl Eq for $type {}

        impl Hash for $type {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.dims.as_slice().hash(state);
            }
        }

        /// As in `[2, 3, 4]`.
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("[")?;
                for (index, value) in self.dims.as_slice().iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{value}")?;
                }
                f.write_str("]")
            }
        }

        /// Accepts what `Display` writes, to the letter.
        impl FromStr for $type {
            type Err = TypeError;

            /// # Errors
            /// [`NotDims`](TypeError::NotDims), and those of the numbers themselves, as
            /// where they come from elsewhere.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let dims = parse(text)?;
                Self::try_from(dims.as_slice())
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{self}", stringify!($type))
            }
        }
    )*};
}

like_a_slice!(Shape, Strides);
