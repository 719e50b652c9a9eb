//! Which worker a thread is, and the barrier that only one side pays for.
//!
//! ```text
//!   number   0 ‥ SEATS-1     a seat: one living thread has it, and when it ends another may
//!            SEATS ‥         no seat: any number of threads
//! ```
//!
//! A number below [`SEATS`] names one living thread. So what is kept for that number can be
//! used without an atomic exchange, which costs five times as much as the rest: see
//! `memory/seat.rs`. Who wants it from another thread pays, with [`heavy_barrier`].
//!
//! Seats are handed on: what a thread did before it ended happens before what the next one
//! with its number does. There are none where the system has no `membarrier` (Linux has
//! since 4.14); then every thread has a number without a seat.

use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use super::Names;

/// Threads that may have a seat at one time.
pub const SEATS: usize = 8;

/// A bit for each seat that nobody has.
static FREE: AtomicU32 = AtomicU32::new((1 << SEATS) - 1);

/// This thread was not asked yet.
const UNKNOWN: u32 = u32::MAX;

thread_local! {
    // Apart from `LEAVING`, so that it can be read until the thread is gone.
    static NUMBER: Cell<u32> = const { Cell::new(UNKNOWN) };
    static LEAVING: Leaving = const { Leaving };
}

/// Hands this thread's seat on when the thread ends.
struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        let seat = NUMBER.get();
        // Destructors of other thread-locals may run after this one.
        NUMBER.set(seatless());
        hand_on(seat);
    }
}

fn hand_on(seat: u32) {
    // Release: what this thread did in its seats happens before what the next one does;
    // pairs with the Acquire of `take`.
    FREE.fetch_or(1 << seat, Ordering::Release);
}

/// A seat that nobody has.
fn take() -> Option<u32> {
    // Relaxed: a first look.
    let mut free = FREE.load(Ordering::Relaxed);
    while free != 0 {
        let seat = free.trailing_zeros();
        // Acquire: pairs with the Release of whoever had the seat before.
        match FREE.compare_exchange_weak(
            free,
            free & !(1 << seat),
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => return Some(seat),
            Err(now) => free = now,
        }
    }
    None
}

/// A number without a seat.
#[allow(clippy::cast_possible_truncation, reason = "SEATS is small")]
fn seatless() -> u32 {
    static NAMES: Names = Names::new();
    SEATS as u32 + NAMES.next() % 1024
}

/// This thread's number. It costs a look into the thread's own memory, and may change once:
/// when the thread ends.
#[inline]
pub fn worker() -> usize {
    let number = NUMBER.get() as usize;
    if number >= SEATS {
        return without_a_seat();
    }
    number
}

/// This thread's number, where it has no seat yet.
#[cold]
#[inline(never)]
fn without_a_seat() -> usize {
    match NUMBER.get() {
        UNKNOWN => assign(),
        number => number as usize,
    }
}

fn assign() -> usize {
    let number = match heavy_barrier_works().then(take).flatten() {
        Some(seat) => {
            NUMBER.set(seat);
            // Makes sure that the seat is handed on. Too late for that where the thread is
            // almost gone.
            if LEAVING.try_with(|_| ()).is_ok() {
                seat
            } else {
                hand_on(seat);
                seatless()
            }
        }
        None => seatless(),
    };
    NUMBER.set(number);
    number as usize
}

/// The cheap half of an asymmetric fence: the compiler keeps the order, the processor
/// need not, until another thread makes it by [`heavy_barrier`].
#[inline]
pub fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod heavy {
    use rustix::thread::{MembarrierCommand, membarrier};

    /// Registers this process. Once is enough; more often does no harm.
    pub(super) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    /// A full barrier in every running thread of this process; those that do not run pass
    /// one when they are switched out or in.
    pub(super) fn run() -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

#[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
mod heavy {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn run() -> bool {
        false
    }
}

fn heavy_barrier_works() -> bool {
    const UNASKED: u32 = 0;
    const YES: u32 = 1;
    const NO: u32 = 2;
    static ANSWER: AtomicU32 = AtomicU32::new(UNASKED);
    // Relaxed, all: it publishes nothing. The first answer stands, also where another thread
    // is not allowed to ask.
    match ANSWER.load(Ordering::Relaxed) {
        UNASKED => {
            let answer = if heavy::register() { YES } else { NO };
            let first =
                ANSWER.compare_exchange(UNASKED, answer, Ordering::Relaxed, Ordering::Relaxed);
            first.map_or_else(|first| first, |_| answer) == YES
        }
        answer => answer == YES,
    }
}

/// The dear half: afterwards every thread has passed a full barrier. One system call, a
/// quarter of a microsecond to a few. For threads with seats only, so only where it works.
///
/// Aborts where the kernel refuses it after it agreed at first (a sandbox that was put up
/// later and that does not know `membarrier`): nothing would be safe any more.
pub fn heavy_barrier() {
    if heavy_barrier_works() && !heavy::run() && !(heavy::register() && heavy::run()) {
        // Not `eprintln!`, which panics where nobody listens.
        let why = "tenslab: the kernel refuses membarrier, which it granted before";
        let _ = writeln!(std::io::stderr(), "{why}");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier, Mutex};
    use std::thread;

    /// The numbers of `threads` threads that all live at once.
    fn numbers(threads: usize) -> Vec<usize> {
        let (met, seen) = (
            Arc::new(Barrier::new(threads)),
            Arc::new(Mutex::new(vec![])),
        );
        let running: Vec<_> = (0..threads)
            .map(|_| {
                let (met, seen) = (Arc::clone(&met), Arc::clone(&seen));
                thread::spawn(move || {
                    let number = worker();
                    met.wait();
                    assert_eq!(worker(), number);
                    seen.lock().unwrap().push(number);
                    met.wait();
                })
            })
            .collect();
        running.into_iter().for_each(|one| one.join().unwrap());
        Arc::into_inner(seen).unwrap().into_inner().unwrap()
    }

    #[test]
    fn a_seat_is_one_living_threads_and_is_handed_on() {
        // More threads than there can ever be seats; five times, for they are handed on.
        for _ in 0..5 {
            let mut seats = numbers(3 * SEATS);
            seats.retain(|&number| number < SEATS);
            seats.sort_unstable();
            let with_a_seat = seats.len();
            seats.dedup();
            assert_eq!(seats.len(), with_a_seat, "two threads had one seat");
            // Other tests' threads have some.
            assert_eq!(with_a_seat > 0, heavy_barrier_works());
        }
    }

    #[test]
    fn a_thread_that_ends_has_a_number_to_the_last() {
        struct AtTheEnd(Arc<Mutex<Option<usize>>>);
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                *self.0.lock().unwrap() = Some(worker());
            }
        }
        thread_local! {
            static LAST: std::cell::RefCell<Option<AtTheEnd>> = const { std::cell::RefCell::new(None) };
        }
        for asks_before in [false, true] {
            let seen = Arc::new(Mutex::new(None));
            let told = Arc::clone(&seen);
            let thread = thread::spawn(move || {
                if asks_before {
                    worker();
                }
                LAST.with(|last| *last.borrow_mut() = Some(AtTheEnd(told)));
            });
            thread.join().unwrap();
            assert!(seen.lock().unwrap().is_some());
        }
    }
}
