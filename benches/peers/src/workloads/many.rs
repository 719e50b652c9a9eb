//! `larson`: a server's threads, each with many blocks, and requests that move on.
//!
//! A thread replaces a random one of its blocks; now and then it swaps all of them for
//! those that another thread left on the market, so blocks are given back by threads that
//! never took them. One operation is one replacement.

use std::ops::ControlFlow;
use std::sync::Mutex;

use super::{Cell, Dice, Workload};
use crate::contender::{Contender, Hand, Shape, touch};
use crate::pace::Pace;
use crate::race::Settings;

/// Blocks that a thread holds.
const HELD: usize = 256;

/// Operations between two visits to the market.
const VISIT: usize = 1024;

/// Replace random blocks; swap all of them with another thread now and then.
pub struct Larson {
    /// Bytes of a block.
    pub bytes: usize,
    /// Threads, all on one contender.
    pub threads: usize,
}

/// The threads' blocks, and those on the market.
pub struct Stalls<H> {
    own: Vec<Mutex<Vec<H>>>,
    market: Mutex<Vec<H>>,
}

impl Workload for Larson {
    type Shared<C: Contender> = Stalls<C::Held>;

    fn cell(&self) -> Cell {
        Cell {
            workload: "larson".into(),
            bytes: self.bytes,
            touched: true,
            threads: self.threads,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            // Each thread's, the market's, and one in each thread's hand.
            blocks: HELD * (self.threads + 1) + self.threads,
        }
    }

    fn prepare<C: Contender>(&self, contender: &C) -> Stalls<C::Held> {
        let mut hand = contender.hand();
        let mut fill = || Mutex::new((0..HELD).map(|_| hand.take(self.bytes)).collect());
        Stalls {
            own: (0..self.threads).map(|_| fill()).collect(),
            market: fill(),
        }
    }

    fn work<C: Contender>(
        &self,
        _contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &Stalls<C::Held>,
        seat: usize,
        _settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        let mut own = shared.own[seat].lock().expect("this thread's own");
        let mut dice = Dice::new(seat);
        let mut until_visit = VISIT;
        pace.run(1, || {
            let place = &mut own[dice.below(HELD)];
            let held = hand.take(self.bytes);
            touch::<C::Hand<'_>>(&held, self.bytes);
            hand.give(std::mem::replace(place, held));
            until_visit -= 1;
            if until_visit == 0 {
                until_visit = VISIT;
                let mut market = shared.market.lock().expect("nobody panics here");
                std::mem::swap(&mut *own, &mut *market);
            }
            ControlFlow::Continue(())
        });
    }

    fn settle<C: Contender>(&self, contender: &C, shared: &Stalls<C::Held>) {
        let mut hand = contender.hand();
        for stall in shared.own.iter().chain([&shared.market]) {
            let mut blocks = stall.lock().expect("no thread panicked");
            blocks.drain(..).for_each(|held| hand.give(held));
        }
    }
}
