//! Bytes of a limit in somebody's hands.

use super::Limit;
use crate::memory::AllocError;

/// Bytes of a [`Limit`] that are taken for memory which is no allocation of ours: a
/// mapping, a chunk of another arena, a buffer of a library.
///
/// Charge before the memory is there, and drop the charge after it is gone; then the
/// limit holds at every moment.
///
/// ```
/// use tenslab::memory::Limit;
///
/// let limit = Limit::new(100);
/// let mut charge = limit.charge(60)?;
/// charge.grow(30)?;                               // all or nothing
/// assert!(charge.grow(20).is_err());
/// let part = charge.split(50);
/// assert_eq!((charge.bytes(), part.bytes(), limit.used_bytes()), (40, 50, 90));
/// drop(part);
/// assert_eq!(limit.used_bytes(), 40);
/// # Ok::<(), tenslab::memory::AllocError>(())
/// ```
///
/// Cost: one short lock a call, as of a [`Budget`](super::Budget).
#[derive(Debug)]
#[must_use = "a charge that is dropped is given back"]
pub struct Charge {
    limit: Limit,
    bytes: usize,
}

impl Charge {
    /// For bytes that are taken already.
    pub(super) fn taken(limit: Limit, bytes: usize) -> Self {
        Self { limit, bytes }
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of which limit.
    #[must_use]
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Takes `bytes` bytes more.
    ///
    /// # Errors
    /// [`OverBudget`](AllocError::OverBudget) where they do not fit; it holds what it held.
    pub fn grow(&mut self, bytes: usize) -> Result<(), AllocError> {
        self.limit.take(bytes)?;
        // No overflow: the sum is part of what the limit counts, which fits.
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` bytes back.
    ///
    /// # Panics
    /// If it holds fewer.
    #[track_caller]
    pub fn shrink(&mut self, bytes: usize) {
        self.bytes = self.without(bytes);
        self.limit.give_back(bytes);
    }

    /// Grows or shrinks to `bytes` bytes.
    ///
    /// # Errors
    /// As [`grow`](Charge::grow).
    pub fn resize(&mut self, bytes: usize) -> Result<(), AllocError> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.shrink(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// Hands `bytes` of its bytes to a charge of their own. The limit does not change.
    ///
    /// # Panics
    /// If it holds fewer.
    #[track_caller]
    pub fn split(&mut self, bytes: usize) -> Charge {
        self.bytes = self.without(bytes);
        Charge::taken(self.limit.clone(), bytes)
    }

    /// Takes over the bytes of another charge. The limit does not change.
    ///
    /// # Panics
    /// If the other is of another limit.
    #[track_caller]
    pub fn join(&mut self, mut other: Charge) {
        assert!(
            self.limit.is_same(&other.limit),
            "a charge can only take over bytes of its own limit"
        );
        self.bytes += std::mem::take(&mut other.bytes);
    }

    #[track_caller]
    fn without(&self, bytes: usize) -> usize {
        let held = self.bytes;
        held.checked_sub(bytes)
            .unwrap_or_else(|| panic!("{bytes} bytes of a charge that holds {held}"))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.limit.give_back(self.bytes);
    }
}

/// A [`Charge`] for the length of a call, without a handle of its own. Given back unless
/// it is kept, also where a call in between panics.
pub(super) struct Taken<'a> {
    limit: &'a Limit,
    bytes: usize,
}

impl<'a> Taken<'a> {
    #[inline]
    pub(super) fn new(limit: &'a Limit, bytes: usize) -> Result<Self, AllocError> {
        limit.take(bytes)?;
        Ok(Self { limit, bytes })
    }

    /// What was [kept](Taken::keep) before.
    #[inline]
    pub(super) fn again(limit: &'a Limit, bytes: usize) -> Self {
        Self { limit, bytes }
    }

    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), AllocError> {
        self.limit.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Keeps `bytes` of them, for [`again`](Taken::again), and gives the rest back.
    #[inline]
    pub(super) fn keep(mut self, bytes: usize) {
        debug_assert!(bytes <= self.bytes, "{bytes} kept of {}", self.bytes);
        self.bytes -= bytes;
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.limit.give_back(self.bytes);
    }
}
