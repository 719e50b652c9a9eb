//! An allocator is destroyed once, after its last handle and its last buffer.

use loom::sync::Arc;
use loom::thread;
use tenslab::SharedAllocator;
use tenslab::internals::set_worker;

use super::harness::{Fate, Lab, model};

/// One thread gives the last buffer back while the other drops the last handle.
///
/// Fails when `close` looks at the word and sets the bit in two steps (nobody
/// destroys), and when `leave` is Relaxed (the closer destroys what is still in use).
#[test]
fn either_the_last_buffer_or_the_last_handle_destroys() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        let buffer = allocator.allocate(8, 1).unwrap();
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                fate.gate.pass();
                fate.allocator[0].write(1);
                drop(buffer);
            }
        });
        fate.gate.pass();
        fate.allocator[1].write(1);
        drop(allocator);
        other.join().unwrap();
        assert_eq!((fate.released(), fate.destroyed()), (1, 1));
    });
}

/// Two buffers come back from two threads after every handle is gone.
///
/// Fails when `leave` is Relaxed: the last one out destroys what the other still used.
#[test]
fn the_last_of_two_buffers_destroys() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        let mine = allocator.allocate(0, 1).unwrap();
        let theirs = allocator.allocate(0, 1).unwrap();
        drop(allocator);
        assert_eq!(fate.destroyed(), 0);
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                fate.gate.pass();
                fate.allocator[0].write(1);
                drop(theirs);
            }
        });
        fate.gate.pass();
        fate.allocator[1].write(1);
        drop(mine);
        other.join().unwrap();
        assert_eq!((fate.released(), fate.destroyed()), (2, 1));
    });
}

/// Two threads drop the last two handles; each used the allocator before.
///
/// Fails when the handles' count is Relaxed (the closer destroys what the other still
/// used), and when it is a load and a store (nobody closes).
#[test]
fn the_last_of_two_handles_destroys() {
    model(|| {
        let fate = Fate::new();
        let mine = SharedAllocator::new(Lab::new(&fate));
        let theirs = mine.clone();
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                fate.gate.pass();
                fate.allocator[0].write(1);
                drop(theirs);
            }
        });
        fate.gate.pass();
        fate.allocator[1].write(1);
        drop(mine);
        other.join().unwrap();
        assert_eq!(fate.destroyed(), 1);
    });
}

/// The owner of a seat gives the last buffer back there, while another drops the last handle.
///
/// Fails when closing does not bring in what was counted at the seats: nobody destroys, or
/// both do, or the closer does before the buffer is back.
#[test]
fn the_last_at_a_seat_and_the_closer_agree() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        set_worker(0);
        let buffer = allocator.allocate(8, 1).unwrap();
        let closer = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                set_worker(1);
                fate.gate.pass();
                fate.allocator[1].write(1);
                drop(allocator);
            }
        });
        fate.gate.pass();
        fate.allocator[0].write(1);
        drop(buffer);
        closer.join().unwrap();
        assert_eq!((fate.released(), fate.destroyed()), (1, 1));
    });
}

/// A buffer goes out at a seat and comes back without one, while the seat's owner drops the
/// last handle.
///
/// Fails as the one before.
#[test]
fn a_buffer_that_left_at_a_seat_is_not_lost() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        set_worker(0);
        let buffer = allocator.allocate(8, 1).unwrap();
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                set_worker(1);
                fate.gate.pass();
                fate.allocator[1].write(1);
                drop(buffer);
            }
        });
        fate.gate.pass();
        fate.allocator[0].write(1);
        drop(allocator);
        other.join().unwrap();
        assert_eq!((fate.released(), fate.destroyed()), (1, 1));
    });
}
