//! `pair`: take one block and give it back. One operation is both.

use std::hint::black_box;
use std::ops::ControlFlow;

use super::{Cell, Workload};
use crate::contender::{Contender, Hand, Shape, touch};
use crate::pace::Pace;
use crate::race::Settings;

/// Take one block of `bytes` and give it back.
pub struct Pair {
    /// Bytes of a block.
    pub bytes: usize,
    /// Is every page written to?
    pub touched: bool,
    /// Threads, all on one contender.
    pub threads: usize,
}

impl Workload for Pair {
    type Shared<C: Contender> = ();

    fn cell(&self) -> Cell {
        Cell {
            workload: "pair".into(),
            bytes: self.bytes,
            touched: self.touched,
            threads: self.threads,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            // Two for the check before the race.
            blocks: self.threads.max(2),
        }
    }

    fn prepare<C: Contender>(&self, _contender: &C) {}

    fn work<C: Contender>(
        &self,
        _contender: &C,
        hand: &mut C::Hand<'_>,
        _shared: &(),
        _seat: usize,
        _settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        // Two loops, so that the untouched one has no branch in it.
        if self.touched {
            pace.run(1, || {
                let held = hand.take(black_box(self.bytes));
                touch::<C::Hand<'_>>(&held, self.bytes);
                hand.give(held);
                ControlFlow::Continue(())
            });
        } else {
            pace.run(1, || {
                let held = hand.take(black_box(self.bytes));
                black_box(C::Hand::start(&held));
                hand.give(held);
                ControlFlow::Continue(())
            });
        }
    }

    fn settle<C: Contender>(&self, _contender: &C, _shared: &()) {}
}
