//! The meter: numbers by tag that add up, at every quiescent point, from any thread.
//!
//! ```text
//!   weights ─┐
//!   kv ──────┼─▶ SharedAllocator ─▶ Meter ─▶ slab
//!   scratch ─┘    (one handle for each tag)   └ snapshot: by tag, and total
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::sync::Arc;

use probe::{Dice, FailAt, Spy};
use tenslab::memory::{
    Allocator, CpuAllocator, Meter, MeterStats, SharedAllocator, SlabAllocator, Tag,
};
use tenslab::{DType, Tensor};

const BLOCK: usize = 4096;

fn metered(blocks: u32) -> (Arc<Meter<SlabAllocator>>, SharedAllocator) {
    let meter = Arc::new(Meter::new(SlabAllocator::new(BLOCK, blocks).unwrap()));
    let handle = SharedAllocator::new(Arc::clone(&meter));
    (meter, handle)
}

fn adds_up(stats: &MeterStats) {
    let sum = |number: fn(&MeterStats, Tag) -> usize| -> usize {
        Tag::ALL.iter().map(|&tag| number(stats, tag)).sum()
    };
    assert_eq!(
        stats.total.allocations,
        sum(|stats, tag| stats[tag].allocations)
    );
    assert_eq!(
        stats.total.live_bytes,
        sum(|stats, tag| stats[tag].live_bytes)
    );
    assert_eq!(
        stats.total.requested_bytes,
        sum(|stats, tag| stats[tag].requested_bytes)
    );
    for tag in Tag::ALL {
        assert!(stats[tag].peak_live_bytes >= stats[tag].live_bytes);
        assert!(stats[tag].peak_live_bytes <= stats.total.peak_live_bytes);
    }
    assert!(stats.total.peak_live_bytes <= sum(|stats, tag| stats[tag].peak_live_bytes));
}

#[test]
fn each_tag_has_its_own_numbers_and_together_they_are_the_total() {
    let (meter, handle) = metered(100);
    assert_eq!(meter.snapshot(), MeterStats::default());
    let kv = handle.with_tag(Tag::Kv);
    let weights = handle.with_tag(Tag::Weights);
    let out = [
        kv.allocate(100, 64).unwrap(),
        kv.allocate(200, 64).unwrap(),
        weights.allocate(BLOCK, 64).unwrap(),
        weights.allocate(0, 64).unwrap(),
        handle.allocate(1, 1).unwrap(),
    ];
    let stats = meter.snapshot();
    adds_up(&stats);
    let row = |tag: Tag| {
        let stats = stats[tag];
        (stats.allocations, stats.requested_bytes, stats.live_bytes)
    };
    assert_eq!(row(Tag::Kv), (2, 300, 2 * BLOCK));
    assert_eq!(row(Tag::Weights), (2, BLOCK, BLOCK));
    assert_eq!(row(Tag::Other), (1, 1, BLOCK));
    assert_eq!(row(Tag::Scratch), (0, 0, 0));
    assert_eq!(stats.total.live_bytes, 4 * BLOCK);
    drop(out);
    let stats = meter.snapshot();
    adds_up(&stats);
    assert_eq!((stats.total.allocations, stats.total.live_bytes), (0, 0));
    assert_eq!(stats[Tag::Kv].peak_live_bytes, 2 * BLOCK);
    assert_eq!(stats.total.peak_live_bytes, 4 * BLOCK);
}

#[test]
fn a_peak_is_the_most_that_was_out_at_one_time() {
    let (meter, handle) = metered(100);
    let scratch = handle.with_tag(Tag::Scratch);
    for count in [3, 7, 5] {
        let out: Vec<_> = (0..count)
            .map(|_| scratch.allocate(1, 1).unwrap())
            .collect();
        assert_eq!(out.len(), count);
    }
    let stats = meter.snapshot();
    assert_eq!(stats[Tag::Scratch].peak_live_bytes, 7 * BLOCK);
    assert_eq!(stats.total.peak_live_bytes, 7 * BLOCK);
    // Two tags that peak at different times: the total's peak is less than their sum.
    drop(handle.with_tag(Tag::Kv).allocate(1, 1).unwrap());
    let stats = meter.snapshot();
    adds_up(&stats);
    assert_eq!(stats.total.peak_live_bytes, 7 * BLOCK);
}

