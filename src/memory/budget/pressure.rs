//! Whom a [`Limit`] asks when it is short, and how that comes to an end.
//!
//! ```text
//!   short ─▶ callback 1 ─▶ fits? ─▶ callback 2 ─▶ fits? ─▶ … round again, at most 4 times
//!               │
//!               └ asks the same limit: refused or not, but calls nobody
//! ```
//!
//! The lock is held to look the next callback up and never while one is called. So a
//! callback may do whatever its thread may do, also drop its own guard; one that was
//! just called by another thread may outlive its guard by that call.

use std::cell::Cell;
use std::fmt;

use super::Limit;
use crate::mutant::{self, Mutant};
use crate::sync::{Arc, Mutex, thread_local};

/// How often all callbacks are asked for one request.
pub(super) const ROUNDS: usize = 4;

/// How many limits one thread may be short of, each within a callback of the other.
const DEPTH: usize = 8;

/// In a box within the `Arc`, for loom's cannot be made `dyn` once it is shared.
pub(super) type Callback = Arc<Box<dyn Fn(Shortage) -> usize + Send + Sync>>;

/// What is missing, for who can give some back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// Bytes that somebody asks for.
    pub requested_bytes: usize,
    /// Bytes that have to come back before they fit, at this moment.
    pub missing_bytes: usize,
    /// Bytes that are in use.
    pub live_bytes: usize,
    /// Bytes that may be.
    pub limit_bytes: usize,
}

/// Callbacks with their numbers, which rise: the oldest is first.
pub(super) struct Callbacks {
    table: Mutex<Table>,
}

struct Table {
    next_id: u64,
    entries: Vec<(u64, Callback)>,
}

/// Which callbacks are still to be asked: those that were there when it began.
pub(super) struct Round {
    next_id: u64,
    end: u64,
}

impl Callbacks {
    pub(super) fn new() -> Self {
        Self {
            table: Mutex::new(Table {
                next_id: 0,
                entries: Vec::new(),
            }),
        }
    }

    pub(super) fn add(&self, callback: Callback) -> u64 {
        let mut table = self.table.lock();
        let id = table.next_id;
        table.next_id += 1;
        table.entries.push((id, callback));
        id
    }

    pub(super) fn remove(&self, id: u64) {
        let mut table = self.table.lock();
        let found = table.entries.binary_search_by_key(&id, |entry| entry.0);
        let removed = found.ok().map(|at| table.entries.remove(at));
        drop(table);
        // After the lock: what the callback owns may have a drop that takes it.
        drop(removed);
    }

    /// All that are there now. Those that come meanwhile are not asked, or a callback
    /// that registers another would never come to an end.
    pub(super) fn round(&self) -> Round {
        Round {
            next_id: 0,
            end: self.table.lock().next_id,
        }
    }

    /// The next one of the round that is still there.
    pub(super) fn next(&self, round: &mut Round) -> Option<impl Fn(Shortage) -> usize> {
        let table = self.table.lock();
        let at = table
            .entries
            .partition_point(|entry| entry.0 < round.next_id);
        let (id, callback) = table.entries.get(at).filter(|entry| entry.0 < round.end)?;
        round.next_id = id + 1;
        let callback = Arc::clone(callback);
        let lock = if mutant::is(Mutant::PressureUnderLock) {
            Some(table)
        } else {
            drop(table);
            None
        };
        Some(move |shortage| {
            let given_back = callback(shortage);
            let _until_now = &lock;
            given_back
        })
    }
}

thread_local! {
    /// Addresses of the limits whose callbacks this thread is in; 0 is none.
    static INSIDE: Cell<[usize; DEPTH]> = const { Cell::new([0; DEPTH]) };
}

/// This thread is in a callback of a limit, until this is dropped.
pub(super) struct Inside {
    limit: usize,
}

impl Inside {
    /// `None`: it is in one already, or too deep.
    pub(super) fn enter(limit: usize) -> Option<Self> {
        // The cell has no drop, so it is there also in destructors of thread-locals.
        let entered = INSIDE.try_with(|inside| {
            let mut limits = inside.get();
            if limits.contains(&limit) {
                return false;
            }
            let Some(free) = limits.iter_mut().find(|limit| **limit == 0) else {
                return false;
            };
            *free = limit;
            inside.set(limits);
            true
        });
        // Made only where it entered, for its drop leaves.
        match entered {
            Ok(true) => Some(Self { limit }),
            _ => None,
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // An `Err` is a thread that ends; then there is nothing to forget.
        let _ = INSIDE.try_with(|inside| {
            let mut limits = inside.get();
            if let Some(mine) = limits.iter_mut().find(|limit| **limit == self.limit) {
                *mine = 0;
            }
            inside.set(limits);
        });
    }
}

/// A registered callback. Dropped, it is asked no more.
///
/// A call that another thread began before may still be under way then.
#[must_use = "the callback is asked for as long as this lives"]
pub struct PressureGuard {
    limit: Limit,
    id: u64,
}

impl PressureGuard {
    pub(super) fn new(limit: Limit, id: u64) -> Self {
        Self { limit, id }
    }
}

impl Drop for PressureGuard {
    fn drop(&mut self) {
        self.limit.forget_callback(self.id);
    }
}

impl fmt::Debug for PressureGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PressureGuard")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
