//! The state word: many readers or one writer, and frozen for ever.

use loom::sync::Arc;
use loom::thread;
use tenslab::internals::StateWord;

use super::harness::{Canary, Gate, model};

#[derive(Default)]
struct Lab {
    state: StateWord,
    bytes: Canary,
    gate: Gate,
}

impl Lab {
    /// Reads if that is allowed now.
    fn read(&self) -> Option<u32> {
        let counted = self.state.read().ok()?;
        let value = self.bytes.read();
        if counted {
            self.state.end_read();
        }
        Some(value)
    }

    /// Writes if that is allowed now.
    fn write(&self, value: u32) -> bool {
        let allowed = self.state.write().is_ok();
        if allowed {
            self.bytes.write(value);
            self.state.end_write();
        }
        allowed
    }
}

/// Runs `mine` and `theirs` at once, then `after`.
fn together(
    mine: impl Fn(&Lab) + Send + Sync + Copy + 'static,
    theirs: impl Fn(&Lab) + Send + Sync + Copy + 'static,
    after: impl Fn(&Lab) + Send + Sync + Copy + 'static,
) {
    model(move || {
        let lab = Arc::new(Lab::default());
        let other = thread::spawn({
            let lab = Arc::clone(&lab);
            move || {
                lab.gate.pass();
                theirs(&lab);
            }
        });
        lab.gate.pass();
        mine(&lab);
        other.join().unwrap();
        after(&lab);
    });
}

/// Two readers never refuse each other, and when both are done a writer may come.
///
/// Fails when a reader counts itself with a load and a store: two come, one is counted,
/// and two leave.
#[test]
fn readers_read_together() {
    together(
        |lab| assert_eq!(lab.read(), Some(0)),
        |lab| assert_eq!(lab.read(), Some(0)),
        |lab| assert!(lab.write(1), "nobody is there any more"),
    );
}

/// A reader and a writer are never there at once, and each sees what the other did.
///
/// Fails when a reader does not look for a writer, when a writer does not look for
/// readers, when a borrow ends without Release, and when one begins without Acquire.
#[test]
fn a_reader_and_a_writer_exclude_each_other() {
    together(
        |lab| {
            let _ = lab.write(1);
        },
        |lab| {
            let _ = lab.read();
        },
        |lab| assert!(lab.read().is_some(), "nobody is there any more"),
    );
}

/// Two writers are never there at once.
///
/// Fails when a writer takes the word with a load and a store, when a borrow ends
/// without Release, and when one begins without Acquire.
#[test]
fn writers_exclude_each_other() {
    together(
        |lab| {
            let _ = lab.write(1);
        },
        |lab| {
            let _ = lab.write(2);
        },
        |lab| assert!(lab.write(3), "nobody is there any more"),
    );
}

/// Freezing waits for nobody: it is refused while somebody writes, and afterwards
/// nobody ever writes.
///
/// Fails when `freeze` does not look for a writer.
#[test]
fn frozen_bytes_are_never_written() {
    together(
        |lab| {
            let _ = lab.write(1);
        },
        |lab| {
            if lab.state.freeze().is_ok() {
                let before = lab.read();
                assert!(before.is_some(), "frozen bytes can always be read");
                assert!(!lab.write(2), "frozen bytes are never written");
                assert_eq!(lab.read(), before);
            }
        },
        |lab| assert_eq!(lab.write(3), !lab.state.is_frozen()),
    );
}

/// Who reads frozen bytes sees what they are, though it only loads the word.
///
/// Fails when `freeze` is Relaxed, and when a reader's load is.
#[test]
fn freezing_publishes_the_bytes() {
    together(
        |lab| {
            // As a loader does: written before anybody else has it, by raw pointer.
            lab.bytes.write(7);
            lab.state.freeze().unwrap();
        },
        |lab| {
            if lab.state.read() == Ok(true) {
                lab.state.end_read();
            } else {
                assert_eq!(lab.bytes.read(), 7);
            }
        },
        |lab| assert_eq!(lab.read(), Some(7)),
    );
}
