//! Threads and a slab: who finds what another thread gave back, and how much memory many
//! threads take.
//!
//! ```text
//!   carved = live + cached        blocks that were ever out and have pages
//!   peak                          the most that were out at one time, told by a Meter
//!
//!   carved <= peak + one for each thread + 10 magazines of 24
//! ```
//!
//! The bound does not know how many threads there have been. Numbers (#19, #30, …) are rows
//! of `docs/lessons.md`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use probe::{Dice, watchdog};
use tenslab::memory::{
    AllocError, Allocator, Budget, Buffer, Limit, Meter, SharedAllocator, SlabAllocator, Stats,
};

const KIB: usize = 1 << 10;

/// Blocks that magazines may hold while they are taken, when nobody can steal them: ten of
/// 24.
const IN_MAGAZINES: usize = 10 * 24;

type Metered = Arc<Meter<SlabAllocator>>;

fn metered(block_bytes: usize, blocks: u32) -> (Metered, SharedAllocator) {
    let meter = Arc::new(Meter::new(SlabAllocator::new(block_bytes, blocks).unwrap()));
    (Arc::clone(&meter), SharedAllocator::new(meter))
}

/// Blocks that were out and have pages.
fn carved(stats: Stats, block_bytes: usize) -> usize {
    (stats.live_bytes + stats.cached_bytes) / block_bytes
}

/// The bound of the picture; `peak` is the meter's, which counts a block after it went out
/// and until before it goes back, so one for each thread is added.
fn stays_bounded(meter: &Metered, block_bytes: usize, threads: usize, what: &str) {
    let peak = meter.snapshot().total.peak_live_bytes / block_bytes;
    let carved = carved(meter.stats(), block_bytes);
    let most = peak + threads + IN_MAGAZINES;
    assert!(
        carved <= most,
        "{what}: {carved} blocks, {peak} at one time"
    );
}

/// All numbers are zero, and after a trim nothing is kept.
fn ends_empty(meter: &Metered, what: &str) {
    let total = meter.snapshot().total;
    assert_eq!((total.allocations, total.requested_bytes), (0, 0), "{what}");
    meter.upstream().trim();
    let stats = meter.stats();
    assert_eq!((stats.live_bytes, stats.cached_bytes), (0, 0), "{what}");
    assert_eq!(meter.upstream().in_use(), 0, "{what}");
}

/// #19: however many threads gave the blocks back, into whichever magazines, and are still
/// there: one that asks at the cap gets every one of them before it is refused.
#[test]
fn the_last_blocks_are_found_in_whatever_magazine_they_are() {
    for threads in [1, 2, 7, 8, 12] {
        for (block_bytes, each) in [(64, 1), (4 * KIB, 5), (64 * KIB, 40)] {
            let what = format!("{threads} threads, {each} blocks of {block_bytes} each");
            let blocks = threads * each;
            let slab = SlabAllocator::new(block_bytes, u32::try_from(blocks).unwrap()).unwrap();
            let limit = Limit::new(blocks * block_bytes);
            let handle = SharedAllocator::new(Budget::new(slab, &limit));
            let (given_back, over) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let own: Vec<_> = (0..each)
                            .map(|_| handle.allocate(block_bytes, 64).unwrap())
                            .collect();
                        // Nobody is refused, so all are out at once here.
                        given_back.wait();
                        drop(own);
                        given_back.wait();
                        over.wait();
                    });
                }
                given_back.wait();
                given_back.wait();
                let all: Vec<_> = (0..blocks)
                    .map(|at| {
                        let found = handle.allocate(block_bytes, 64);
                        found.unwrap_or_else(|error| panic!("{what}, after {at}: {error}"))
                    })
                    .collect();
                assert_eq!(limit.available_bytes(), 0, "{what}");
                let error = handle.allocate(1, 1).unwrap_err();
                assert!(matches!(error, AllocError::OverBudget { .. }), "{what}");
                drop(all);
                over.wait();
            });
            assert_eq!((limit.used_bytes(), handle.outstanding()), (0, 0), "{what}");
        }
    }
}

