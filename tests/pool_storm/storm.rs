use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use tenslab::memory::{AllocError, Allocator, Buffer, PoolOptions, SharedAllocator, TrimPolicy};

use super::is_long;
use super::probe::Dice;

const THREADS: u64 = 2;
const SLOTS: usize = 96;
const CAP: usize = 24 << 20;

fn steps() -> usize {
    match (is_long(), cfg!(tenslab_asan)) {
        (true, _) => 10_000_000,
        (_, true) => 200_000,
        _ => 150_000,
    }
}

/// Where every block lies that is out: first byte, and one past the last.
#[derive(Default)]
struct Oracle(Mutex<BTreeMap<usize, usize>>);

impl Oracle {
    /// A block went out: no other one has a byte of it.
    fn went_out(&self, start: usize, end: usize) {
        let mut out = self.0.lock().unwrap();
        if let Some((&other, &other_end)) = out.range(..end).next_back() {
            assert!(
                other_end <= start,
                "{start:#x} lies in the block at {other:#x}"
            );
        }
        assert!(out.insert(start, end).is_none());
    }

    /// A block grew where it stands.
    fn grew(&self, start: usize, end: usize) {
        let mut out = self.0.lock().unwrap();
        out.remove(&start).unwrap();
        drop(out);
        self.went_out(start, end);
    }

    /// A block is about to come back.
    fn comes_back(&self, start: usize) {
        assert!(self.0.lock().unwrap().remove(&start).is_some());
    }
}

/// A block, and what was written into it.
struct Out {
    buffer: Buffer,
    stamp: u64,
}

/// Places that are looked at: the ends, and one in each page.
fn places(len: usize) -> impl Iterator<Item = usize> {
    (0..len.saturating_sub(15))
        .step_by(4096)
        .chain(len.checked_sub(8))
}

impl Out {
    fn stamp(&mut self, stamp: u64) {
        self.stamp = stamp;
        let len = self.buffer.len();
        for at in places(len) {
            let bytes = &mut self.buffer.as_mut_slice()[at..at + 8];
            bytes.copy_from_slice(&(stamp ^ at as u64).to_le_bytes());
        }
    }

    fn check(&self) {
        let bytes = self.buffer.as_slice();
        for at in places(bytes.len()) {
            let found = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(
                found,
                self.stamp ^ at as u64,
                "byte {at} of {}",
                bytes.len()
            );
        }
    }
}

/// What happened. Each has to have happened.
#[derive(Debug, Default)]
struct Tally {
    taken: AtomicUsize,
    refused: AtomicUsize,
    grown: AtomicUsize,
    posted: AtomicUsize,
    zeroed: AtomicUsize,
    trims: AtomicUsize,
}

fn add(count: &AtomicUsize) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn size(dice: &mut Dice) -> usize {
    match dice.below(16) {
        0..8 => 1 + dice.below(40_000),
        8..14 => 33_000 + dice.below(400_000),
        14 => 1 + dice.below(2 << 20),
        _ => 1 + dice.below(6 << 20),
    }
}

