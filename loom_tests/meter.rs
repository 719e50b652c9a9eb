//! The meter: what two threads count at once adds up.

use loom::sync::Arc;
use loom::thread;
use tenslab::memory::{Allocator, Meter, Request};

use super::harness::{Fate, Lab, model};

/// Two threads allocate at once, so at some moment both blocks are out.
///
/// Fails when the peak is a load and a store: the thread that saw less stores last.
#[test]
fn a_smaller_peak_never_wins() {
    model(|| {
        let fate = Fate::new();
        let meter = Arc::new(Meter::new(Lab::new(&fate)));
        let allocate =
            |meter: &Meter<Lab>| meter.allocate_block(Request::new(0, 1).unwrap()).unwrap();
        let other = thread::spawn({
            let (fate, meter) = (Arc::clone(&fate), Arc::clone(&meter));
            move || {
                fate.gate.pass();
                allocate(&meter)
            }
        });
        fate.gate.pass();
        let mine = allocate(&meter);
        let theirs = other.join().unwrap();
        let out = meter.snapshot().total;
        assert_eq!(out.allocations, 2);
        assert_eq!(out.peak_live_bytes, out.live_bytes);
        for block in [mine, theirs] {
            // SAFETY: from this meter's `allocate_block`, and each goes by value, once.
            unsafe { meter.release_block(block) };
        }
        assert_eq!(meter.snapshot().total.live_bytes, 0);
    });
}
