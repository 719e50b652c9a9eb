//! [`StateWord`]: who may touch a storage's bytes, in one word.
//!
//! ```text
//!   bit 31     30       29 … 0
//!   FROZEN     WRITER   readers
//!
//!   state              read            write           freeze
//!   free        0      1 reader        WRITER          FROZEN
//!   n readers   n      n + 1           refused         FROZEN | n
//!   WRITER             refused         refused         refused
//!   FROZEN | n         not counted     refused         the same
//! ```
//!
//! Nothing waits. A refusal changes nothing. Frozen is for ever, and reading what
//! is frozen costs a load and no write that threads would have to share; so each
//! reader remembers whether it was counted. (Readers counted before the freeze
//! still count down.) Counting stops at half the range, so that forgetting guards
//! can never wrap into the bits above. `loom_tests/state.rs` explores it.

use crate::mutant::{self, Mutant};
use crate::sync::Ordering;
use crate::sync::atomic::AtomicU32;

const FROZEN: u32 = 1 << 31;
const WRITER: u32 = 1 << 30;
const READERS: u32 = WRITER - 1;

/// The most readers that are counted.
const MAX_READERS: u32 = READERS / 2;

/// Why a borrow is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody writes.
    Writing,
    /// So many read.
    Reading(u32),
    /// It is frozen.
    Frozen,
    /// So many read, and no more are counted.
    TooManyReaders(u32),
}

/// The borrow state of one storage. By default nobody reads and nobody writes.
#[derive(Debug, Default)]
pub struct StateWord {
    word: AtomicU32,
}

impl StateWord {
    /// Frozen from the beginning: nobody ever writes.
    pub fn frozen() -> Self {
        Self {
            word: AtomicU32::new(FROZEN),
        }
    }

    /// Becomes a reader. `Ok(true)`: counted, [`end_read`](Self::end_read) is owed;
    /// `Ok(false)`: frozen, nothing is owed.
    ///
    /// # Errors
    /// [`Refusal::Writing`] and [`Refusal::TooManyReaders`].
    #[inline]
    pub fn read(&self) -> Result<bool, Refusal> {
        let acquire = if mutant::is(Mutant::ReaderRelaxed) {
            Ordering::Relaxed
        } else {
            // Acquire: pairs with the Release of `end_write` and `freeze`, so the last
            // writer's bytes are seen.
            Ordering::Acquire
        };
        let mut word = self.word.load(acquire);
        loop {
            if word & FROZEN != 0 {
                return Ok(false);
            }
            if word & WRITER != 0 && !mutant::is(Mutant::ReaderIgnoresWriter) {
                return Err(Refusal::Writing);
            }
            if word & READERS >= MAX_READERS {
                return Err(Refusal::TooManyReaders(word & READERS));
            }
            if mutant::is(Mutant::ReaderTwoSteps) {
                self.word.store(word + 1, Ordering::Release);
                return Ok(true);
            }
            // On success and on failure, for a word that is seen here may be FROZEN.
            match self
                .word
                .compare_exchange_weak(word, word + 1, acquire, acquire)
            {
                Ok(_) => return Ok(true),
                Err(now) => word = now,
            }
        }
    }

    /// A counted reader is done.
    #[inline]
    pub fn end_read(&self) {
        // Release: this reader's reads happen before the next writer's writes;
        // pairs with the Acquire in `write`.
        self.word.fetch_sub(1, release());
    }

    /// Becomes the writer; [`end_write`](Self::end_write) is owed.
    ///
    /// # Errors
    /// [`Refusal::Writing`], [`Refusal::Reading`] and [`Refusal::Frozen`].
    #[inline]
    pub fn write(&self) -> Result<(), Refusal> {
        if mutant::is(Mutant::WriterTwoSteps) {
            if self.word.load(Ordering::Acquire) == 0 {
                self.word.store(WRITER, Ordering::Release);
                return Ok(());
            }
        } else if mutant::is(Mutant::WriterIgnoresReaders) {
            let before = self.word.fetch_or(WRITER, Ordering::AcqRel);
            if before & (WRITER | FROZEN) == 0 {
                return Ok(());
            }
        }
        let acquire = if mutant::is(Mutant::WriterRelaxed) {
            Ordering::Relaxed
        } else {
            // Acquire: pairs with the Release of `end_read` and `end_write`, so that
            // whoever was there before is done.
            Ordering::Acquire
        };
        // Relaxed on failure: a refusal reads nothing.
        match self
            .word
            .compare_exchange(0, WRITER, acquire, Ordering::Relaxed)
        {
            Ok(_) => Ok(()),
            Err(word) if word & FROZEN != 0 => Err(Refusal::Frozen),
            Err(word) if word & WRITER != 0 => Err(Refusal::Writing),
            Err(word) => Err(Refusal::Reading(word & READERS)),
        }
    }

    /// The writer is done.
    #[inline]
    pub fn end_write(&self) {
        // Release: publishes the bytes to the Acquire in `read`, `write` and `freeze`.
        self.word.fetch_and(!WRITER, release());
    }

    /// Nobody writes any more, for ever. Readers may be there.
    ///
    /// # Errors
    /// [`Refusal::Writing`].
    pub fn freeze(&self) -> Result<(), Refusal> {
        // Relaxed: the exchange below does the ordering.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & WRITER != 0 && !mutant::is(Mutant::FreezeIgnoresWriter) {
                return Err(Refusal::Writing);
            }
            let order = if mutant::is(Mutant::FreezeRelaxed) {
                Ordering::Relaxed
            } else {
                // Acquire: sees what the last writer published. Release: passes it on to
                // readers that see FROZEN and do nothing but a load.
                Ordering::AcqRel
            };
            match self
                .word
                .compare_exchange_weak(word, word | FROZEN, order, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Is it frozen?
    #[inline]
    pub fn is_frozen(&self) -> bool {
        // Acquire: pairs with `freeze`, for callers that go on to read.
        self.word.load(Ordering::Acquire) & FROZEN != 0
    }
}

/// The ordering that ends a borrow.
#[inline]
fn release() -> Ordering {
    if mutant::is(Mutant::ReleaseRelaxed) {
        Ordering::Relaxed
    } else {
        Ordering::Release
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counting_stops_at_half_range() {
        let state = StateWord {
            word: AtomicU32::new(MAX_READERS - 1),
        };
        assert_eq!(state.read(), Ok(true));
        assert_eq!(state.read(), Err(Refusal::TooManyReaders(MAX_READERS)));
        assert_eq!(state.write(), Err(Refusal::Reading(MAX_READERS)));
        state.end_read();
        assert_eq!(state.read(), Ok(true));
    }

    #[test]
    fn readers_counted_before_a_freeze_count_down_after_it() {
        let state = StateWord::default();
        assert_eq!(state.read(), Ok(true));
        assert_eq!(state.freeze(), Ok(()));
        assert_eq!(state.read(), Ok(false));
        state.end_read();
        assert_eq!(state.word.load(Ordering::Relaxed), FROZEN);
        assert_eq!(state.write(), Err(Refusal::Frozen));
    }
}
