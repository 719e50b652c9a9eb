use std::thread;

use tenslab::memory::{CachingPool, PoolOptions, SharedAllocator};

use super::{KIB, MIB, check, shared};

#[test]
fn a_block_comes_back_from_this_threads_cache_and_no_other_size_does() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let first = memory.allocate(100 * KIB, 64).unwrap();
    let address = first.as_ptr();
    drop(first);
    let before = pool.report().rungs;
    let again = memory.allocate(98 * KIB, 64).unwrap();
    assert_eq!(again.as_ptr(), address, "as many pages");
    assert_eq!(pool.report().rungs.cached, before.cached + 1);
    drop(again);
    drop(memory.allocate(96 * KIB, 64).unwrap());
    let after = pool.report().rungs;
    assert_eq!(after.cached, before.cached + 1);
    assert_eq!(after.fitted, before.fitted + 1, "from the heap");
    check(&pool);
}

/// rmm #532: what another thread has in its cache is found before anything grows.
#[test]
fn what_another_thread_cached_is_found_at_the_cap() {
    let pool = PoolOptions::new().cap_bytes(10 * MIB).build().unwrap();
    let memory = shared(&pool);
    thread::scope(|scope| {
        scope.spawn(|| {
            let blocks: Vec<_> = (0..4).map(|_| memory.allocate(MIB, 64).unwrap()).collect();
            drop(blocks);
            // They are in this thread's cache, and it lives on.
            let worker = SharedAllocator::new(pool.local_cache(6 * MIB));
            let held: Vec<_> = (0..6).map(|_| worker.allocate(MIB, 64).unwrap()).collect();
            drop(held);
            let whole = thread::scope(|inner| {
                inner
                    .spawn(|| memory.allocate(10 * MIB, 64))
                    .join()
                    .unwrap()
            });
            let whole = whole.expect("two caches hold it all");
            assert_eq!(whole.len(), 10 * MIB);
            assert_eq!(pool.report().rungs.emptied, 1);
            drop(worker);
        });
    });
    assert_eq!(check(&pool).live_bytes, 0);
}

#[test]
fn a_cache_holds_no_more_than_it_may() {
    let pool = CachingPool::new().unwrap();
    let worker = SharedAllocator::new(pool.local_cache(20 * MIB));
    let blocks: Vec<_> = (0..5)
        .map(|_| worker.allocate(7 * MIB, 64).unwrap())
        .collect();
    drop(blocks);
    let before = pool.report().rungs;
    // Two of seven were kept: a third would be one too many.
    let kept: Vec<_> = (0..3)
        .map(|_| worker.allocate(7 * MIB, 64).unwrap())
        .collect();
    let after = pool.report().rungs;
    assert_eq!(after.cached - before.cached, 2);
    assert_eq!(after.fitted - before.fitted, 1);
    drop(kept);
    // One that is larger than all of it goes past it.
    drop(worker.allocate(21 * MIB, 64).unwrap());
    let before = pool.report().rungs.cached;
    drop(worker.allocate(21 * MIB, 64).unwrap());
    assert_eq!(pool.report().rungs.cached, before);
    check(&pool);
}

#[test]
fn a_workers_buffers_outlive_it_and_its_numbers_stay() {
    let pool = CachingPool::new().unwrap();
    let local = pool.local_cache(64 * MIB);
    assert_eq!(local.flush(), 0);
    let worker = SharedAllocator::new(local);
    let kept = worker.allocate(5 * MIB, 64).unwrap();
    drop(worker.allocate(3 * MIB, 64).unwrap());
    drop(worker.allocate(3 * MIB, 64).unwrap());
    assert_eq!(pool.report().rungs.cached, 1);
    drop(worker);
    let stats = check(&pool);
    assert_eq!(
        (stats.requested_bytes, stats.live_bytes),
        (5 * MIB, 5 * MIB)
    );
    thread::spawn(move || drop(kept)).join().unwrap();
    let report = pool.report();
    assert_eq!((report.stats.requested_bytes, report.rungs.cached), (0, 1));
    assert_eq!(report.pieces, 2, "its cache was emptied, and all is one");
    check(&pool);
}

#[test]
fn blocks_that_a_thread_left_behind_are_everybodys() {
    let pool = PoolOptions::new().cap_bytes(4 * MIB).build().unwrap();
    let memory = shared(&pool);
    for _ in 0..50 {
        thread::scope(|scope| {
            scope.spawn(|| drop(memory.allocate(MIB, 64).unwrap()));
        });
    }
    assert!(
        pool.report().peak_committed_bytes <= 2 * MIB,
        "one thread at a time, one block"
    );
    drop(memory.allocate(4 * MIB, 64).unwrap());
}

/// mi #333, #351: one thread takes, another gives back.
#[test]
fn what_one_thread_takes_and_another_gives_back_goes_round_in_batches() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let (give, given) = std::sync::mpsc::channel::<Vec<tenslab::Buffer>>();
    let (tell, told) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            for blocks in given {
                drop(blocks);
                tell.send(()).unwrap();
            }
        });
        for _ in 0..20 {
            give.send(
                (0..64)
                    .map(|_| memory.allocate(64 * KIB, 64).unwrap())
                    .collect(),
            )
            .unwrap();
            told.recv().unwrap();
        }
        drop(give);
    });
    let rungs = pool.report().rungs;
    // All but the first round, and in each what stays in the other thread's cache, which is taken
    // out of there before anything grows.
    let from_the_heap = rungs.fitted + rungs.committed + rungs.emptied;
    assert_eq!(rungs.cached + from_the_heap, 20 * 64);
    assert!(from_the_heap <= 64 + 19 * 24, "{rungs:?}");
    assert!(pool.report().peak_committed_bytes <= 64 * 64 * KIB);
    assert_eq!(check(&pool).live_bytes, 0);
    pool.flush();
    assert_eq!(pool.report().pieces, 2, "all of it is one again");
}
