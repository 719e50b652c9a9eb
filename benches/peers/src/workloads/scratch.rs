//! `scratch`: does an allocator make two threads share a cache line?
//!
//! One thread takes neighbouring small blocks, one for each thread. Each thread gives its
//! own back and takes another, writes to it 100 times, and again. Where the neighbours
//! stay neighbours, every write takes the line from the other core. One operation is one
//! round of that. One thread alone is what it costs without a neighbour.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Mutex;

use super::{Cell, Workload};
use crate::contender::{Contender, Hand, Shape};
use crate::pace::Pace;
use crate::race::Settings;

/// Writes to a block before it goes back.
const WRITES: usize = 100;

/// Write much to small blocks that began as neighbours.
pub struct Scratch {
    /// Bytes of a block.
    pub bytes: usize,
    /// Threads, all on one contender.
    pub threads: usize,
}

impl Workload for Scratch {
    type Shared<C: Contender> = Vec<Mutex<Option<C::Held>>>;

    fn cell(&self) -> Cell {
        Cell {
            workload: "scratch".into(),
            bytes: self.bytes,
            touched: true,
            threads: self.threads,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            blocks: self.threads.max(2),
        }
    }

    fn prepare<C: Contender>(&self, contender: &C) -> Self::Shared<C> {
        let mut hand = contender.hand();
        let neighbours = (0..self.threads).map(|_| Mutex::new(Some(hand.take(self.bytes))));
        neighbours.collect()
    }

    fn work<C: Contender>(
        &self,
        _contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &Self::Shared<C>,
        seat: usize,
        _settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        let mut place = shared[seat].lock().expect("this thread's own");
        let mut held = place.take();
        pace.run(1, || {
            if let Some(old) = held.take() {
                hand.give(old);
            }
            let new = hand.take(black_box(self.bytes));
            let start = C::Hand::start(&new);
            for write in 0..WRITES {
                // SAFETY: the remainder is below the block's bytes.
                let byte = unsafe { start.add(write % self.bytes) };
                // SAFETY: ours until it is given back; volatile, so that each is a write.
                unsafe { byte.write_volatile(1) };
            }
            held = Some(new);
            ControlFlow::Continue(())
        });
        *place = held;
    }

    fn settle<C: Contender>(&self, contender: &C, shared: &Self::Shared<C>) {
        let mut hand = contender.hand();
        for place in shared {
            if let Some(held) = place.lock().expect("no thread panicked").take() {
                hand.give(held);
            }
        }
    }
}
