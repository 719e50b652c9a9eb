//! The lock that leans to a thread: one has the value at a time, and no change is lost.

use loom::sync::Arc;
use loom::thread;
use tenslab::internals::{Biased, set_worker};

use super::harness::{Canary, Gate, model};

#[derive(Default)]
struct Lab {
    lock: Biased<u32>,
    /// What the lock guards, as loom sees it.
    canary: Canary,
    gate: Gate,
}

impl Lab {
    fn add(&self) {
        self.lock.with(|count| {
            *count += 1;
            self.canary.write(*count);
        });
    }
}

/// The lock leans to one thread, which takes it twice, while another takes it once; then the
/// first takes it once more, whether it leans to it again or not.
///
/// Fails when who has the lock does not shut the door that is open, when the owner of the door
/// has no barrier or does not look, and when the other does not wait for the owner.
#[test]
fn one_thread_has_the_value_at_a_time() {
    model(|| {
        let lab = Arc::new(Lab::default());
        set_worker(0);
        lab.add(); // opens the door
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                set_worker(1);
                lab.gate.pass();
                lab.add();
            }
        });
        lab.gate.pass();
        lab.add();
        lab.add();
        other.join().unwrap();
        lab.add();
        assert_eq!(lab.lock.with(|count| *count), 5);
        assert_eq!(lab.canary.read(), 5);
    });
}

/// Two threads without a seat: a plain lock. No mutant is for this one alone.
#[test]
fn it_is_a_lock_for_those_it_does_not_lean_to() {
    model(|| {
        let lab = Arc::new(Lab::default());
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                lab.add();
            }
        });
        lab.gate.pass();
        lab.add();
        other.join().unwrap();
        assert_eq!(lab.lock.with(|count| *count), 2);
    });
}

/// The lock leans to one thread with a seat, then to another, and the first comes back.
///
/// Fails as the first one.
#[test]
fn it_leans_from_one_thread_to_another() {
    model(|| {
        let lab = Arc::new(Lab::default());
        set_worker(0);
        lab.add();
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                set_worker(1);
                lab.gate.pass();
                lab.add();
                lab.add();
                lab.add();
            }
        });
        lab.gate.pass();
        lab.add();
        other.join().unwrap();
        assert_eq!(lab.lock.with(|count| *count), 5);
    });
}
