use tenslab::memory::{
    Allocator, Buffer, CachingPool, FakePages, OsPages, PoolOptions, ProcessMemory, TrimPolicy,
    resident_bytes,
};

use super::{KIB, MIB, check, shared};

fn touched(memory: &tenslab::SharedAllocator, bytes: usize) -> Buffer {
    let mut block = memory.allocate(bytes, 64).unwrap();
    block
        .as_mut_slice()
        .iter_mut()
        .step_by(4096)
        .for_each(|byte| *byte = 1);
    block
}

#[test]
fn a_trim_says_what_went_and_leaves_what_is_out() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let blocks: Vec<Buffer> = (0..8).map(|_| touched(&memory, 4 * MIB)).collect();
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for (at, block) in blocks.into_iter().enumerate() {
        if at % 2 == 0 {
            kept.push(block)
        } else {
            gone.push(block)
        }
    }
    drop(gone);
    assert_eq!(pool.trim(), 16 * MIB);
    let stats = check(&pool);
    assert_eq!((stats.live_bytes, stats.cached_bytes), (16 * MIB, 0));
    for block in &kept {
        assert_eq!(resident_bytes(block.as_slice()), Some(4 * MIB));
        assert!(block.as_slice().iter().step_by(4096).all(|&byte| byte == 1));
    }
    assert_eq!(pool.trim(), 0);
    // What went comes again.
    drop(touched(&memory, 4 * MIB));
    check(&pool);
}

#[test]
fn a_trim_of_some_bytes_takes_the_oldest_and_a_part_of_the_last() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let old = touched(&memory, 4 * MIB);
    let wall = touched(&memory, 2 * MIB);
    let young = touched(&memory, 4 * MIB);
    let end = touched(&memory, 2 * MIB);
    let places = (old.as_ptr(), young.as_ptr());
    drop(old);
    drop(young);
    assert_eq!(pool.trim_bytes(5 * MIB), 5 * MIB);
    // Of the younger one the end went, for requests come from the front.
    let (first, second) = (
        memory.allocate_zeroed(4 * MIB, 64).unwrap(),
        memory.allocate(4 * MIB, 64).unwrap(),
    );
    assert_eq!(
        (first.as_ptr(), second.as_ptr()),
        (places.0.cast(), places.1.cast())
    );
    assert_eq!(resident_bytes(first.as_slice()), Some(0));
    assert_eq!(resident_bytes(&second.as_slice()[..3 * MIB]), Some(3 * MIB));
    assert_eq!(resident_bytes(&second.as_slice()[3 * MIB..]), Some(0));
    assert_eq!(pool.trim_bytes(0), 0);
    drop((wall, end));
    check(&pool);
}

#[test]
fn a_pool_keeps_no_more_than_its_policy_says() {
    let policy = TrimPolicy::new().keep_bytes(16 * MIB);
    let pool = PoolOptions::new().trim(policy).build().unwrap();
    let memory = shared(&pool);
    let blocks: Vec<Buffer> = (0..20).map(|_| touched(&memory, 5 * MIB)).collect();
    for block in blocks {
        drop(block);
        assert!(check(&pool).cached_bytes <= 16 * MIB + 2 * MIB);
    }
    assert!(
        check(&pool).cached_bytes >= 8 * MIB,
        "and no less than is sensible"
    );
}

#[test]
fn what_the_caches_spill_is_kept_to_the_policy_too() {
    let policy = TrimPolicy::new().keep_bytes(4 * MIB);
    let pool = PoolOptions::new().trim(policy).build().unwrap();
    let memory = shared(&pool);
    // Sizes that a cache keeps, each another one, so that nothing stays together in a depot.
    let blocks: Vec<Buffer> = (0..400)
        .map(|at| touched(&memory, 64 * KIB + at % 50 * 4 * KIB))
        .collect();
    for block in blocks {
        drop(block);
        // The caches' own apart, and an eighth of what is given back at once.
        assert!(check(&pool).cached_bytes <= 4 * MIB + 8 * MIB + 2 * MIB);
    }
}

/// ort #25800, #9509: a spike, and then small steps.
#[test]
fn what_a_spike_left_goes_by_itself_after_so_many_calls() {
    let policy = TrimPolicy::new().idle_calls(1_000);
    let pool = PoolOptions::new().trim(policy).build().unwrap();
    let memory = shared(&pool);
    let spike: Vec<Buffer> = (0..16).map(|_| touched(&memory, 4 * MIB)).collect();
    drop(spike);
    let held = |pool: &CachingPool| check(pool).cached_bytes;
    assert!(held(&pool) >= 64 * MIB);
    let keep = touched(&memory, MIB);
    let mut steps = 0;
    while held(&pool) > 8 * MIB {
        // A step of small sizes and of sizes that a cache has.
        for bytes in [100, 4 * KIB, 64 * KIB, 500 * KIB] {
            drop(memory.allocate(bytes, 64).unwrap());
        }
        steps += 1;
        assert!(steps < 1_000, "{} bytes are still there", held(&pool));
    }
    // Two calls each; not before a thousand of them, and not long after.
    assert!(steps * 8 >= 1_000, "{steps} steps");
    drop(keep);
}

/// The case of the lesson: 1 GiB, then 100 small steps, then a trim.
#[test]
fn after_a_spike_of_a_gibibyte_the_process_is_as_small_as_what_is_live() {
    let rss = || {
        ProcessMemory::read()
            .ok()
            .map(|memory| memory.resident_bytes)
    };
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let live = touched(&memory, 32 * MIB);
    let Some(before) = rss() else { return };
    let spike: Vec<Buffer> = (0..64).map(|_| touched(&memory, 16 * MIB)).collect();
    drop(spike);
    for step in 0..100 {
        let small: Vec<Buffer> = (0..20)
            .map(|at| touched(&memory, (at + 1) * 9_000))
            .collect();
        drop(small);
        let _ = step;
    }
    let gone = pool.trim();
    assert!(gone >= 1024 * MIB, "{gone}");
    let after = rss().unwrap();
    // Other tests run beside this one: what they hold is not this pool's.
    let own = check(&pool);
    assert_eq!((own.live_bytes, own.cached_bytes), (32 * MIB, 0));
    assert!(after <= before + 512 * MIB, "{before} -> {after}");
    drop(live);
}

#[test]
fn a_trim_makes_one_call_for_neighbours_and_none_under_the_lock() {
    let pages = std::sync::Arc::new(FakePages::over(OsPages::new()));
    let options = PoolOptions::new().reservation_bytes(256 * MIB);
    let pool = options.build_over(std::sync::Arc::clone(&pages)).unwrap();
    let memory = shared(&pool);
    let mut blocks: Vec<Buffer> = (0..16).map(|_| touched(&memory, MIB + 4096)).collect();
    // Three stretches of neighbours.
    let back: Vec<Buffer> = [14, 13, 9, 8, 7, 2]
        .into_iter()
        .map(|at| blocks.swap_remove(at))
        .collect();
    let _ = blocks.len();
    drop(back);
    let before = pages.counts().decommits;
    pool.trim();
    let stretches = pages.counts().decommits - before;
    assert!((1..=5).contains(&stretches), "{stretches} calls");
    let counts = pages.counts();
    let report = pool.report();
    // The source's books and the pool's: what is committed is what counts, and the records.
    assert!(counts.committed_bytes >= report.committed_bytes);
    drop(blocks);
    check(&pool);
}
