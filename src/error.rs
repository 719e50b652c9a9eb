use crate::kv::{KvError, PlanError};
use crate::memory::{
    AllocError, BorrowError, CgroupError, CommitError, MapError, StepError, TraceError,
};
use crate::tensor::TensorError;
use crate::types::TypeError;
use crate::weights::WeightsError;

/// Anything that can go wrong in the crate.
///
/// Each layer has an error enum of its own and returns that; they all turn into this
/// one with `?`, for callers that use several layers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that is no dtype, shape or device.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// An allocation that could not be made.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A borrow of storage that is refused.
    #[error(transparent)]
    Borrow(#[from] BorrowError),
    /// A control group's limit that could not be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A file that is no recording of a trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Bytes of a file, or shared memory, that could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A step of an arena that cannot end.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A tensor operation that cannot be done.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A call on the KV cache that cannot be done.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A model's config, or a budget, that no KV cache follows from.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A checkpoint that could not be opened, loaded or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl From<CommitError> for Error {
    /// Which of the two it was.
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Borrow(error) => Self::Borrow(error),
            CommitError::Alloc(error) => Self::Alloc(error),
        }
    }
}
