//! Lists of events, played from beginning to end: blocks of many sizes that come and go in
//! an order of their own.
//!
//! One operation is one block, taken and given back. A batch is the whole list, so that
//! everybody's batches are the same work; at its end nothing is out.

use std::borrow::Cow;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Mutex;

use super::{Cell, Workload};
use crate::contender::{Contender, Hand, Shape, touch};
use crate::pace::Pace;
use crate::pool_workloads::Event;
use crate::race::Settings;
use crate::report::{KIB, MIB};

/// A list of events in which blocks have places instead of ids, and all come back.
#[derive(Clone, Debug)]
pub struct Script {
    steps: Vec<Step>,
    places: usize,
    peak_bytes: usize,
    largest_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take { place: usize, bytes: usize },
    GiveBack { place: usize },
}

impl Script {
    /// The events, all sizes divided by `scale`; what is out at their end comes back then.
    pub fn new(events: &[Event], scale: usize) -> Self {
        let mut script = Self {
            steps: Vec::with_capacity(events.len()),
            places: 0,
            peak_bytes: 0,
            largest_bytes: 0,
        };
        let mut out = Vec::new();
        let mut vacant = Vec::new();
        let mut live = 0;
        for event in events {
            match *event {
                Event::Take { id, bytes } => {
                    assert_eq!(id, out.len(), "ids count up");
                    let bytes = bytes.div_ceil(scale);
                    let place = vacant.pop().unwrap_or(script.places);
                    script.places = script.places.max(place + 1);
                    script.steps.push(Step::Take { place, bytes });
                    out.push(Some((place, bytes)));
                    live += bytes;
                    script.peak_bytes = script.peak_bytes.max(live);
                    script.largest_bytes = script.largest_bytes.max(bytes);
                }
                Event::GiveBack { id } => {
                    let (place, bytes) = out[id].take().expect("a block comes back once");
                    script.steps.push(Step::GiveBack { place });
                    vacant.push(place);
                    live -= bytes;
                }
            }
        }
        for (place, _) in out.into_iter().flatten() {
            script.steps.push(Step::GiveBack { place });
        }
        script
    }

    /// Blocks that are taken, and given back.
    pub fn blocks(&self) -> usize {
        self.steps.len() / 2
    }

    /// The most that is asked for at one time.
    pub fn peak_bytes(&self) -> usize {
        self.peak_bytes
    }

    /// Bytes of the largest block, in whole KiB or MiB.
    pub fn roughly(&self) -> usize {
        let largest = self.largest_bytes;
        largest.next_multiple_of(if largest > MIB { MIB } else { KIB })
    }

    /// What a contender has to be ready for.
    pub fn shape(&self) -> Shape {
        Shape {
            bytes: self.largest_bytes,
            // Two for the check before the race.
            blocks: self.places.max(2),
        }
    }

    /// Empty places for the blocks.
    pub fn places<H>(&self) -> Vec<Option<H>> {
        (0..self.places).map(|_| None).collect()
    }

    /// Plays all of it.
    pub fn play<H: Hand>(&self, hand: &mut H, places: &mut [Option<H::Held>], touched: bool) {
        for step in &self.steps {
            match *step {
                Step::Take { place, bytes } => {
                    let held = hand.take(bytes);
                    if touched {
                        touch::<H>(&held, bytes);
                    } else {
                        black_box(H::start(&held));
                    }
                    places[place] = Some(held);
                }
                Step::GiveBack { place } => {
                    hand.give(places[place].take().expect("taken before"));
                }
            }
        }
    }
}

/// Play a script, by one thread.
pub struct Play {
    /// What the table calls it.
    pub name: &'static str,
    /// What is played.
    pub script: Script,
    /// For the cell's name: no block is larger.
    pub bytes: usize,
    /// Is every page written to?
    pub touched: bool,
}

impl Workload for Play {
    type Shared<C: Contender> = Mutex<Vec<Option<C::Held>>>;

    fn cell(&self) -> Cell {
        Cell {
            workload: Cow::Borrowed(self.name),
            bytes: self.bytes,
            touched: self.touched,
            threads: 1,
        }
    }

    fn shape(&self) -> Shape {
        self.script.shape()
    }

    fn warm<C: Contender>(&self, contender: &C) {
        let mut places = self.script.places();
        let mut hand = contender.hand();
        self.script.play(&mut hand, &mut places, self.touched);
    }

    fn prepare<C: Contender>(&self, _contender: &C) -> Self::Shared<C> {
        Mutex::new(self.script.places())
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
        let mut places = shared.lock().expect("this thread's own");
        pace.run(self.script.blocks() as u64, || {
            self.script.play(hand, &mut places, self.touched);
            ControlFlow::Continue(())
        });
    }

    fn settle<C: Contender>(&self, _contender: &C, _shared: &Self::Shared<C>) {}
}
