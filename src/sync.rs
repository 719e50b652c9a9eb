//! The only door to locks, atomics and `Arc`.
//!
//! ```text
//!                  cfg(loom)                 otherwise
//!   Mutex          loom::sync::Mutex         parking_lot::Mutex
//!   Arc, atomics   loom's                    std's
//!   thread_local   loom's                    std's
//!   worker         what the model says       sync/worker.rs
//!   UnsafeCell     loom's                    std's, with loom's face
//! ```
//!
//! Everything that several threads share goes through here, so that loom sees
//! all of it: a std or parking_lot type used elsewhere would be invisible to
//! the models in `loom_tests/` (they would run one interleaving and pass).
//! `disallowed_types` in `clippy.toml` keeps the door shut.
//!
//! There is no `try_lock`: loom reports false deadlocks for it
//! (tokio-rs/loom#376).

#![allow(
    clippy::disallowed_types,
    reason = "this is the one module that may name them"
)]
#![allow(unreachable_pub, reason = "the loom models see it")]
#![allow(
    unused_imports,
    reason = "not every lane uses every name behind the door"
)]

#[cfg(not(loom))]
pub use self::real::*;
#[cfg(loom)]
pub use self::under_loom::*;
#[cfg(not(loom))]
pub use self::worker::{SEATS, heavy_barrier, light_barrier, worker};

// `Acquire` and friends are plain values: the same under loom.
pub use std::sync::atomic::Ordering;
// Set-once cells hold process-wide defaults and feature tests. They are never
// part of a modelled protocol, and loom has no statics, so they are std's.
pub use std::sync::OnceLock;
// Only an alignment.
pub use crossbeam_utils::CachePadded;

/// Hands out names: 0, 1, 2, … It orders nothing and wraps after 2^32.
///
/// std's in both builds, for it lives in statics, which loom has not, and no protocol
/// depends on it.
#[derive(Debug)]
pub struct Names(std::sync::atomic::AtomicU32);

impl Names {
    /// None handed out yet.
    #[allow(clippy::new_without_default, reason = "it is made in statics only")]
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicU32::new(0))
    }

    /// The next one.
    pub fn next(&self) -> u32 {
        // Relaxed: each addition gives another number; nothing else follows from it.
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// For who waits until another thread is done with a few instructions: yields, and where that
/// does not help (the other is not running and has a lower priority) sleeps.
#[derive(Debug, Default)]
pub struct Patience {
    #[cfg(not(loom))]
    rounds: u32,
}

impl Patience {
    /// One round.
    pub fn wait(&mut self) {
        #[cfg(not(loom))]
        {
            self.rounds = self.rounds.saturating_add(1);
            if self.rounds > 64 {
                return std::thread::sleep(std::time::Duration::from_micros(50));
            }
        }
        yield_now();
    }
}

/// Sees all that others released to a count which the caller just brought to its end.
///
/// An Acquire fence. ThreadSanitizer knows no fences and would report races that are not
/// there; its build has `load` look at the count once more, which orders as much.
#[inline]
pub fn acquire_end<T>(load: impl FnOnce(Ordering) -> T) {
    if cfg!(tenslab_tsan) {
        load(Ordering::Acquire);
    } else {
        fence(Ordering::Acquire);
    }
}

#[cfg(not(loom))]
mod worker;

#[cfg(not(loom))]
mod real {
    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::sync::Arc;
    pub use std::sync::atomic::fence;
    pub use std::thread::yield_now;
    pub use std::thread_local;

    /// Atomic integers and pointers.
    pub mod atomic {
        pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
    }

    /// A value that a protocol guards, not the compiler.
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// Wraps `value`.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// A pointer to the value, for a writer.
        pub fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
            work(self.0.get())
        }
    }
}

#[cfg(loom)]
mod under_loom {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::fence;
    pub use loom::sync::{Arc, MutexGuard};
    pub use loom::thread::yield_now;

    /// Atomic integers and pointers.
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
    }

    /// Threads that have a seat: those that say so.
    pub const SEATS: usize = 2;

    loom::thread_local! {
        static NUMBER: std::cell::Cell<usize> = std::cell::Cell::new(SEATS);
    }

    /// The number of this thread: what the model says, else one without a seat.
    pub fn worker() -> usize {
        NUMBER.with(std::cell::Cell::get)
    }

    /// Says which number this thread has. Of the threads that run at one time only one may
    /// have a number below [`SEATS`].
    pub fn set_worker(number: usize) {
        NUMBER.with(|own| own.set(number));
    }

    /// Both halves of an asymmetric fence are whole ones here.
    pub fn light_barrier() {
        fence(super::Ordering::SeqCst);
    }

    /// Both halves of an asymmetric fence are whole ones here.
    pub fn heavy_barrier() {
        fence(super::Ordering::SeqCst);
    }

    /// `std::thread_local` for loom: a model's threads are one thread of the system, so
    /// std's would be shared. (loom's own macro does not take `const` initialisers.)
    macro_rules! per_thread {
        ($(#[$attribute:meta])* static $name:ident: $type:ty = const $value:block;) => {
            loom::thread_local! { $(#[$attribute])* static $name: $type = $value; }
        };
    }
    pub(crate) use per_thread as thread_local;

    /// loom's mutex with parking_lot's face: no poisoning.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Wraps `value`.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        /// The value, for a sole owner.
        pub fn get_mut(&mut self) -> &mut T {
            self.0
                .get_mut()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}
