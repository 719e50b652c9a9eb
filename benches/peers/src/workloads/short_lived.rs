//! Threads that are born, use the allocator, and die: what they cached must not die with
//! them, and what they leave behind must not be lost.
//!
//! - `mstress`: a phase starts its threads anew. Each takes blocks, gives back a random one
//!   half of the time and swaps one with a common place an eighth of the time; at its end
//!   it gives back what it still has. Half of the common places are emptied after a phase,
//!   the other half survives. One operation is one block taken.
//! - `mleak`: a thread takes some blocks, gives back all but one, and dies. The blocks that
//!   were left behind are given back 64 threads later. One operation is one block taken.
//!
//! Each thread looks at the clock when it begins and when its last block is back: what a
//! new thread costs an allocator is in the times, the thread's own birth and death are not.
//! They are in the page faults and heap blocks, the same for everybody.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::{Cell, Dice, Workload};
use crate::contender::{Contender, Hand, Shape, touch};
use crate::pace::Pace;
use crate::race::Settings;
use crate::system;

/// Blocks that a thread takes in a phase of [`Mstress`].
const TAKEN: usize = 512;

/// Common places, where blocks survive their threads.
const PLACES: usize = 64;

/// Phases of threads that swap blocks with each other.
pub struct Mstress {
    /// Bytes of a block.
    pub bytes: usize,
    /// Threads of a phase, all on one contender: 1 or 2.
    pub threads: usize,
}

/// Where survivors are.
pub type Places<H> = Vec<Mutex<Option<H>>>;

impl Mstress {
    fn phase<C: Contender>(
        &self,
        contender: &C,
        places: &Places<C::Held>,
        seed: usize,
    ) -> Duration {
        let began = Instant::now();
        let mut hand = contender.hand();
        let mut dice = Dice::new(seed);
        let mut own = Vec::with_capacity(TAKEN);
        for _ in 0..TAKEN {
            let held = hand.take(self.bytes);
            touch::<C::Hand<'_>>(&held, self.bytes);
            own.push(held);
            if dice.below(2) == 0 {
                let old = own.swap_remove(dice.below(own.len()));
                hand.give(old);
            } else if dice.below(4) == 0 {
                let mine = own.swap_remove(dice.below(own.len()));
                let place = &places[dice.below(PLACES)];
                let theirs = place.lock().expect("nobody panics here").replace(mine);
                own.extend(theirs);
            }
        }
        own.into_iter().for_each(|held| hand.give(held));
        began.elapsed()
    }
}

impl Workload for Mstress {
    type Shared<C: Contender> = Places<C::Held>;

    fn cell(&self) -> Cell {
        Cell {
            workload: "mstress".into(),
            bytes: self.bytes,
            touched: true,
            threads: self.threads,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            blocks: TAKEN * self.threads + PLACES,
        }
    }

    /// One, which starts the others.
    fn seats(&self) -> usize {
        1
    }

    fn pins(&self) -> bool {
        false
    }

    fn prepare<C: Contender>(&self, _contender: &C) -> Places<C::Held> {
        (0..PLACES).map(|_| Mutex::new(None)).collect()
    }

    fn work<C: Contender>(
        &self,
        contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &Places<C::Held>,
        _seat: usize,
        settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        let mut phase = 0;
        pace.run_timed((TAKEN * self.threads) as u64, || {
            phase += 1;
            let took = thread::scope(|scope| {
                let workers = [0, 1].map(|worker| {
                    (worker < self.threads).then(|| {
                        scope.spawn(move || {
                            system::pin(&settings.cores, worker);
                            self.phase(contender, shared, phase * self.threads + worker)
                        })
                    })
                });
                let took = workers.into_iter().flatten();
                took.map(|worker| worker.join().expect("no thread panics here"))
                    .sum()
            });
            for place in shared.iter().skip(phase % 2).step_by(2) {
                if let Some(held) = place.lock().expect("nobody panics here").take() {
                    hand.give(held);
                }
            }
            took
        });
    }

    fn settle<C: Contender>(&self, contender: &C, shared: &Places<C::Held>) {
        let mut hand = contender.hand();
        for place in shared {
            if let Some(held) = place.lock().expect("no thread panicked").take() {
                hand.give(held);
            }
        }
    }
}

/// Blocks that a thread takes in [`Mleak`].
const SEEN: usize = 32;

/// Threads that leave one block behind.
pub struct Mleak {
    /// Bytes of a block.
    pub bytes: usize,
}

impl Workload for Mleak {
    type Shared<C: Contender> = Mutex<VecDeque<C::Held>>;

    fn cell(&self) -> Cell {
        Cell {
            workload: "mleak".into(),
            bytes: self.bytes,
            touched: true,
            threads: 1,
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            blocks: SEEN + PLACES + 1,
        }
    }

    fn pins(&self) -> bool {
        false
    }

    fn prepare<C: Contender>(&self, _contender: &C) -> Self::Shared<C> {
        Mutex::new(VecDeque::with_capacity(PLACES + 1))
    }

    fn work<C: Contender>(
        &self,
        contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &Self::Shared<C>,
        _seat: usize,
        settings: &Settings,
        pace: &mut Pace<'_>,
    ) {
        let mut left = shared.lock().expect("this thread's own");
        let mut born = 0;
        pace.run_timed(SEEN as u64, || {
            born += 1;
            let (one, took) = thread::scope(|scope| {
                let short_lived = scope.spawn(move || {
                    system::pin(&settings.cores, born);
                    let began = Instant::now();
                    let mut hand = contender.hand();
                    let mut own: Vec<_> = (0..SEEN)
                        .map(|_| {
                            let held = hand.take(self.bytes);
                            touch::<C::Hand<'_>>(&held, self.bytes);
                            held
                        })
                        .collect();
                    let one = own.pop();
                    own.into_iter().for_each(|held| hand.give(held));
                    (one, began.elapsed())
                });
                short_lived.join().expect("no thread panics here")
            });
            left.extend(one);
            if left.len() > PLACES
                && let Some(oldest) = left.pop_front()
            {
                hand.give(oldest);
            }
            took
        });
    }

    fn settle<C: Contender>(&self, contender: &C, shared: &Self::Shared<C>) {
        let mut hand = contender.hand();
        let mut left = shared.lock().expect("no thread panicked");
        left.drain(..).for_each(|held| hand.give(held));
    }
}