#[test]
fn no_two_threads_ever_have_the_same_byte() {
    let policy = TrimPolicy::new().keep_bytes(8 << 20).idle_calls(5_000);
    // A tight cap, so that every rung is climbed.
    let options = PoolOptions::new().cap_bytes(CAP).trim(policy);
    let pool = options.build().unwrap();
    let (oracle, tally) = (Oracle::default(), Tally::default());
    let post: Mutex<Vec<Out>> = Mutex::new(Vec::new());
    let done = AtomicBool::new(false);
    let work = |seed: u64| {
        let mut dice = Dice(seed);
        let common = SharedAllocator::new(pool.clone());
        let local = SharedAllocator::new(pool.local_cache(3 << 20));
        let mut slots: Vec<Out> = Vec::new();
        let give_back = |out: Out| {
            out.check();
            if !out.buffer.is_empty() {
                oracle.comes_back(out.buffer.as_ptr().addr());
            }
        };
        for step in 0..steps() as u64 / THREADS {
            match dice.below(16) {
                0..7 if slots.len() < SLOTS => {
                    let bytes = size(&mut dice);
                    let align = 1
                        << if dice.below(8) == 0 {
                            dice.below(15)
                        } else {
                            6
                        };
                    let from = if dice.below(3) == 0 { &local } else { &common };
                    let zeroed = dice.below(4) == 0;
                    let buffer = if zeroed {
                        from.allocate_zeroed(bytes, align)
                    } else {
                        from.allocate(bytes, align)
                    };
                    match buffer {
                        Ok(buffer) => {
                            let start = buffer.as_ptr().addr();
                            assert!(start.is_multiple_of(align));
                            oracle.went_out(start, start + bytes);
                            if zeroed {
                                let bytes = buffer.as_slice();
                                assert!(places(bytes.len()).all(|at| bytes[at] == 0));
                                add(&tally.zeroed);
                            }
                            let mut out = Out { buffer, stamp: 0 };
                            out.stamp(step << 8 | seed);
                            slots.push(out);
                            add(&tally.taken);
                        }
                        Err(AllocError::PoolExhausted { .. }) => {
                            add(&tally.refused);
                            slots.drain(..slots.len() / 2).for_each(give_back);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                7 if !slots.is_empty() => {
                    let which = dice.below(slots.len());
                    let out = &mut slots[which];
                    out.check();
                    let bytes = out.buffer.len() + dice.below(300_000);
                    if out.buffer.try_grow(bytes).is_ok() {
                        let start = out.buffer.as_ptr().addr();
                        oracle.grew(start, start + bytes);
                        let stamp = out.stamp;
                        out.stamp(stamp);
                        add(&tally.grown);
                    }
                }
                8 if !slots.is_empty() => {
                    let out = slots.swap_remove(dice.below(slots.len()));
                    post.lock().unwrap().push(out);
                    add(&tally.posted);
                }
                9 => {
                    let theirs = post.lock().unwrap().pop();
                    theirs.into_iter().for_each(give_back);
                }
                _ if !slots.is_empty() => {
                    give_back(slots.swap_remove(dice.below(slots.len())));
                }
                _ => {}
            }
        }
        slots.into_iter().for_each(give_back);
    };
    thread::scope(|scope| {
        let keeper = scope.spawn(|| {
            let mut dice = Dice(77);
            while !done.load(Ordering::Relaxed) {
                match dice.below(4) {
                    0 => _ = pool.trim(),
                    1 => _ = pool.trim_bytes(dice.below(8 << 20)),
                    2 => pool.flush(),
                    _ => {
                        let report = pool.report();
                        assert!(report.committed_bytes <= CAP, "{report:?}");
                        let used = pool.map().bytes_of(tenslab::memory::SpanKind::Used);
                        assert!(used <= CAP);
                    }
                }
                add(&tally.trims);
                thread::sleep(std::time::Duration::from_micros(200));
            }
        });
        let work = &work;
        let threads: Vec<_> = (0..THREADS)
            .map(|seed| scope.spawn(move || work(seed)))
            .collect();
        let results: Vec<_> = threads
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        done.store(true, Ordering::Relaxed);
        keeper.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
    });
    for out in post.into_inner().unwrap() {
        out.check();
    }
    let report = pool.report();
    println!("{tally:?}\n{report:?}");
    assert_eq!(
        (report.stats.requested_bytes, report.stats.live_bytes),
        (0, 0)
    );
    pool.flush();
    assert_eq!(
        pool.map().bytes_of(tenslab::memory::SpanKind::Used),
        0,
        "a block is lost"
    );
    assert_eq!(pool.report().pieces as usize, pool.map().spans.len() + 1);
    for (what, count) in [
        ("taken", &tally.taken),
        ("refused", &tally.refused),
        ("grown", &tally.grown),
        ("posted", &tally.posted),
        ("zeroed", &tally.zeroed),
        ("trims", &tally.trims),
    ] {
        assert!(
            count.load(Ordering::Relaxed) > 20,
            "{what} hardly happened: {tally:?}"
        );
    }
    let rungs = report.rungs;
    for (what, count) in [
        ("cached", rungs.cached),
        ("fitted", rungs.fitted),
        ("committed", rungs.committed),
        ("trimmed", rungs.trimmed),
        ("refused", rungs.refused),
    ] {
        assert!(count > 0, "{what}: {rungs:?}");
    }
}