#[test]
fn what_was_refused_is_not_counted() {
    let (meter, handle) = metered(1);
    let _out = handle.allocate(1, 1).unwrap();
    assert!(handle.allocate(1, 1).is_err());
    assert!(handle.allocate(BLOCK + 1, 1).is_err());
    assert!(handle.allocate(usize::MAX, 1).is_err());
    assert_eq!(meter.snapshot().total.allocations, 1);

    let meter = Arc::new(Meter::new(Spy::new(CpuAllocator::new(), FailAt::call(0))));
    let handle = SharedAllocator::new(Arc::clone(&meter));
    assert!(handle.allocate(1, 1).is_err());
    assert_eq!(meter.snapshot(), MeterStats::default());
}

#[test]
fn a_tensor_is_counted_where_it_was_allocated_for_as_long_as_a_view_lives() {
    let (meter, handle) = metered(4);
    let activations = handle.with_tag(Tag::Activations);
    let tensor = Tensor::zeros([10, 10], DType::F32, &activations).unwrap();
    assert_eq!(tensor.storage().tag(), Tag::Activations);
    let view = tensor.slice(0, 2, 3).unwrap();
    drop((tensor, activations));
    assert_eq!(meter.snapshot()[Tag::Activations].requested_bytes, 400);
    drop(view);
    assert_eq!(meter.snapshot()[Tag::Activations].requested_bytes, 0);
}

#[test]
fn meters_of_meters_agree_and_pass_the_slabs_own_numbers_on() {
    let inner = Meter::new(SlabAllocator::new(BLOCK, 10).unwrap());
    let outer = Arc::new(Meter::new(inner));
    let handle = SharedAllocator::new(Arc::clone(&outer)).with_tag(Tag::Kv);
    let _out = [
        handle.allocate(5, 1).unwrap(),
        handle.allocate(6, 1).unwrap(),
    ];
    assert_eq!(outer.snapshot(), outer.upstream().snapshot());
    assert_eq!(outer.snapshot()[Tag::Kv].requested_bytes, 11);
    assert_eq!(outer.stats(), outer.upstream().upstream().stats());
    assert_eq!(handle.stats().live_bytes, 2 * BLOCK);
}