/// #19 by the raw door: a thread that gives back and one that takes, at a cap of one block,
/// take turns without ever being refused.
#[test]
fn one_block_goes_to_and_fro_between_two_threads() {
    let slab = Arc::new(SlabAllocator::new(4 * KIB, 1).unwrap());
    let (there, here) = (mpsc::sync_channel(0), mpsc::sync_channel(0));
    let other = std::thread::spawn({
        let slab = Arc::clone(&slab);
        move || {
            for id in there.1 {
                slab.give_back_id(id).unwrap();
                here.0.send(slab.take_id().unwrap()).unwrap();
            }
        }
    });
    let mut id = slab.take_id().unwrap();
    for _ in 0..2000 {
        there.0.send(id).unwrap();
        id = here.1.recv().unwrap();
        slab.give_back_id(id).unwrap();
        id = slab.take_id().unwrap();
    }
    drop(there.0);
    other.join().unwrap();
    assert_eq!(slab.in_use(), 1);
}

/// #29: one thread took all of it, another gave it back, both are still there and idle. A
/// third one trims, and all of it goes.
#[test]
fn what_one_thread_took_and_another_gave_back_goes_by_a_third() {
    let long = std::env::var_os("TENSLAB_LONG").is_some();
    let scale = if long { 1_000_000 } else { 50_000 };
    for (block_bytes, blocks) in [(64, scale), (KIB, scale), (16 * KIB, scale / 50)] {
        let what = format!("{blocks} blocks of {block_bytes}");
        let (meter, handle) = metered(block_bytes, u32::try_from(blocks).unwrap());
        let (send, receive) = mpsc::sync_channel::<Buffer>(1000);
        let idle = Barrier::new(3);
        std::thread::scope(|scope| {
            let idle = &idle;
            let own = handle.clone();
            scope.spawn(move || {
                let mut kept = Vec::new();
                for at in 0..blocks {
                    let mut buffer = own.allocate(block_bytes, 1).unwrap();
                    buffer.as_mut_slice().fill(1);
                    // Half of them are out all at once.
                    if at % 2 == 0 {
                        kept.push(buffer);
                    } else {
                        send.send(buffer).unwrap();
                    }
                }
                kept.into_iter()
                    .for_each(|buffer| send.send(buffer).unwrap());
                drop(send);
                idle.wait();
                idle.wait();
            });
            scope.spawn(move || {
                receive.into_iter().for_each(drop);
                idle.wait();
                idle.wait();
            });
            idle.wait();
            let cached = meter.stats().cached_bytes;
            let went = meter.upstream().trim();
            let after = meter.stats();
            // Not before they are let go: a failure would wait for them.
            idle.wait();
            assert!(cached >= blocks / 2 * block_bytes, "{what}: {cached}");
            if cfg!(all(target_os = "linux", not(tenslab_portable))) {
                assert!(went >= cached, "{what}: {went} of {cached}");
            }
            assert_eq!((after.live_bytes, after.cached_bytes), (0, 0), "{what}");
        });
        ends_empty(&meter, &what);
    }
}

/// #30: sixteen threads take, one that never took anything gives back. At least so much is
/// live all the while that one and a half times it bounds what is held.
#[test]
fn sixteen_that_take_and_one_that_gives_back_hold_no_more_than_half_as_much_again() {
    const LIVE: usize = 1024;
    const EACH: usize = 2000;
    for block_bytes in [64, 4 * KIB] {
        let (meter, handle) = metered(block_bytes, 1 << 20);
        let (send, receive) = mpsc::sync_channel::<Buffer>(64);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                let (handle, send) = (handle.clone(), send.clone());
                scope.spawn(move || {
                    for _ in 0..EACH {
                        send.send(handle.allocate(block_bytes, 64).unwrap())
                            .unwrap();
                    }
                });
            }
            drop(send);
            let meter = &meter;
            scope.spawn(move || {
                let mut live = std::collections::VecDeque::new();
                for buffer in receive {
                    live.push_back(buffer);
                    if live.len() > LIVE {
                        live.pop_front();
                        // Never below zero, which would be a huge number.
                        let total = meter.snapshot().total;
                        assert!((LIVE..2 * LIVE).contains(&total.allocations), "{total:?}");
                        assert_eq!(total.live_bytes, total.allocations * block_bytes);
                    }
                }
                let carved = carved(meter.stats(), block_bytes);
                let peak = meter.snapshot().total.peak_live_bytes / block_bytes;
                assert!(carved <= peak * 3 / 2, "{carved} for {peak}");
            });
        });
        let what = format!("blocks of {block_bytes}");
        stays_bounded(&meter, block_bytes, 17, &what);
        ends_empty(&meter, &what);
    }
}

