//! What is wrong with a view, an access or an operation.

use super::ops::Number;
use crate::memory::{AllocError, BorrowError, StorageId};
use crate::types::{DType, Shape, TypeError};

/// A tensor operation that cannot be done. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A shape that is none.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// The storage could not be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Somebody else is at the bytes, or they are frozen.
    #[error(transparent)]
    Borrow(#[from] BorrowError),
    /// The dtype is reserved: no tensor of it can be made yet.
    #[error("tensors of dtype {dtype} are not implemented")]
    Unimplemented {
        /// The reserved dtype.
        dtype: DType,
    },
    /// More bytes than an `i64` counts.
    #[error("{numel} elements of {dtype} are more than 2^63 - 1 bytes")]
    SizeOverflow {
        /// Elements of the shape.
        numel: usize,
        /// Their dtype.
        dtype: DType,
    },
    /// The tensor would reach past the end of its storage.
    #[error("{bytes} bytes at offset {offset} reach past the end of {storage}, which has {len}")]
    OutOfBounds {
        /// The storage asked for.
        storage: StorageId,
        /// Its bytes.
        len: usize,
        /// Where the tensor would begin.
        offset: usize,
        /// Bytes of the tensor.
        bytes: usize,
    },
    /// There is no such dimension.
    #[error("there is no dimension {dim}, the tensor has {rank}")]
    NoSuchDim {
        /// The dimension asked for.
        dim: usize,
        /// How many there are.
        rank: usize,
    },
    /// A range that is not inside its dimension.
    #[error("range {start}..{end} does not lie in dimension {dim}, which has {size}")]
    BadRange {
        /// The dimension.
        dim: usize,
        /// First index.
        start: usize,
        /// One past the last.
        end: usize,
        /// Size of the dimension.
        size: usize,
    },
    /// The elements are not packed in row-major order. Copy the tensor first.
    #[error(
        "the tensor is not contiguous: dimension {dim} has stride {stride} where {packed} would be \
         packed; contiguous_in makes a packed copy"
    )]
    NotContiguous {
        /// The innermost dimension that is not packed.
        dim: usize,
        /// Its stride.
        stride: usize,
        /// The stride it would have.
        packed: usize,
    },
    /// An index that is not inside its dimension.
    #[error("index {index} does not lie in dimension {dim}, which has {size}")]
    BadIndex {
        /// The dimension.
        dim: usize,
        /// The index.
        index: usize,
        /// Size of the dimension.
        size: usize,
    },
    /// An order of dimensions that names more or fewer than there are.
    #[error("an order of {named} dimensions, the tensor has {rank}")]
    BadOrder {
        /// How many the order names.
        named: usize,
        /// How many there are.
        rank: usize,
    },
    /// An order of dimensions that names one of them twice.
    #[error("an order that names dimension {dim} twice")]
    DimTwice {
        /// The dimension.
        dim: usize,
    },
    /// Only a dimension of size 1 can be left out.
    #[error("dimension {dim} has {size}, only one of size 1 can be left out")]
    NotOne {
        /// The dimension.
        dim: usize,
        /// Its size.
        size: usize,
    },
    /// Parts that do not make up the dimension they are to be parts of.
    #[error("parts of {sum} in all do not make up dimension {dim}, which has {size}")]
    BadParts {
        /// The dimension.
        dim: usize,
        /// What the parts add up to (or `usize::MAX` where that is more).
        sum: usize,
        /// Size of the dimension.
        size: usize,
    },
    /// Parts of no size would never come to an end.
    #[error("parts of size 0 of dimension {dim}")]
    EmptyParts {
        /// The dimension.
        dim: usize,
    },
    /// The number of elements would change.
    #[error("{from} elements cannot take a shape of {to}")]
    NumelMismatch {
        /// Elements there are.
        from: usize,
        /// Elements of the new shape.
        to: usize,
    },
    /// A view as a dtype of another width.
    #[error("{from} cannot be viewed as {to}: the elements differ in width")]
    WidthMismatch {
        /// The tensor's dtype.
        from: DType,
        /// The dtype asked for.
        to: DType,
    },
    /// The elements are of another dtype than asked for.
    #[error("the tensor holds {found}, not {asked}")]
    DTypeMismatch {
        /// The dtype asked for.
        asked: DType,
        /// The tensor's dtype.
        found: DType,
    },
    /// The shapes of two tensors differ where they may not.
    #[error("shapes {} and {} differ", shapes.0, shapes.1)]
    ShapeMismatch {
        /// The two shapes.
        shapes: Box<(Shape, Shape)>,
    },
    /// The first element is not at a multiple of its alignment.
    #[error("the tensor begins {past} bytes past a multiple of {align}, as {dtype} needs it")]
    Misaligned {
        /// The tensor's dtype.
        dtype: DType,
        /// The alignment of its elements.
        align: usize,
        /// How far past a multiple of it the tensor begins.
        past: usize,
    },
    /// Two tensors that may not reach into each other's bytes do: those that are written
    /// together, or the two sides of a copy. A tensor reaches from its first element to its
    /// last, with all that lies between.
    #[error(
        "the bytes from first to last element of tensors {first} and {second} meet in {storage}"
    )]
    Overlap {
        /// Their storage.
        storage: StorageId,
        /// Position of one of them. Of a copy: 0, the target.
        first: usize,
        /// Position of the other. Of a copy: 1, the source.
        second: usize,
    },
    /// Tensors that are to be written together are of different storages.
    #[error("tensor {position} is of {found}, the first one of {expected}")]
    NotOneStorage {
        /// Storage of the first tensor.
        expected: StorageId,
        /// The other storage.
        found: StorageId,
        /// Position of the tensor that is of the other.
        position: usize,
    },
    /// There is no such conversion.
    #[error("a cast from {from} to {to} is not supported: a boolean is no number")]
    UnsupportedCast {
        /// The source's dtype.
        from: DType,
        /// The dtype asked for.
        to: DType,
    },
    /// A value that the dtype cannot hold.
    #[error("{value} is no {dtype}")]
    ValueOutOfRange {
        /// The value.
        value: Number,
        /// The dtype that was to hold it.
        dtype: DType,
    },
    /// An element that the dtype of a cast cannot hold. The first one in row-major order.
    #[error("{value} at {index:?} is no {dtype}")]
    ElementOutOfRange {
        /// The element.
        value: Number,
        /// The dtype that was to hold it.
        dtype: DType,
        /// Where it is.
        index: Box<[usize]>,
    },
    /// A range without a number of steps: a step of 0, or more than an `i64` counts.
    #[error("the steps of {step} from {start} to {end} cannot be counted")]
    BadSteps {
        /// The first value.
        start: i64,
        /// Where it ends.
        end: i64,
        /// From one to the next.
        step: i64,
    },
    /// Random values are floating-point ones.
    #[error("a tensor of {dtype} takes no random values, only a floating-point one does")]
    NotFloatingPoint {
        /// The tensor's dtype.
        dtype: DType,
    },
    /// Bounds that are not finite, inverted, or infinitely far apart.
    #[error("there is no even distribution from {low} to {high}")]
    BadUniform {
        /// The lower bound.
        low: Number,
        /// The upper bound.
        high: Number,
    },
    /// A mean or a deviation that is not finite, or a negative deviation.
    #[error("there is no normal distribution of mean {mean} and standard deviation {stddev}")]
    BadNormal {
        /// The mean.
        mean: Number,
        /// The standard deviation.
        stddev: Number,
    },
    /// A tolerance below 0, or a NaN.
    #[error(
        "tolerances of {relative} relative and {absolute} absolute: neither may be negative or NaN"
    )]
    BadTolerance {
        /// The relative one.
        relative: Number,
        /// The absolute one.
        absolute: Number,
    },
    /// There is no such row in a table.
    #[error("row {row}, at position {position} of the list: the table has {rows}")]
    NoSuchRow {
        /// The row asked for.
        row: u32,
        /// Rows there are.
        rows: usize,
        /// Where in the list it was asked for.
        position: usize,
    },
    /// No tensor was named where at least one has to be.
    #[error("no tensors to put together: their shape and dtype would be anything")]
    NothingToJoin,
    /// A tensor cannot be joined with the first one.
    #[error("tensor {position} has shape {} and the first one {}: they may differ in dimension {dim} only", shapes.1, shapes.0)]
    JoinMismatch {
        /// Shapes of the first tensor and of this one.
        shapes: Box<(Shape, Shape)>,
        /// Where it is among the tensors.
        position: usize,
        /// The dimension along which they are joined.
        dim: usize,
    },
    /// A tensor cannot be stacked on the first one.
    #[error("tensor {position} has shape {} and the first one {}: only equal ones are stacked", shapes.1, shapes.0)]
    StackMismatch {
        /// Shapes of the first tensor and of this one.
        shapes: Box<(Shape, Shape)>,
        /// Where it is among the tensors.
        position: usize,
    },
}
