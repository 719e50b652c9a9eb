//! One cell of the table: a workload, and everybody who competes in it, in turns.
//!
//! ```text
//!   round 1   slab  cpu  glibc  mimalloc  …      each: warm up │ barrier │ a slice, timed
//!   round 2   slab  cpu  glibc  mimalloc  …
//!   …
//!   last      slab  cpu  glibc  mimalloc  …      untimed: heap blocks are counted
//! ```
//!
//! A machine that slows down slows everybody's next slice, so ratios within a cell hold
//! where the times do not. The threads live as long as the cell and are pinned. Page faults
//! and resident bytes are read outside the slices.

use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::contender::{Contender, Shape, check};
use crate::pace::Pace;
use crate::roster::Entrants;
use crate::workloads::{Cell, Workload};
use crate::{heap, system};

/// How long and how often.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Turns of each contender.
    pub rounds: u32,
    /// Of a turn, timed.
    pub slice: Duration,
    /// Of a turn, before that.
    pub warm_up: Duration,
    /// The threads' cores.
    pub cores: Vec<usize>,
    /// Names of contenders, or parts of them. Empty: all.
    pub contenders: Vec<String>,
}

impl Settings {
    /// Does the contender of this name compete?
    pub fn wants(&self, name: &str) -> bool {
        let parts = &self.contenders;
        parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()))
    }
}

/// What came out for one contender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was done.
    #[serde(flatten)]
    pub cell: Cell,
    /// Who did it.
    pub contender: String,
    /// The fastest batch, nanoseconds an operation.
    pub min_ns: f64,
    /// The median batch.
    pub p50_ns: f64,
    /// One batch in a hundred took longer.
    pub p99_ns: f64,
    /// Batches timed.
    pub batches: u64,
    /// Page faults an operation.
    #[serde(rename = "faults_per_op")]
    pub faults: f64,
    /// Heap blocks an operation.
    #[serde(rename = "heap_blocks_per_op")]
    pub heap_blocks: f64,
    /// Growth of resident memory over the contender's turns.
    pub kept_bytes: i64,
}

#[derive(Debug)]
struct Log {
    picoseconds: Histogram<u64>,
    ops: u64,
    faults: u64,
    counted_ops: u64,
    heap_blocks: u64,
    kept_bytes: i64,
}

impl Log {
    fn new(kept_bytes: i64) -> Self {
        Self {
            // From 1 ps to 100 s, three digits.
            picoseconds: Histogram::new_with_bounds(1, 100_000_000_000_000, 3)
                .expect("bounds that a histogram takes"),
            ops: 0,
            faults: 0,
            counted_ops: 0,
            heap_blocks: 0,
            kept_bytes,
        }
    }
}

/// A turn for the clock, or a turn for the counter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Timed,
    Counted,
}

/// A contender in a workload, with its types forgotten.
trait Runner: Sync {
    fn turn(&self, turn: Turn, seat: usize, track: &Track<'_>, samples: &mut Vec<u64>);
    fn log(&self) -> &Mutex<Log>;
    fn settle(&self);
}

/// What the threads of a cell share.
struct Track<'s> {
    settings: &'s Settings,
    barrier: Barrier,
}

struct Entry<'w, C: Contender, W: Workload> {
    contender: C,
    workload: &'w W,
    shared: W::Shared<C>,
    log: Mutex<Log>,
}

impl<C: Contender, W: Workload> Runner for Entry<'_, C, W> {
    fn turn(&self, turn: Turn, seat: usize, track: &Track<'_>, samples: &mut Vec<u64>) {
        let (settings, barrier, leads) = (track.settings, &track.barrier, seat == 0);
        let counted = turn == Turn::Counted;
        let mut log = Log::new(0);
        if leads {
            log.kept_bytes -= system::resident_bytes();
        }
        barrier.wait();
        let mut hand = self.contender.hand();
        let mut work = |pace: &mut Pace<'_>| {
            self.workload.work(
                &self.contender,
                &mut hand,
                &self.shared,
                seat,
                settings,
                pace,
            );
        };
        let mut warm_up = Pace::warming(settings.warm_up, samples);
        work(&mut warm_up);
        let calls = if counted { 1 } else { warm_up.calls() };
        samples.clear();
        barrier.wait();
        if leads {
            heap::switch(counted);
            log.faults = system::page_faults();
            log.heap_blocks = heap::blocks();
        }
        barrier.wait();
        let time = if counted {
            settings.warm_up
        } else {
            settings.slice
        };
        let mut pace = Pace::measuring(time, calls, counted, samples);
        work(&mut pace);
        let ops = pace.ops();
        barrier.wait();
        if leads {
            heap::switch(false);
            log.faults = system::page_faults() - log.faults;
            log.heap_blocks = heap::blocks() - log.heap_blocks;
        }
        barrier.wait();
        drop(hand);
        barrier.wait();
        if leads {
            log.kept_bytes += system::resident_bytes();
        }
        let mut all = self.log.lock().expect("no other thread panicked");
        if counted {
            all.counted_ops += ops;
            all.heap_blocks += log.heap_blocks;
            return;
        }
        all.ops += ops;
        all.faults += log.faults;
        all.kept_bytes += log.kept_bytes;
        for &sample in samples.iter() {
            all.picoseconds.saturating_record(sample.max(1));
        }
    }

    fn log(&self) -> &Mutex<Log> {
        &self.log
    }

    fn settle(&self) {
        self.workload.settle(&self.contender, &self.shared);
    }
}

