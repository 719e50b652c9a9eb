//! The last view of a storage gives its bytes back, and the only one may write to them
//! without a guard. Both see all that was done to them.

use loom::sync::Arc;
use loom::thread;
use tenslab::memory::BorrowError;
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

/// One thread clones its view and drops both while the other asks for the bytes of a sole
/// owner: it has them alone or is refused.
///
/// Fails when the count is loaded Relaxed (the other's use of the bytes is not over), and
/// when the other handles are not counted.
#[test]
fn the_sole_owner_sees_what_the_others_did() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        let mut mine = Storage::from(allocator.allocate(8, 1).unwrap());
        let theirs = mine.clone();
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                fate.gate.pass();
                let another = theirs.clone();
                drop(theirs);
                fate.block[0].write(1);
                drop(another);
            }
        });
        fate.gate.pass();
        match mine.get_mut() {
            Ok(_) => fate.block[0].write(2),
            Err(error) => assert!(matches!(error, BorrowError::NotSole { .. }), "{error}"),
        }
        other.join().unwrap();
        assert!(mine.get_mut().is_ok(), "nobody else is there any more");
    });
}

/// One thread freezes and goes away while the other asks for the bytes of a sole owner.
///
/// Fails when the asker looks whether they are frozen before it counts the handles: the
/// other freezes and goes in between.
#[test]
fn the_sole_owner_never_writes_frozen_bytes() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        let mut mine = Storage::from(allocator.allocate(8, 1).unwrap());
        let theirs = mine.clone();
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                fate.gate.pass();
                theirs.freeze().unwrap();
                drop(theirs);
            }
        });
        fate.gate.pass();
        assert!(mine.get_mut().is_err(), "shared at first, then frozen");
        other.join().unwrap();
        let error = mine.get_mut().unwrap_err();
        assert!(matches!(error, BorrowError::Frozen { .. }), "{error}");
    });
}

/// One thread makes the pages read-only and goes away while the other drops its view: whoever
/// is the last makes them writable before the block goes back.
///
/// Fails when a view looks whether they are read-only before it counts itself out: the other
/// makes them so and goes in between.
#[test]
fn what_is_read_only_is_writable_when_it_goes_back() {
    model(|| {
        let fate = Fate::new();
        let allocator = SharedAllocator::new(Lab::new(&fate));
        let mine = Storage::from(allocator.allocate(8, 1).unwrap());
        let theirs = mine.clone();
        let other = thread::spawn({
            let fate = Arc::clone(&fate);
            move || {
                fate.gate.pass();
                assert!(theirs.freeze_protected().unwrap().bytes > 0);
                drop(theirs);
            }
        });
        fate.gate.pass();
        drop(mine);
        other.join().unwrap();
        assert_eq!(fate.released(), 1);
    });
}
