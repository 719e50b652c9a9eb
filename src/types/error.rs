//! What is wrong with a shape, a name or a device that came from outside.

/// A value that is no dtype, shape or device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// More dimensions than a shape holds.
    #[error("{rank} dimensions, at most {max} are supported")]
    RankTooHigh {
        /// Dimensions asked for.
        rank: usize,
        /// Dimensions a shape can hold.
        max: usize,
    },
    /// The product of the non-zero dimensions does not fit an `i64`.
    #[error("a shape of rank {rank} has more than 2^63 - 1 elements (dimension {index} is {dim})")]
    TooManyElements {
        /// Dimensions of the shape.
        rank: usize,
        /// The dimension at which the product left the range.
        index: usize,
        /// Its size.
        dim: usize,
    },
    /// A dimension below zero.
    #[error("dimension {index} is {dim}, below zero")]
    NegativeDim {
        /// Which dimension.
        index: usize,
        /// Its size.
        dim: i64,
    },
    /// No list of sizes is written like this.
    #[error("{text:?} is no list of dimensions, expected one like \"[2, 3, 4]\"")]
    NotDims {
        /// What was to be parsed.
        text: String,
    },
    /// No dtype has this name.
    #[error("unknown dtype {name:?}, expected one of float32, float16, bfloat16, int8, …")]
    UnknownDType {
        /// What was to be parsed.
        name: String,
    },
    /// No device is written like this.
    #[error("unknown device {spec:?}, expected \"cpu\", \"cuda\" or \"cuda:N\"")]
    UnknownDevice {
        /// What was to be parsed.
        spec: String,
    },
}
