//! An allocator is destroyed once, after its last handle and its last buffer.

use loom::sync::Arc;
use loom::thread;
use tenslab::SharedAllocator;

use super::harness::{Fate, Lab, model};

/// One thread gives the last buffer back while the other drops the last handle.
///
/// Fails when `close` looks at the word and sets the bit in two steps (nobody
/// destroys), when `leave` is Relaxed (the closer destroys what is still in use), and
/// when `close` is (the last one out does).
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
