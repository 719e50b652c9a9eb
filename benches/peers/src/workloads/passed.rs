//! Blocks that one thread takes and another gives back.
//!
//! - `xmalloc`: a producer and a consumer, and a bounded queue between them. One operation
//!   is one block that went all the way; the producer times it, so the slower of the two
//!   sets the pace. One thread alone fills the queue and empties it again.
//! - `rptest`: each thread replaces random blocks of its own; every second one it leaves to
//!   the other thread. One operation is one replacement and what came in meanwhile.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::Backoff;

use super::{Cell, Dice, Workload};
use crate::contender::{Contender, Hand, Shape, touch};
use crate::pace::Pace;
use crate::race::Settings;

/// Blocks on their way.
const UNDER_WAY: usize = 64;

/// A producer and a consumer.
pub struct Xmalloc {
    /// Bytes of a block.
    pub bytes: usize,
    /// 2, or 1 for both in one thread.
    pub threads: usize,
}

impl Workload for Xmalloc {
    type Shared<C: Contender> = ArrayQueue<C::Held>;

    fn cell(&self) -> Cell {
        Cell {
            workload: "xmalloc".into(),
            bytes: self.bytes,
            touched: true,
            threads: self.threads,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            blocks: UNDER_WAY + 2,
        }
    }

    fn prepare<C: Contender>(&self, _contender: &C) -> ArrayQueue<C::Held> {
        ArrayQueue::new(UNDER_WAY)
    }

    fn work<C: Contender>(
        &self,
        _contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &ArrayQueue<C::Held>,
        seat: usize,
        _settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        let until = pace.until();
        if self.threads == 1 {
            pace.run(UNDER_WAY as u64, || {
                for _ in 0..UNDER_WAY {
                    let held = hand.take(self.bytes);
                    touch::<C::Hand<'_>>(&held, self.bytes);
                    let full = shared.push(held);
                    debug_assert!(full.is_ok(), "it was empty");
                }
                while let Some(held) = shared.pop() {
                    hand.give(held);
                }
                ControlFlow::Continue(())
            });
        } else if seat == 0 {
            pace.run(1, || {
                let mut held = hand.take(self.bytes);
                touch::<C::Hand<'_>>(&held, self.bytes);
                let backoff = Backoff::new();
                while let Err(full) = shared.push(held) {
                    held = full;
                    backoff.snooze();
                    if backoff.is_completed() && Instant::now() >= until {
                        hand.give(held);
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            });
        } else {
            pace.mute();
            pace.run(0, || {
                let backoff = Backoff::new();
                loop {
                    if let Some(held) = shared.pop() {
                        hand.give(held);
                        return ControlFlow::Continue(());
                    }
                    backoff.snooze();
                    if backoff.is_completed() && Instant::now() >= until {
                        return ControlFlow::Break(());
                    }
                }
            });
        }
    }

    fn settle<C: Contender>(&self, contender: &C, shared: &ArrayQueue<C::Held>) {
        let mut hand = contender.hand();
        while let Some(held) = shared.pop() {
            hand.give(held);
        }
    }
}

/// Blocks that a thread holds in [`Rptest`].
const HELD: usize = 128;

/// Each thread leaves every second of its blocks to the other. Two threads.
pub struct Rptest {
    /// Bytes of a block.
    pub bytes: usize,
}

/// A thread's blocks, and those that were left to it.
pub struct Desk<H> {
    own: Mutex<Vec<H>>,
    inbox: ArrayQueue<H>,
}

impl Workload for Rptest {
    type Shared<C: Contender> = [Desk<C::Held>; 2];

    fn cell(&self) -> Cell {
        Cell {
            workload: "rptest".into(),
            bytes: self.bytes,
            touched: true,
            threads: 2,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            blocks: 2 * (HELD + UNDER_WAY + 1),
        }
    }

    fn prepare<C: Contender>(&self, contender: &C) -> [Desk<C::Held>; 2] {
        let mut hand = contender.hand();
        [(); 2].map(|()| Desk {
            own: Mutex::new((0..HELD).map(|_| hand.take(self.bytes)).collect()),
            inbox: ArrayQueue::new(UNDER_WAY),
        })
    }

    fn work<C: Contender>(
        &self,
        _contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &[Desk<C::Held>; 2],
        seat: usize,
        _settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        let mut own = shared[seat].own.lock().expect("this thread's own");
        let (inbox, other) = (&shared[seat].inbox, &shared[1 - seat].inbox);
        let mut dice = Dice::new(seat);
        let mut leaves = false;
        pace.run(1, || {
            while let Some(held) = inbox.pop() {
                hand.give(held);
            }
            let held = hand.take(self.bytes);
            touch::<C::Hand<'_>>(&held, self.bytes);
            let old = std::mem::replace(&mut own[dice.below(HELD)], held);
            leaves = !leaves;
            if !leaves {
                hand.give(old);
            } else if let Err(old) = other.push(old) {
                hand.give(old);
            }
            ControlFlow::Continue(())
        });
    }

    fn settle<C: Contender>(&self, contender: &C, shared: &[Desk<C::Held>; 2]) {
        let mut hand = contender.hand();
        for desk in shared {
            let mut own = desk.own.lock().expect("no thread panicked");
            own.drain(..).for_each(|held| hand.give(held));
            while let Some(held) = desk.inbox.pop() {
                hand.give(held);
            }
        }
    }
}
