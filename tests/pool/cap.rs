use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenslab::memory::{AllocError, Buffer, Limit, PoolOptions, SharedAllocator};

use super::{KIB, MIB, check, shared};

/// What a refusal says could be had.
#[track_caller]
fn largest_free(error: AllocError) -> usize {
    match error {
        AllocError::PoolExhausted {
            largest_free_bytes, ..
        } => largest_free_bytes,
        error => panic!("{error}"),
    }
}

/// pt #35901: a large block split by small live ones.
#[test]
fn holes_between_live_blocks_become_one_large_block_elsewhere() {
    let cap = 1229 * MIB;
    let pool = PoolOptions::new().cap_bytes(cap).build().unwrap();
    let memory = shared(&pool);
    drop(memory.allocate(1024 * MIB, 64).unwrap());
    let mut small: Vec<Option<Buffer>> = (0..64)
        .map(|_| Some(memory.allocate(16 * MIB, 64).unwrap()))
        .collect();
    for block in small.iter_mut().step_by(2) {
        *block = None;
    }
    // 512 MiB are live in pieces, 512 free between them: none of those is long enough.
    let large = memory.allocate(512 * MIB, 64).unwrap();
    check(&pool);
    let report = pool.report();
    assert!(report.committed_bytes <= cap);
    assert_eq!(report.rungs.trimmed, 1, "free pages went back to make room");
    let error = memory.allocate(512 * MIB, 64).unwrap_err();
    let free = largest_free(error);
    assert_eq!(
        error,
        AllocError::PoolExhausted {
            requested_bytes: 512 * MIB,
            live_bytes: 1024 * MIB,
            cached_bytes: report.stats.cached_bytes,
            cap_bytes: cap,
            largest_free_bytes: 205 * MIB,
        }
    );
    assert!(memory.allocate(free + 1, 64).is_err());
    drop(memory.allocate(free, 64).unwrap());
    drop(large);
}

#[test]
fn what_a_refusal_says_can_be_had_can_be_had_and_no_byte_more() {
    let pool = PoolOptions::new().cap_bytes(64 * MIB).build().unwrap();
    let memory = shared(&pool);
    let mut dice = 7_u32;
    let mut out: Vec<Buffer> = Vec::new();
    let mut refusals = 0;
    for _ in 0..4_000 {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if dice >> 30 == 0 && !out.is_empty() {
            out.swap_remove(dice as usize % out.len());
            continue;
        }
        let bytes = 33 * KIB + dice as usize % (6 * MIB);
        match memory.allocate(bytes, 64) {
            Ok(block) => out.push(block),
            Err(error) => {
                refusals += 1;
                let free = largest_free(error);
                assert!(free < bytes, "{error}");
                assert!(error.is_shortage());
                if free > 0 {
                    drop(memory.allocate(free, 64).unwrap());
                }
                assert!(
                    memory.allocate((free + 1).max(33 * KIB), 64).is_err(),
                    "{error}"
                );
                let which = dice as usize % out.len();
                out.swap_remove(which);
            }
        }
        check(&pool);
    }
    assert!(refusals > 100, "{refusals} refusals prove little");
}

#[test]
fn small_sizes_are_served_from_the_heap_where_their_slab_has_no_room() {
    let pool = PoolOptions::new().cap_bytes(MIB).build().unwrap();
    let memory = shared(&pool);
    let large = memory.allocate(MIB - 8 * KIB, 64).unwrap();
    // Two pages are left: a slab's first row does not fit.
    let small = [
        memory.allocate(100, 64).unwrap(),
        memory.allocate(100, 64).unwrap(),
    ];
    assert_eq!(check(&pool).live_bytes, MIB);
    let error = memory.allocate(100, 64).unwrap_err();
    assert_eq!(largest_free(error), 0);
    drop((small, large));
    assert_eq!(check(&pool).live_bytes, 0);
    drop(memory.allocate(100, 64).unwrap());
    check(&pool);
}

