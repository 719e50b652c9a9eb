//! The last view of a storage gives its bytes back, and sees all that was done to them.

use loom::sync::Arc;
use loom::thread;
use tenslab::{SharedAllocator, Storage};

use super::harness::{Fate, Lab, model};

/// Two views are dropped at once; each thread used the bytes before.
///
/// Fails when the count is Relaxed (the block goes back while the other's use of it is
/// not over), and when it is a load and a store (nobody gives it back).
#[test]
fn the_last_view_gives_back() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        let mine = Storage::from(allocator.allocate(8, 1).unwrap());
        let theirs = mine.clone();
        drop(allocator);
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                fate.gate.pass();
                fate.block[0].write(1);
                drop(theirs);
            }
        });
        fate.gate.pass();
        fate.block[1].write(1);
        drop(mine);
        other.join().unwrap();
        assert_eq!((fate.released(), fate.destroyed()), (1, 1));
    });
}

/// A view is cloned by one thread while the other drops the view it has.
///
/// Fails when the count is a load and a store: a clone in between is lost, and the
/// block goes back twice or too early.
#[test]
fn a_clone_is_counted() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        let mine = Storage::from(allocator.allocate(8, 1).unwrap());
        let theirs = mine.clone();
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                fate.gate.pass();
                drop(theirs);
            }
        });
        fate.gate.pass();
        let another = mine.clone();
        drop(mine);
        assert_eq!(fate.released(), 0);
        assert_eq!(another.len(), 8);
        drop(another);
        other.join().unwrap();
        assert_eq!(fate.released(), 1);
    });
}
