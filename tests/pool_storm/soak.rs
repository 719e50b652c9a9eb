//! Mixed sizes and lifetimes on two threads, for long: the process does not drift, and the
//! numbers add up at every look.
//!
//! At each look the threads hold buffers of the same sizes, touched, and the pool was trimmed:
//! so the resident bytes differ by what it lost. Runs in a child process, for other tests of this
//! binary would be in its resident bytes.

use std::process::Command;
use std::sync::{Arc, Barrier};

use tenslab::memory::{Allocator, Buffer, CachingPool, ProcessMemory, SharedAllocator};

use super::is_long;
use super::probe::Dice;

const THREADS: u64 = 2;
const LOOKS: usize = 20;

/// Buffers that a thread holds: most are replaced soon, some live for long.
const SLOTS: usize = 128;
const LASTING: usize = 16;

/// Says that this is the child.
const PART: &str = "TENSLAB_POOL_SOAK";

fn size(dice: &mut Dice) -> usize {
    let scale = 1 << (6 + dice.below(17)); // up to 4 MiB, small ones as likely as large ones
    1 + dice.below(scale)
}

fn touched(memory: &SharedAllocator, bytes: usize) -> Buffer {
    let mut buffer = memory.allocate(bytes, 64).unwrap();
    let last = bytes - 1;
    buffer.as_mut_slice()[0] = 1;
    buffer.as_mut_slice()[last] = 1;
    buffer
}

fn work(pool: &CachingPool, barrier: &Barrier, seed: u64, calls: usize, look: &mut dyn FnMut()) {
    let memory = SharedAllocator::new(pool.local_cache(8 << 20));
    let mut dice = Dice(seed);
    let mut slots: Vec<Buffer> = Vec::new();
    for _ in 0..LOOKS {
        slots.clear();
        slots.extend((0..SLOTS).map(|_| touched(&memory, size(&mut dice))));
        for step in 0..calls / LOOKS / 2 {
            let lasting = step % 1_000 == 0;
            let slot = if lasting {
                dice.below(LASTING)
            } else {
                LASTING + dice.below(SLOTS - LASTING)
            };
            drop(slots.swap_remove(slot));
            slots.push(touched(&memory, size(&mut dice)));
            slots.swap(slot, SLOTS - 1);
        }
        let mut same = Dice(seed + 100);
        slots.clear();
        slots.extend((0..SLOTS).map(|_| {
            let bytes = size(&mut same);
            let mut buffer = touched(&memory, bytes);
            buffer.as_mut_slice().fill(1);
            buffer
        }));
        barrier.wait();
        look();
        barrier.wait();
    }
}

fn soak() {
    let all = if is_long() { 100_000_000 } else { 1_000_000 };
    let pool = CachingPool::new().unwrap();
    let barrier = Arc::new(Barrier::new(THREADS as usize));
    let requested: usize = (0..THREADS)
        .map(|seed| {
            let mut same = Dice(seed + 100);
            (0..SLOTS).map(|_| size(&mut same)).sum::<usize>()
        })
        .sum();
    let mut resident = Vec::new();
    let mut look = || {
        let report = pool.report();
        let stats = report.stats;
        assert_eq!(stats.requested_bytes, requested, "{report:?}");
        assert!(stats.live_bytes >= requested && stats.live_bytes <= requested + (4 << 20));
        let beside = stats.cached_bytes + stats.unused_bytes + stats.metadata_bytes;
        assert_eq!(
            stats.live_bytes + beside,
            stats.reserved_bytes,
            "{report:?}"
        );
        assert!(report.committed_bytes >= stats.live_bytes + stats.cached_bytes);
        pool.trim();
        resident.extend(ProcessMemory::read().map(|memory| memory.resident_bytes));
    };
    std::thread::scope(|scope| {
        let calls = all / THREADS as usize;
        for seed in 1..THREADS {
            let (pool, barrier) = (pool.clone(), Arc::clone(&barrier));
            scope.spawn(move || work(&pool, &barrier, seed, calls, &mut || {}));
        }
        work(&pool, &barrier, 0, calls, &mut look);
    });
    assert_eq!(pool.stats().live_bytes, 0);
    if resident.is_empty() {
        return; // the system does not say
    }
    let most = |looks: &[usize]| looks.iter().copied().max().unwrap_or(0);
    let (first, last) = (most(&resident[..LOOKS / 2]), most(&resident[LOOKS / 2..]));
    println!(
        "{all} calls: resident {} KiB at most, then {} KiB; peak of committed {} KiB",
        first >> 10,
        last >> 10,
        pool.report().peak_committed_bytes >> 10
    );
    // Nothing is said of the sanitizer's own memory.
    assert!(
        cfg!(tenslab_asan) || last <= first + first / 100,
        "{resident:?}"
    );
}

#[test]
fn memory_does_not_drift() {
    if std::env::var_os(PART).is_some() {
        return soak();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "soak::memory_does_not_drift", "--nocapture"])
        .env(PART, "yes")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    println!("{printed}");
}
