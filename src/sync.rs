//! The only door to locks, atomics and `Arc`.
//!
//! ```text
//!                  cfg(loom)                 otherwise
//!   Mutex          loom::sync::Mutex         parking_lot::Mutex
//!   Arc, atomics   loom's                    std's
//!   thread_local   loom's                    std's
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

// `Acquire` and friends are plain values: the same under loom.
pub use std::sync::atomic::Ordering;
// Set-once cells hold process-wide defaults and feature tests. They are never
// part of a modelled protocol, and loom has no statics, so they are std's.
pub use std::sync::OnceLock;

#[cfg(not(loom))]
mod real {
    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::sync::Arc;
    pub use std::sync::atomic::fence;
    pub use std::thread_local;

    /// Atomic integers.
    pub mod atomic {
        pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
    }
}

#[cfg(loom)]
mod under_loom {
    pub use loom::sync::atomic::fence;
    pub use loom::sync::{Arc, MutexGuard};

    /// Atomic integers.
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
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