struct Entrant<'w> {
    name: &'static str,
    timed: Box<dyn Runner + 'w>,
    /// The same with its malloc wrapped, where the count needs that.
    counted: Option<Box<dyn Runner + 'w>>,
}

/// Who competes in one workload.
pub struct Field<'w, W: Workload> {
    workload: &'w W,
    settings: &'w Settings,
    entrants: Vec<Entrant<'w>>,
}

impl<'w, W: Workload> Field<'w, W> {
    /// Nobody yet.
    pub fn new(workload: &'w W, settings: &'w Settings) -> Self {
        Self {
            workload,
            settings,
            entrants: Vec::new(),
        }
    }

    fn entry<C>(
        &self,
        name: &'static str,
        align: usize,
        make: impl FnOnce(Shape) -> C,
    ) -> Box<dyn Runner + 'w>
    where
        C: Contender + Send + 'static,
    {
        let shape = self.workload.shape();
        let before = system::resident_bytes();
        let contender = make(shape);
        check(name, &contender, shape, align);
        self.workload.warm(&contender);
        let kept = system::resident_bytes() - before;
        Box::new(Entry {
            shared: self.workload.prepare(&contender),
            workload: self.workload,
            contender,
            log: Mutex::new(Log::new(kept)),
        })
    }

    /// Lets them compete, and gives what came out.
    pub fn race(self) -> Vec<Row> {
        let (workload, settings) = (self.workload, self.settings);
        let seats = workload.seats();
        let track = Track {
            settings,
            barrier: Barrier::new(seats),
        };
        thread::scope(|scope| {
            for seat in 0..seats {
                let (track, entrants) = (&track, &self.entrants);
                scope.spawn(move || {
                    if workload.pins() {
                        system::pin(&settings.cores, seat);
                    }
                    // Written to now, so that it costs no page fault in a slice.
                    let mut samples = vec![1_u64; 1 << 15];
                    samples.clear();
                    for _ in 0..settings.rounds {
                        for entrant in entrants {
                            entrant.timed.turn(Turn::Timed, seat, track, &mut samples);
                        }
                    }
                    for entrant in entrants {
                        let runner = entrant.counted.as_ref().unwrap_or(&entrant.timed);
                        runner.turn(Turn::Counted, seat, track, &mut samples);
                    }
                });
            }
        });
        let rows = self.entrants.iter().map(|entrant| self.row(entrant));
        rows.collect()
    }

    fn row(&self, entrant: &Entrant<'_>) -> Row {
        entrant.timed.settle();
        if let Some(counted) = &entrant.counted {
            counted.settle();
        }
        let log = entrant.timed.log().lock().expect("no thread panicked");
        let counted = match &entrant.counted {
            Some(runner) => {
                let log = runner.log().lock().expect("no thread panicked");
                per(log.heap_blocks, log.counted_ops)
            }
            None => per(log.heap_blocks, log.counted_ops),
        };
        let nanoseconds = |picoseconds: u64| picoseconds as f64 / 1000.0;
        let times = &log.picoseconds;
        Row {
            cell: self.workload.cell(),
            contender: entrant.name.to_owned(),
            min_ns: nanoseconds(times.min()),
            p50_ns: nanoseconds(times.value_at_quantile(0.50)),
            p99_ns: nanoseconds(times.value_at_quantile(0.99)),
            batches: times.len(),
            faults: per(log.faults, log.ops),
            heap_blocks: counted,
            kept_bytes: log.kept_bytes,
        }
    }
}

impl<W: Workload> Entrants for Field<'_, W> {
    fn add<C>(&mut self, name: &'static str, align: usize, make: impl FnOnce(Shape) -> C)
    where
        C: Contender + Send + 'static,
    {
        if self.settings.wants(name) {
            let timed = self.entry(name, align, make);
            self.entrants.push(Entrant {
                name,
                timed,
                counted: None,
            });
        }
    }

    fn add_malloc<C, D>(&mut self, name: &'static str, align: usize, timed: C, counted: D)
    where
        C: Contender + Send + 'static,
        D: Contender + Send + 'static,
    {
        if self.settings.wants(name) {
            let timed = self.entry(name, align, |_| timed);
            let counted = Some(self.entry(name, align, |_| counted));
            self.entrants.push(Entrant {
                name,
                timed,
                counted,
            });
        }
    }
}

fn per(what: u64, ops: u64) -> f64 {
    what as f64 / ops.max(1) as f64
}
