//! Steps of a model: each takes its scratch, and at its end all of it goes back at once.
//!
//! - `steps`: sizes of steps are heavy-tailed (most are small, a few are a thousand times
//!   as large). One operation is one block, with its share of the step's end. Contenders
//!   that are no arenas give the blocks back one by one.
//! - `take@N`, `end@N`: one step of N blocks; what taking one of them costs, and what its
//!   end costs when the blocks are back and its own data is in the cache. An end looks at the
//!   clock twice, which is in it.

use std::borrow::Cow;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::Instant;

use super::{Cell, Dice, Workload};
use crate::contender::{self, Contender, Hand, Shape, touch};
use crate::pace::Pace;
use crate::race::Settings;
use crate::report::{KIB, MIB};

/// Blocks of a step.
const BLOCKS: usize = 24;

/// What a step takes at least, and at most.
const STEP_BYTES: (usize, usize) = (64 * KIB, 64 * MIB);

/// The weight of the tail: below 2, so a few steps take most of the bytes.
const TAIL: f64 = 1.2;

/// So many steps, each with the sizes of its blocks. The same at each call.
pub fn heavy_tailed(steps: usize) -> Vec<[usize; BLOCKS]> {
    let mut dice = Dice::new(13);
    let mut step = || {
        // Pareto's distribution, from a number above 0 and at most 1.
        let uniform = (dice.below(1 << 24) + 1) as f64 / f64::from(1 << 24);
        let (least, most) = STEP_BYTES;
        let wanted = least as f64 * uniform.powf(-1.0 / TAIL);
        #[expect(clippy::cast_possible_truncation, reason = "whole bytes are meant")]
        let total = (wanted as usize).min(most);
        let shares = [(); BLOCKS].map(|()| dice.below(16) + 1);
        let sum: usize = shares.iter().sum();
        // At least 64 KiB / (24 * 16): no block is empty.
        shares.map(|share| total * share / sum)
    };
    (0..steps).map(|_| step()).collect()
}

/// Plays steps.
pub fn play<H: Hand>(
    steps: &[[usize; BLOCKS]],
    hand: &mut H,
    held: &mut Vec<H::Held>,
    touched: bool,
) {
    for step in steps {
        for &bytes in step {
            let one = hand.take(bytes);
            if touched {
                touch::<H>(&one, bytes);
            } else {
                black_box(H::start(&one));
            }
            held.push(one);
        }
        held.drain(..).for_each(|one| hand.give(one));
        hand.end_step();
    }
}

/// Steps of heavy-tailed sizes, by one thread.
pub struct Steps {
    steps: Vec<[usize; BLOCKS]>,
    touched: bool,
}

impl Steps {
    /// So many steps make a batch.
    pub fn new(steps: usize, touched: bool) -> Self {
        Self {
            steps: heavy_tailed(steps),
            touched,
        }
    }
}

impl Workload for Steps {
    type Shared<C: Contender> = Mutex<Vec<C::Held>>;

    fn cell(&self) -> Cell {
        Cell {
            workload: Cow::Borrowed("steps"),
            bytes: STEP_BYTES.1,
            touched: self.touched,
            threads: 1,
        }
    }

    fn shape(&self) -> Shape {
        let largest = self.steps.iter().flatten().max();
        Shape {
            bytes: *largest.expect("there are steps"),
            blocks: BLOCKS,
        }
    }

    fn warm<C: Contender>(&self, contender: &C) {
        let mut hand = contender.hand();
        play(&self.steps, &mut hand, &mut Vec::new(), self.touched);
    }

    fn prepare<C: Contender>(&self, _contender: &C) -> Self::Shared<C> {
        Mutex::new(Vec::with_capacity(BLOCKS))
    }

    fn work<C: Contender>(
        &self,
        _contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &Self::Shared<C>,
        _seat: usize,
        _settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        let mut held = shared.lock().expect("this thread's own");
        pace.run((self.steps.len() * BLOCKS) as u64, || {
            play(&self.steps, hand, &mut held, self.touched);
            ControlFlow::Continue(())
        });
    }

    fn settle<C: Contender>(&self, _contender: &C, _shared: &Self::Shared<C>) {}
}

/// What is timed of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Taking a block. One operation is one block.
    Take,
    /// The end of the step, when all its blocks are back. One operation is one end.
    End,
}

/// One step of many blocks of 64 bytes, by one thread.
pub struct Step {
    /// Blocks of the step.
    pub blocks: usize,
    /// What of it is timed.
    pub part: Part,
}

impl Workload for Step {
    type Shared<C: Contender> = Mutex<Vec<C::Held>>;

    fn cell(&self) -> Cell {
        let part = match self.part {
            Part::Take => "take",
            Part::End => "end",
        };
        Cell {
            workload: Cow::Owned(format!("{part}@{}", self.blocks)),
            bytes: 64,
            touched: false,
            threads: 1,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: 64,
            blocks: self.blocks.max(2),
        }
    }

    fn warm<C: Contender>(&self, contender: &C) {
        contender::warm(contender, self.shape(), false);
        contender.hand().end_step();
    }

    fn prepare<C: Contender>(&self, _contender: &C) -> Self::Shared<C> {
        Mutex::new(Vec::with_capacity(self.blocks))
    }

    fn work<C: Contender>(
        &self,
        _contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &Self::Shared<C>,
        _seat: usize,
        _settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        let mut held = shared.lock().expect("this thread's own");
        let weight = match self.part {
            Part::Take => self.blocks as u64,
            Part::End => 1,
        };
        pace.run_timed(weight, || {
            let began = Instant::now();
            held.extend((0..self.blocks).map(|_| hand.take(black_box(64))));
            let taken = Instant::now();
            held.drain(..).for_each(|one| hand.give(one));
            // A hundred thousand blocks drive all else out of the caches, and it is not that
            // which is asked: one more brings back what an end looks at.
            let last = hand.take(black_box(64));
            hand.give(last);
            let back = Instant::now();
            hand.end_step();
            match self.part {
                Part::Take => taken - began,
                Part::End => back.elapsed(),
            }
        });
    }

    fn settle<C: Contender>(&self, _contender: &C, _shared: &Self::Shared<C>) {}
}
