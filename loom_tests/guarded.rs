//! The guard's table: a block that comes out again at once keeps its new record.

use loom::sync::Arc;
use loom::thread;
use tenslab::memory::{Allocator, Guarded, Request, SlabAllocator};

use super::harness::{Fate, model};

/// Two threads want the only block of a slab, and give it back.
///
/// Fails when the guard gives a block back first and forgets it afterwards: the other
/// thread has it by then, and it is the other's record that is forgotten.
#[test]
fn a_record_goes_before_its_block() {
    model(|| {
        let fate = Fate::new();
        let slab = SlabAllocator::new(256, 1).unwrap();
        let guarded = Arc::new(Guarded::new(slab).with_quarantine(0));
        let round = |guarded: &Guarded<SlabAllocator>| {
            if let Ok(block) = guarded.allocate_block(Request::new(64, 64).unwrap()) {
                // SAFETY: from this allocator just now, and it goes by value, once.
                unsafe { guarded.release_block(block) };
            }
        };
        let other = thread::spawn({
            let (fate, guarded) = (Arc::clone(&fate), Arc::clone(&guarded));
            move || {
                fate.gate.pass();
                round(&guarded);
            }
        });
        fate.gate.pass();
        round(&guarded);
        other.join().unwrap();
        assert!(guarded.report().is_clean());
        assert_eq!(guarded.report().damaged, 0);
        assert_eq!(guarded.upstream().in_use(), 0);
    });
}