#[test]
fn idle_small_blocks_make_room_for_a_large_one() {
    let pool = PoolOptions::new().cap_bytes(8 * MIB).build().unwrap();
    let memory = shared(&pool);
    let small: Vec<Buffer> = (0..1_000)
        .map(|_| memory.allocate(4 * KIB, 64).unwrap())
        .collect();
    drop(small);
    let large = memory.allocate(8 * MIB - 256 * KIB, 64).unwrap();
    assert!(pool.report().rungs.slabs >= 1);
    check(&pool);
    drop(large);
}

#[test]
fn others_of_the_same_limit_are_asked_last_and_with_no_lock_held() {
    let limit = Limit::new(64 * MIB);
    let pool = PoolOptions::new().limit(&limit).build().unwrap();
    let memory = shared(&pool);
    let idle = std::sync::Mutex::new(vec![limit.charge(16 * MIB).unwrap()]);
    let asked = Arc::new(AtomicUsize::new(0));
    let (calls, inside) = (Arc::clone(&asked), memory.clone());
    let _guard = limit.on_pressure(move |shortage| {
        calls.fetch_add(1, Ordering::Relaxed);
        // It may use the pool: a block comes and goes.
        drop(inside.allocate(40 * KIB, 64));
        assert!(shortage.missing_bytes > 0);
        idle.lock()
            .unwrap()
            .drain(..)
            .map(|charge| charge.bytes())
            .sum()
    });
    // What is free in the pool itself goes back first.
    drop(memory.allocate(40 * MIB, 64).unwrap());
    let first = memory.allocate(16 * MIB, 64).unwrap();
    let second = memory.allocate(32 * MIB, 64).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let third = memory.allocate(12 * MIB, 64).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert_eq!(pool.report().rungs.pressed, 1);
    assert!(limit.used_bytes() <= 64 * MIB);
    drop((first, second, third, memory, pool));
}

#[test]
fn a_callback_that_uses_the_pool_from_two_threads_ends() {
    let limit = Limit::new(8 * MIB);
    let pool = PoolOptions::new().limit(&limit).build().unwrap();
    let memory = shared(&pool);
    let inside = memory.clone();
    let _guard = limit.on_pressure(move |_| {
        drop(inside.allocate(64 * KIB, 64));
        drop(inside.allocate(100, 64));
        0
    });
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = Vec::new();
                for round in 0..2_000 {
                    match memory.allocate(300 * KIB, 64) {
                        Ok(block) => out.push(block),
                        Err(_) => out.truncate(round % 7),
                    }
                }
            });
        }
    });
    assert_eq!(check(&pool).live_bytes, 0);
    assert!(pool.report().rungs.refused > 0);
}

#[test]
fn what_a_pool_took_of_a_limit_is_back_when_it_is_gone() {
    let limit = Limit::new(1 << 30);
    let pool = PoolOptions::new().limit(&limit).build().unwrap();
    let memory = shared(&pool);
    let (large, small) = (
        memory.allocate(5 * MIB, 64).unwrap(),
        memory.allocate(1, 1).unwrap(),
    );
    assert_eq!(limit.used_bytes(), pool.report().committed_bytes);
    drop((pool, memory));
    assert!(limit.used_bytes() >= 5 * MIB, "its buffers keep it");
    drop((large, small));
    assert_eq!(limit.used_bytes(), 0);
}

#[test]
fn a_refusal_says_what_to_do() {
    let pool = PoolOptions::new().cap_bytes(MIB).build().unwrap();
    let error = SharedAllocator::new(pool)
        .allocate(3 * MIB, 64)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "3145728 bytes do not fit the pool: it may have 1048576, of which 0 are in use and 0 \
         free; the largest request that fits now is 1048576"
    );
    assert!(
        !error.is_shortage(),
        "nothing that is given back would help"
    );
}

#[test]
fn a_thousand_sizes_reserve_no_more_than_a_few() {
    let pool = PoolOptions::new().build().unwrap();
    let memory = shared(&pool);
    let mut peak = 0;
    for size in 1..=1_000 {
        let block = memory.allocate(size * 10_000, 64).unwrap();
        peak = peak.max(block.len());
    }
    let most = pool.report().peak_committed_bytes;
    assert!(most * 10 <= peak * 13, "{most} bytes for {peak}");
}