/// #33, #53 and #32: rounds of threads that are made anew, that exchange what they have
/// through a common pool, and of whose blocks some survive them. Memory follows what was out
/// at one time; the numbers are exact after each round.
#[test]
fn threads_come_and_go_and_some_of_what_they_had_survives() {
    const THREADS: usize = 40;
    const ROUNDS: usize = 6;
    let progress = Arc::new(AtomicUsize::new(0));
    let dog = watchdog("threads that come and go", &progress);
    for block_bytes in [128, 4 * KIB, 64 * KIB] {
        let (meter, handle) = metered(block_bytes, 1 << 20);
        let pool: Mutex<Vec<Buffer>> = Mutex::default();
        for round in 0..ROUNDS {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (handle, pool, progress) = (handle.clone(), &pool, &progress);
                    scope.spawn(move || {
                        let mut dice = Dice((round * THREADS + thread) as u64);
                        let mut own = Vec::new();
                        for _ in 0..300 {
                            match dice.below(5) {
                                0 | 1 => own.push(handle.allocate(block_bytes, 64).unwrap()),
                                2 if !own.is_empty() => {
                                    own.swap_remove(dice.below(own.len()));
                                }
                                3 if !own.is_empty() => {
                                    let other = own.swap_remove(dice.below(own.len()));
                                    let mut pool = pool.lock().unwrap();
                                    if pool.len() < 200 {
                                        pool.push(other);
                                    } else {
                                        let at = dice.below(pool.len());
                                        own.push(std::mem::replace(&mut pool[at], other));
                                    }
                                }
                                _ => {}
                            }
                            progress.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            let what = format!("blocks of {block_bytes}, round {round}");
            let survivors = pool.lock().unwrap().len();
            let total = meter.snapshot().total;
            assert_eq!(total.allocations, survivors, "{what}");
            assert_eq!(total.live_bytes, survivors * block_bytes, "{what}");
            assert_eq!(meter.stats().live_bytes, survivors * block_bytes, "{what}");
            stays_bounded(&meter, block_bytes, THREADS, &what);
            if round == ROUNDS / 2 {
                // With survivors everywhere, then gone on with.
                handle.trim();
                assert_eq!(meter.stats().live_bytes, survivors * block_bytes, "{what}");
            }
        }
        pool.into_inner().unwrap().clear();
        ends_empty(&meter, &format!("blocks of {block_bytes}"));
    }
    dog.done();
}

/// #53: a thousand threads one after the other, each with a few blocks of its own that it
/// leaves to be dropped by the next one.
#[test]
fn a_thousand_threads_that_ever_were_leave_nothing_behind() {
    let (meter, handle) = metered(4 * KIB, 1 << 20);
    let mut left: Vec<Buffer> = Vec::new();
    for _ in 0..1000 {
        let handle = handle.clone();
        let work = move || {
            let own: Vec<_> = (0..3)
                .map(|_| handle.allocate(4 * KIB, 64).unwrap())
                .collect();
            drop(left);
            own
        };
        left = std::thread::spawn(work).join().unwrap();
    }
    assert_eq!(carved(meter.stats(), 4 * KIB), 6, "two threads' worth");
    drop(left);
    ends_empty(&meter, "after a thousand threads");
}
