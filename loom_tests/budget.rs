//! The budget: the limit holds at every moment, and nobody is refused for another's sake.

use loom::sync::{Arc, Mutex};
use loom::thread;
use tenslab::memory::{Allocator, Budget, Charge, Limit, Request};

use super::harness::{Fate, Gate, Lab, model};

/// Two threads want the one block that there is room for, and give it back.
///
/// Fails when room is found under one lock and used under another (both get it), and when
/// bytes go back to the limit before their block is back.
#[test]
fn who_gets_bytes_finds_their_block_there() {
    fn use_it(fate: &Fate, budget: &Budget<Lab>) -> bool {
        let Ok(block) = budget.allocate_block(Request::new(64, 1).unwrap()) else {
            return false;
        };
        for canary in &fate.block {
            canary.write(canary.read() + 1);
        }
        // SAFETY: from this budget's `allocate_block`, and it goes by value, once.
        unsafe { budget.release_block(block) };
        true
    }

    model(|| {
        let fate = Fate::new();
        let limit = Limit::new(64);
        let budget = Arc::new(Budget::new(Lab::new(&fate), &limit));
        let other = thread::spawn({
            let (fate, budget) = (Arc::clone(&fate), Arc::clone(&budget));
            move || {
                fate.gate.pass();
                use_it(&fate, &budget)
            }
        });
        fate.gate.pass();
        let mine = use_it(&fate, &budget);
        let theirs = other.join().unwrap();
        assert!(mine || theirs, "there is room for one");
        assert_eq!((limit.used_bytes(), limit.peak_bytes()), (0, 64));
        assert_eq!(fate.released(), usize::from(mine) + usize::from(theirs));
    });
}

/// Runs `first` and `second` on two threads.
fn both<A: 'static, B>(limit: &Limit, first: fn(&Limit) -> A, second: fn(&Limit) -> B) -> (A, B) {
    let gate = Arc::new(Gate::new());
    let other = thread::spawn({
        let (gate, limit) = (Arc::clone(&gate), limit.clone());
        move || {
            gate.pass();
            first(&limit)
        }
    });
    gate.pass();
    let second = second(limit);
    (other.join().unwrap(), second)
}

/// One asks for more than there ever is, the other for what there is.
///
/// Fails when a request is added first and taken back where it was too much.
#[test]
fn what_fits_is_not_refused_because_of_what_does_not() {
    model(|| {
        let limit = Limit::new(10);
        let held = limit.charge(4).unwrap();
        let (never, fits) = both(
            &limit,
            |limit| limit.charge(7).is_err(),
            |limit| limit.charge(6).unwrap(),
        );
        assert!(never);
        drop((held, fits));
        assert_eq!(limit.used_bytes(), 0);
    });
}

/// Two together are too much, and one of them is right.
///
/// Fails when room is found under one lock and used under another.
#[test]
fn the_sum_is_never_above_the_limit() {
    model(|| {
        let limit = Limit::new(10);
        let (one, other) = both(&limit, |limit| limit.charge(6), |limit| limit.charge(7));
        assert!(one.is_ok() != other.is_ok());
        assert!(limit.used_bytes() <= 10);
        drop((one, other));
        assert_eq!(limit.used_bytes(), 0);
    });
}

/// Two charges at once, so at some moment both are out.
///
/// Fails when the peak is found under one lock and written under another: the thread that saw
/// less writes last.
#[test]
fn a_smaller_peak_never_wins() {
    model(|| {
        let limit = Limit::new(10);
        let charges = both(
            &limit,
            |limit| limit.charge(4).unwrap(),
            |limit| limit.charge(5).unwrap(),
        );
        drop(charges);
        assert_eq!((limit.used_bytes(), limit.peak_bytes()), (0, 9));
    });
}

/// One charges while the other forgets the peak: it is in the old one or in the new one.
#[test]
fn a_reset_peak_loses_no_charge() {
    model(|| {
        let limit = Limit::new(10);
        let (charge, before) = both(&limit, |limit| limit.charge(4).unwrap(), Limit::reset_peak);
        assert!(before == 4 || limit.peak_bytes() == 4);
        drop(charge);
        assert!(before == 4 || limit.peak_bytes() == 4);
    });
}

/// Two threads are short at once. The callback empties a cache, charges the same limit,
/// and registers a callback of its own.
///
/// Fails when a callback is called with the lock held: it waits for itself.
#[test]
fn a_callback_may_use_the_limit_it_is_called_for() {
    model(|| {
        let limit = Limit::new(10);
        let cache: Arc<Mutex<Option<Charge>>> =
            Arc::new(Mutex::new(Some(limit.charge(10).unwrap())));
        let guard = limit.on_pressure({
            let (limit, cache) = (limit.clone(), Arc::clone(&cache));
            move |short| {
                assert!(short.missing_bytes <= short.requested_bytes);
                let dropped = cache.lock().unwrap().take();
                let given_back = dropped.as_ref().map_or(0, Charge::bytes);
                drop(dropped);
                drop(limit.charge(1));
                drop(limit.on_pressure(|_| 0));
                given_back
            }
        });
        let (one, other) = both(&limit, |limit| limit.charge(5), |limit| limit.charge(5));
        // Who saw the cache empty may have come before its bytes were back.
        assert!(one.is_ok() || other.is_ok());
        drop((one, other, guard));
        assert_eq!(limit.used_bytes(), 0);
    });
}
