//! [`Biased`]: a lock that its usual user takes without an exchange.
//!
//! ```text
//!   leans to thread 3   doors  shut shut shut OPEN shut …    thread 3: in by its own door
//!                                                            others: take the lock, shut the
//!                                                            door, wait until nobody is inside
//!   leans to nobody     doors  shut shut shut shut shut …    all: take the lock
//! ```
//!
//! Books that one thread keeps most of the time need no exchange, and books that several keep
//! are under a plain lock. Who takes the lock again and again, with nobody else between, gets
//! the door opened; each time that was wrong it takes twice as often, so threads that take
//! turns pay for it ever more rarely. The doors are those of [seats](super::seat).
//! `loom_tests/biased.rs` explores it.

use super::seat::{Door, Inside};
use crate::mutant::{self, Mutant};
use crate::sync::{Mutex, Patience, SEATS, UnsafeCell, heavy_barrier, worker};

/// Takings in a row before the first door opens.
const FIRST: u32 = if cfg!(loom) { 1 } else { 4 };

/// Takings in a row that are asked for at the most.
const MOST: u32 = 1 << 12;

/// A value that one thread at a time has.
#[derive(Debug)]
pub struct Biased<T> {
    /// Shut, but that of the thread that it leans to.
    doors: [Door; SEATS],
    lean: Mutex<Lean>,
    value: UnsafeCell<T>,
}

#[derive(Debug)]
struct Lean {
    /// Whose door is open.
    to: Option<usize>,
    /// Who took the lock last, and how often in a row.
    last: usize,
    row: u32,
    /// How often in a row opens a door.
    needed: u32,
}

// SAFETY: the value is reached by one thread at a time only (`with`).
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T: Default> Default for Biased<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Biased<T> {
    /// Leans to nobody.
    pub fn new(value: T) -> Self {
        Self {
            doors: std::array::from_fn(|_| Door::shut()),
            lean: Mutex::new(Lean {
                to: None,
                last: usize::MAX,
                row: 0,
                needed: FIRST,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else has the value, and does `work` with it. It may not come here
    /// again from inside: as with any lock, that waits for ever or panics.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let number = worker();
        match self.enter(number) {
            // SAFETY: inside by the one door that is open.
            Some(_inside) => self.value.with_mut(|value| work(unsafe { &mut *value })),
            None => self.locked(number, work),
        }
    }

    /// Does `work` if the value leans to this thread and nobody has it; `None`: it is not done.
    ///
    /// Where [`with`](Self::with) makes two copies of what is done, one of them rarely needed,
    /// this makes one, in the caller.
    #[inline(always)]
    pub fn near<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _inside = self.enter(worker())?;
        // SAFETY: inside by the one door that is open.
        Some(self.value.with_mut(|value| work(unsafe { &mut *value })))
    }

    /// Goes in by this thread's own door. Who is inside has the value: nobody shuts the door
    /// meanwhile, and who has the lock has shut it.
    #[inline(always)]
    fn enter(&self, number: usize) -> Option<Inside<'_>> {
        // SAFETY: `number` is this thread's just now.
        unsafe { self.doors.get(number)?.enter() }
    }

    #[cold]
    fn locked<R>(&self, number: usize, work: impl FnOnce(&mut T) -> R) -> R {
        let mut lean = self.lean.lock();
        // Its own door is open and it was not let in: it is inside already, further up its stack.
        assert!(
            lean.to != Some(number),
            "the value is asked for by who has it"
        );
        if let Some(open) = lean.to.and_then(|to| self.doors.get(to)) {
            let shut = mutant::is(Mutant::BiasLeavesOpen) || open.stop();
            debug_assert!(shut, "doors are shut by who has the lock");
            std::mem::forget(open.stopped());
            heavy_barrier();
            let mut patience = Patience::default();
            while open.is_busy() {
                patience.wait();
            }
            lean.to = None;
            (lean.last, lean.row) = (usize::MAX, 0);
            lean.needed = (lean.needed * 2).min(MOST);
        }
        if lean.last == number {
            lean.row = lean.row.saturating_add(1);
        } else {
            (lean.last, lean.row) = (number, 1);
        }
        // SAFETY: every door is shut, and this thread has the lock.
        let result = self.value.with_mut(|value| work(unsafe { &mut *value }));
        if lean.row >= lean.needed
            && let Some(door) = self.doors.get(number)
        {
            lean.to = Some(number);
            // The lock is still held: who comes next shuts it again, or is its owner.
            drop(door.stopped());
        }
        result
    }
}
