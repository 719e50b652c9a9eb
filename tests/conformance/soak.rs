//! Ten million steps on two threads: memory does not drift, and the numbers add up.
//!
//! ```text
//!   warm up ─▶ random steps ─▶ the same set of sizes again ─▶ look ─▶ random steps …
//! ```
//!
//! At each look the two threads hold buffers of the same sizes as at the first one, so
//! the resident bytes differ by what the allocator failed to reuse: by no more than one
//! per cent from the first quarter of the looks to the last (five over the system's heap).
//! Runs in a child process, for other tests of this binary would be in its resident bytes;
//! ten million steps where `TENSLAB_LONG` is set (`.ci/long`), a hundred thousand otherwise.

use std::process::Command;
use std::sync::{Arc, Barrier};

use tenslab::memory::{
    Allocator, Budget, Buffer, CpuAllocator, Limit, OsPages, PageSource, SharedAllocator,
    SlabAllocator,
};

use super::probe::Dice;
use super::{BLOCK, is_long};

/// Buffers that each of two threads holds.
const SLOTS: usize = 256;
const THREADS: usize = 2;
const LOOKS: usize = 20;

/// Says which soak a child runs.
const PART: &str = "TENSLAB_SOAK";

/// Bytes of this process that are in memory now, where the system says.
fn resident_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * OsPages::new().page_bytes())
}

/// From one byte to a block, small ones as likely as large ones.
fn size(dice: &mut Dice) -> usize {
    let scale = 1 << dice.below(19);
    1 + dice.below(scale)
}

/// A buffer with each of its pages written to.
fn touched(allocator: &SharedAllocator, bytes: usize) -> Buffer {
    let mut buffer = allocator.allocate(bytes, 64).unwrap();
    for byte in buffer.as_mut_slice().iter_mut().step_by(4096) {
        *byte = 1;
    }
    buffer
}

/// Refills every slot. Emptied first, so that no more than the slots is ever out.
fn refill(allocator: &SharedAllocator, slots: &mut Vec<Buffer>, mut bytes: impl FnMut() -> usize) {
    slots.clear();
    slots.extend((0..SLOTS).map(|_| touched(allocator, bytes())));
}

/// One thread's part; `look` is called by the first one while the other stands still.
fn work(
    allocator: &SharedAllocator,
    barrier: &Barrier,
    seed: u64,
    steps: usize,
    look: &mut dyn FnMut(),
) {
    let mut dice = Dice(seed);
    let mut slots = Vec::with_capacity(SLOTS);
    // All there ever is at once: later nothing is new.
    refill(allocator, &mut slots, || BLOCK);
    barrier.wait();
    for _ in 0..LOOKS {
        for _ in 0..steps / LOOKS {
            // The old one goes first.
            let slot = dice.below(SLOTS);
            drop(slots.swap_remove(slot));
            slots.push(touched(allocator, size(&mut dice)));
        }
        let mut same = Dice(seed);
        refill(allocator, &mut slots, || size(&mut same));
        barrier.wait();
        look();
        barrier.wait();
    }
}

fn soak(bottom: impl Allocator + 'static, blocks_of: Option<usize>) {
    let all = if is_long() { 10_000_000 } else { 100_000 };
    let limit = Limit::new(THREADS * SLOTS * BLOCK);
    let budget = Arc::new(Budget::new(bottom, &limit));
    let allocator = SharedAllocator::new(Arc::clone(&budget));
    let barrier = Barrier::new(THREADS);
    let requested: usize = (0..THREADS as u64)
        .map(|seed| {
            let mut same = Dice(seed);
            (0..SLOTS).map(|_| size(&mut same)).sum::<usize>()
        })
        .sum();
    let live = blocks_of.map_or(requested, |bytes| THREADS * SLOTS * bytes);
    let mut resident = Vec::new();
    let mut look = || {
        assert_eq!(allocator.outstanding(), THREADS * SLOTS);
        assert_eq!(limit.used_bytes(), live);
        assert!(limit.peak_bytes() <= limit.limit_bytes());
        if blocks_of.is_some() {
            let stats = allocator.stats();
            assert_eq!((stats.requested_bytes, stats.live_bytes), (requested, live));
            let beside = stats.unused_bytes + stats.metadata_bytes;
            assert_eq!(
                stats.live_bytes + stats.cached_bytes + beside,
                stats.reserved_bytes
            );
        }
        resident.extend(resident_bytes());
    };
    std::thread::scope(|scope| {
        for seed in 1..THREADS as u64 {
            let (allocator, barrier) = (allocator.clone(), &barrier);
            scope.spawn(move || work(&allocator, barrier, seed, all / THREADS, &mut || {}));
        }
        work(&allocator, &barrier, 0, all / THREADS, &mut look);
    });
    assert_eq!((limit.used_bytes(), allocator.outstanding()), (0, 0));
    if resident.is_empty() {
        return; // the system does not say
    }
    // The least of some looks, for the global allocator's own cache comes and goes; and not
    // from the beginning, for it fills at first.
    let least = |looks: &[usize]| looks.iter().copied().min().unwrap_or(0);
    let (first, last) = (
        least(&resident[LOOKS / 4..LOOKS / 2]),
        least(&resident[LOOKS * 3 / 4..]),
    );
    println!(
        "{all} steps: resident {} KiB, then {} KiB",
        first >> 10,
        last >> 10
    );
    // A slab keeps what it has. Under the other one is the system's heap, whose own cache
    // moves by about 3 per cent from look to look (glibc, measured), whoever asks it.
    let percent = if blocks_of.is_some() { 1 } else { 5 };
    // Nothing is said of the sanitizer's own memory.
    let drifted = last.saturating_sub(first) > first / 100 * percent;
    assert!(
        cfg!(tenslab_asan) || !drifted,
        "resident bytes: {resident:?}"
    );
}

#[test]
fn memory_does_not_drift() {
    if let Ok(part) = std::env::var(PART) {
        match part.as_str() {
            "cpu" => soak(CpuAllocator::new(), None),
            _ => soak(SlabAllocator::new(BLOCK, 512).unwrap(), Some(BLOCK)),
        }
        return;
    }
    for part in ["cpu", "slab"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "soak::memory_does_not_drift", "--nocapture"])
            .env(PART, part)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{part}: {printed}{errors}");
        println!("{part}: {printed}");
    }
}