#[test]
fn the_numbers_are_exact_again_when_many_threads_are_done() {
    let (meter, handle) = metered(10_000);
    let kept: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = Tag::ALL
            .iter()
            .map(|&tag| {
                let handle = handle.with_tag(tag);
                scope.spawn(move || {
                    let mut dice = Dice(tag as u64);
                    let mut out = Vec::new();
                    for _ in 0..5000 {
                        if dice.below(2) == 0 {
                            out.push(handle.allocate(1 + dice.below(BLOCK), 64).unwrap());
                        } else if !out.is_empty() {
                            out.swap_remove(dice.below(out.len()));
                        }
                    }
                    out
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let stats = meter.snapshot();
    adds_up(&stats);
    for (tag, out) in Tag::ALL.into_iter().zip(&kept) {
        assert_eq!(stats[tag].allocations, out.len());
        assert_eq!(stats[tag].live_bytes, out.len() * BLOCK);
        let requested: usize = out.iter().map(|buffer| buffer.len()).sum();
        assert_eq!(stats[tag].requested_bytes, requested);
    }
    // Back on one thread, whoever took them.
    drop(kept);
    let stats = meter.snapshot();
    assert_eq!(
        (stats.total.allocations, stats.total.requested_bytes),
        (0, 0)
    );
    assert_eq!(stats.total.live_bytes, 0);
}

/// The identities that hold at every moment, of one snapshot.
fn identities(stats: &MeterStats) {
    adds_up(stats);
    for row in Tag::ALL.map(|tag| stats[tag]).iter().chain([&stats.total]) {
        assert_eq!(row.requested_bytes + row.waste_bytes, row.live_bytes);
        assert!(row.live_bytes <= row.peak_live_bytes);
    }
}

/// Row 13: a reset of the peaks must not touch what is out.
#[test]
fn resetting_the_peaks_resets_nothing_else() {
    let meter = Arc::new(Meter::new(CpuAllocator::new()));
    let cpu = SharedAllocator::new(Arc::clone(&meter)).with_tag(Tag::Scratch);
    let _ten = cpu.allocate(10, 1).unwrap();
    drop(cpu.allocate(1000, 1).unwrap());
    let before = meter.snapshot();
    assert_eq!(before.total.peak_live_bytes, 1010);
    meter.reset_peaks();
    let after = meter.snapshot();
    for (before, after) in [
        (before.total, after.total),
        (before[Tag::Scratch], after[Tag::Scratch]),
    ] {
        assert_eq!(after.peak_live_bytes, 10);
        assert_eq!(after.allocations, before.allocations);
        assert_eq!(after.live_bytes, before.live_bytes);
        assert_eq!(after.requested_bytes, before.requested_bytes);
        assert_eq!(after.waste_bytes, before.waste_bytes);
    }
    assert_eq!(after[Tag::Kv].peak_live_bytes, 0);
    let _one = cpu.allocate(1, 1).unwrap();
    let total = meter.snapshot().total;
    assert_eq!((total.peak_live_bytes, total.live_bytes), (11, 11));
}

/// Row 14: what was asked for and what it takes up are two numbers.
#[test]
fn rounding_shows_as_waste_and_nowhere_else() {
    for (bytes, waste) in [(1, BLOCK - 1), (BLOCK - 1, 1), (BLOCK, 0), (0, 0)] {
        let (meter, handle) = metered(8);
        let out = [
            handle.with_tag(Tag::Kv).allocate(bytes, 1).unwrap(),
            handle.with_tag(Tag::Weights).allocate(bytes, 1).unwrap(),
        ];
        let stats = meter.snapshot();
        identities(&stats);
        assert_eq!(stats[Tag::Kv].waste_bytes, waste, "{bytes} bytes");
        assert_eq!(stats.total.waste_bytes, 2 * waste);
        assert_eq!(stats.total.requested_bytes, 2 * bytes);
        drop(out);
        assert_eq!(meter.snapshot().total.waste_bytes, 0);
    }
}

/// Row 16: zero bytes through every wrapper, twice, then both back.
#[test]
fn two_empty_blocks_are_two_allocations() {
    let inner = Meter::new(SlabAllocator::new(BLOCK, 2).unwrap());
    let outer = Arc::new(Meter::new(Arc::new(inner)));
    let handle = SharedAllocator::new(SharedAllocator::new(Arc::clone(&outer)));
    let (first, second) = (
        handle.allocate(0, 64).unwrap(),
        handle.allocate_zeroed(0, 4096).unwrap(),
    );
    for meter in [outer.snapshot(), outer.upstream().snapshot()] {
        assert_eq!((meter.total.allocations, meter.total.live_bytes), (2, 0));
    }
    drop(first);
    assert_eq!(outer.snapshot().total.allocations, 1);
    drop(second);
    for meter in [outer.snapshot(), outer.upstream().snapshot()] {
        assert_eq!(meter, MeterStats::default());
    }
}

/// Rows 32 and 2: while some threads take and others give back what they did not take,
/// every snapshot adds up, no number is ever below zero (which would show as a huge one),
/// and the meter agrees with the slab's own books at the end.
#[test]
fn blocks_that_come_back_on_another_thread_do_not_make_the_numbers_drift() {
    const BLOCKS: u32 = 64;
    const ROUNDS: usize = 20_000;
    let (meter, handle) = metered(BLOCKS);
    let (give, take) = std::sync::mpsc::sync_channel::<tenslab::Buffer>(BLOCKS as usize / 2);
    std::thread::scope(|scope| {
        let kv = handle.with_tag(Tag::Kv);
        scope.spawn(move || {
            let mut dice = Dice(7);
            for _ in 0..ROUNDS {
                give.send(kv.allocate(dice.below(BLOCK + 1), 1).unwrap())
                    .unwrap();
            }
        });
        scope.spawn(move || take.into_iter().for_each(drop));
        for _ in 0..2000 {
            let stats = meter.snapshot();
            identities(&stats);
            assert!(stats.total.allocations <= BLOCKS as usize);
            assert!(stats.total.peak_live_bytes <= BLOCKS as usize * BLOCK);
        }
    });
    let stats = meter.snapshot();
    identities(&stats);
    assert_eq!((stats.total.allocations, stats.total.live_bytes), (0, 0));
    assert_eq!(stats.total.requested_bytes, 0);
    assert_eq!(meter.upstream().stats().requested_bytes, 0);
    assert_eq!(meter.upstream().stats().live_bytes, 0);
}

/// Row 46: a buffer is counted by the meter that it went through, whatever became of the
/// handle it was asked of, and wherever new buffers come from meanwhile.
#[test]
fn a_buffer_is_counted_where_it_came_from_until_it_is_back() {
    let (old, first) = metered(4);
    let (new, second) = metered(4);
    let mut current = first;
    let kept = current.allocate(100, 1).unwrap();
    current = second; // the old handle is gone
    let fresh = current.allocate(7, 1).unwrap();
    assert_eq!(old.snapshot().total.requested_bytes, 100);
    assert_eq!(new.snapshot().total.requested_bytes, 7);
    drop(kept);
    assert_eq!(old.snapshot().total.requested_bytes, 0);
    assert_eq!(new.snapshot().total.requested_bytes, 7);
    drop(fresh);
    assert_eq!(new.snapshot().total.allocations, 0);
}

/// Row 2: the numbers of a slab and those of its meter agree, and what is reserved
/// holds both what is out and what is kept.
#[test]
fn the_meter_agrees_with_the_books_of_the_slab() {
    let (meter, handle) = metered(1000);
    let mut dice = Dice(1);
    let mut out = Vec::new();
    for _ in 0..3000 {
        if out.len() < 500 && dice.below(3) > 0 {
            out.push(handle.allocate(1 + dice.below(BLOCK), 1).unwrap());
        } else if !out.is_empty() {
            out.swap_remove(dice.below(out.len()));
        }
        let report = meter.report();
        identities(&report.counted);
        let (counted, slab) = (report.counted.total, report.upstream);
        assert_eq!(counted.live_bytes, slab.live_bytes);
        assert_eq!(counted.requested_bytes, slab.requested_bytes);
        assert_eq!(
            slab.live_bytes + slab.cached_bytes + slab.unused_bytes + slab.metadata_bytes,
            slab.reserved_bytes
        );
    }
}

#[test]
fn a_scope_counts_what_happens_in_it_and_knows_its_own_peak() {
    let (meter, handle) = metered(100);
    let (kv, scratch) = (handle.with_tag(Tag::Kv), handle.with_tag(Tag::Scratch));
    let many = |from: &SharedAllocator, count: usize| -> Vec<_> {
        (0..count).map(|_| from.allocate(10, 1).unwrap()).collect()
    };
    let mut kept = many(&kv, 5);
    drop(many(&kv, 20)); // a peak that no scope below sees
    let outer = meter.scope();
    kept.extend(many(&kv, 3));
    let inner = meter.scope();
    drop(many(&scratch, 4));
    kept.truncate(6);
    meter.reset_peaks(); // of the meter, not of the scopes

    let numbers = inner.stats();
    assert_eq!(numbers.total.allocations, 4);
    assert_eq!(numbers.total.releases, 6);
    assert_eq!(numbers.total.allocated_bytes, 40);
    assert_eq!(numbers.total.released_bytes, 60);
    assert_eq!(numbers.total.live_before_bytes, 8 * BLOCK);
    assert_eq!(numbers.total.live_bytes, 6 * BLOCK);
    assert_eq!(numbers.total.peak_live_bytes, Some(12 * BLOCK));
    assert_eq!(numbers[Tag::Scratch].peak_growth_bytes(), Some(4 * BLOCK));
    assert_eq!(numbers[Tag::Kv].peak_growth_bytes(), Some(0));
    assert_eq!(numbers[Tag::Kv].live_bytes, 6 * BLOCK);

    drop(inner);
    drop(many(&scratch, 50)); // after the inner scope, within the outer one
    let numbers = outer.stats();
    assert_eq!(numbers.total.allocations, 3 + 4 + 50);
    assert_eq!(numbers.total.live_before_bytes, 5 * BLOCK);
    assert_eq!(numbers.total.peak_live_bytes, Some(56 * BLOCK));
    assert_eq!(numbers[Tag::Weights].allocations, 0);
    assert_eq!(numbers[Tag::Weights].peak_live_bytes, Some(0));
}

#[test]
fn more_scopes_than_know_their_peak_have_all_other_numbers() {
    let (meter, handle) = metered(4);
    let scopes: Vec<_> = (0..20).map(|_| meter.scope()).collect();
    drop(handle.allocate(9, 1).unwrap());
    let peaks: Vec<_> = scopes
        .iter()
        .map(|scope| {
            let total = scope.stats().total;
            assert_eq!((total.allocations, total.allocated_bytes), (1, 9));
            total.peak_live_bytes
        })
        .collect();
    assert_eq!(peaks[..16], [Some(BLOCK); 16]);
    assert_eq!(peaks[16..], [None; 4]);
    drop(scopes);
    // The places are free again, and begin anew.
    let again = meter.scope();
    assert_eq!(again.stats().total.peak_live_bytes, Some(0));
}

#[test]
fn a_report_reads_well_and_parses() {
    let (meter, handle) = metered(256);
    let kv = handle.with_tag(Tag::Kv);
    let _out: Vec<_> = (0..100)
        .map(|_| kv.allocate(BLOCK / 2, 1).unwrap())
        .collect();
    let report = meter.report();
    let table = report.to_string();
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(
        lines[0],
        "tag            blocks     requested          live         waste          peak"
    );
    let row = "      100      0.20 MiB      0.39 MiB      0.20 MiB      0.39 MiB";
    assert_eq!(lines[1], format!("kv          {row}"));
    assert_eq!(lines[2], format!("total       {row}"));
    assert!(lines[3].starts_with("reserved "), "{table}");
    assert!(lines.iter().all(|line| line.len() <= 100), "{table}");

    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["counted"]["total"]["requested_bytes"], 100 * BLOCK / 2);
    assert_eq!(json["counted"]["tags"]["kv"]["allocations"], 100);
    assert_eq!(json["counted"]["tags"]["weights"]["allocations"], 0);
    assert_eq!(json["upstream"]["live_bytes"], 100 * BLOCK);
    let upstream = |number: &str| json["upstream"][number].as_u64().unwrap();
    let parts = [
        "live_bytes",
        "cached_bytes",
        "unused_bytes",
        "metadata_bytes",
    ];
    let sum: u64 = parts.into_iter().map(upstream).sum();
    assert_eq!(sum, upstream("reserved_bytes"));
    assert!(upstream("metadata_bytes") > 0);
    let scope = serde_json::to_value(meter.scope().stats()).unwrap();
    assert_eq!(scope["tags"]["kv"]["live_before_bytes"], 100 * BLOCK);
}

/// Row 2: what the kernel says goes up by what was touched, and not by what was reserved.
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
#[test]
fn resident_bytes_are_those_that_were_touched() {
    use tenslab::memory::{self, PageSource, ProcessMemory};
    const MIB: usize = 1 << 20;
    let mut buffer = memory::cpu().allocate_zeroed(256 * MIB, 2 * MIB).unwrap();
    assert_eq!(buffer.resident_bytes().unwrap(), 0);
    let before = ProcessMemory::read().unwrap();
    // 64 MiB in the middle, beginning and ending inside a page.
    buffer.as_mut_slice()[100 * MIB + 5..164 * MIB - 5].fill(1);
    assert_eq!(buffer.resident_bytes().unwrap(), 64 * MIB);
    let after = ProcessMemory::read().unwrap();
    // Other tests of this process go up and down meanwhile, by far less.
    let grown = after.resident_bytes - before.resident_bytes;
    assert!((48 * MIB..80 * MIB).contains(&grown), "{grown}");
    assert!(ProcessMemory::resident().unwrap() >= 64 * MIB);
    // A page counts as a whole, also where the buffer has only its beginning.
    let few = memory::cpu().allocate_zeroed(2 * MIB + 7, 64).unwrap();
    assert_eq!(few.resident_bytes().unwrap(), 0);
    // SAFETY: the last byte of the buffer.
    let last = unsafe { few.as_ptr().add(2 * MIB + 6) };
    // SAFETY: inside the buffer, which is ours.
    unsafe { last.write(1) };
    assert_eq!(
        few.resident_bytes().unwrap(),
        memory::OsPages::new().page_bytes()
    );
    assert_eq!(
        memory::cpu()
            .allocate(0, 64)
            .unwrap()
            .resident_bytes()
            .unwrap(),
        0
    );
}
