//! Seats: the owner comes without an exchange, and nobody else is there meanwhile.

use loom::sync::Arc;
use loom::thread;
use tenslab::internals::{Seats, set_worker};

use super::harness::{Canary, Gate, model};

#[derive(Default)]
struct Lab {
    seats: Seats<Canary>,
    gate: Gate,
}

/// Runs `mine` as the worker with a seat and `theirs` as one without, at once.
fn together(mine: impl Fn(&Lab), theirs: impl Fn(&Lab) + Send + 'static) {
    let lab = Arc::new(Lab::default());
    let other = thread::spawn({
        let lab = Arc::clone(&lab);
        move || {
            set_worker(1);
            lab.gate.pass();
            theirs(&lab);
        }
    });
    set_worker(0);
    lab.gate.pass();
    mine(&lab);
    other.join().unwrap();
}

/// What its owner does at a seat.
fn at_home(lab: &Lab) {
    if let Some(canary) = lab.seats.here() {
        canary.write(1);
    }
}

/// What another does at every place that it gets.
fn everywhere(lab: &Lab) {
    lab.seats.taken(|_| true).for_each(|canary| canary.write(2));
}

/// What another does at the first place that it gets: nothing afterwards.
fn at_the_first(lab: &Lab) {
    if let Some(canary) = lab.seats.taken(|_| true).next() {
        canary.write(2);
    }
}

/// The owner comes twice while another comes once.
///
/// Fails when there is no barrier between what the owner says and what it sees, when either
/// does not look for the other, when the owner does not acquire what the other left, and when
/// leaving publishes nothing.
#[test]
fn the_owner_and_another_exclude_each_other() {
    model(|| {
        together(
            |lab| {
                at_home(lab);
                at_home(lab);
            },
            at_the_first,
        );
    });
}

/// Two threads come to every place at once, neither with a seat of its own.
///
/// Fails when a place is taken with a load and a store, when taking it acquires nothing, and
/// when leaving publishes nothing.
#[test]
fn others_exclude_each_other() {
    model(|| {
        together(
            |lab| {
                set_worker(2);
                everywhere(lab);
            },
            everywhere,
        );
    });
}

/// One takes all places at once while the owner of one comes.
///
/// Fails when the owner has no barrier, and when either does not look for the other.
#[test]
fn who_has_all_places_is_alone() {
    model(|| {
        together(at_home, |lab| {
            if let Some(all) = lab.seats.all() {
                all.iter().for_each(|canary| canary.write(2));
            }
        });
    });
}

/// Once all places are closed nobody comes, and what was done there is seen.
///
/// Fails when leaving publishes nothing.
#[test]
fn closing_sees_what_was_done_there() {
    model(|| {
        together(at_home, |lab| {
            lab.seats.close();
            lab.seats.iter().for_each(|canary| _ = canary.read());
            assert!(lab.seats.here().is_none());
        });
    });
}
