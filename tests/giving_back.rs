//! Memory goes back: what a trim gives, what it says, and what it costs.
//!
//! ```text
//!   SlabAllocator ─▶ Watched ─▶ OsPages     every region that is out, every call; a test
//!                                           may do something of its own inside a call
//!   mincore                                 what of it is in memory
//! ```
//!
//! Numbers (#2, #51, …) are rows of the list of what allocators elsewhere are blamed for,
//! `docs/lessons.md`.
#![cfg(all(target_os = "linux", not(loom), not(tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use probe::{Dice, watchdog};
use tenslab::memory::{
    AllocError, Allocator, Budget, Buffer, FakePages, Limit, OsPages, PageSource, Region,
    SharedAllocator, SlabAllocator, resident_bytes,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Blocks that share a page, that are one, that end inside one, and that are many.
const SIZES: [usize; 9] = [
    64,
    192,
    KIB,
    3 * KIB,
    4 * KIB,
    6 * KIB,
    20 * KIB + 64,
    64 * KIB,
    MIB,
];

fn page() -> usize {
    OsPages::new().page_bytes()
}

type Inside = Box<dyn Fn() + Send + Sync>;

/// The system's pages; what is out of them, and what was called.
#[derive(Default)]
struct Watched {
    /// By where they begin: of the regions that are out, which pages are committed.
    regions: Mutex<BTreeMap<usize, Vec<bool>>>,
    decommits: AtomicUsize,
    commits: AtomicUsize,
    releases: AtomicUsize,
    /// Called inside each decommit and release.
    inside: Mutex<Option<Inside>>,
    /// Called inside the next commit, which is refused.
    refused: Mutex<Option<Inside>>,
}

impl Watched {
    /// Calls that gave pages back or asked for them again.
    fn calls(&self) -> usize {
        [&self.decommits, &self.commits, &self.releases]
            .iter()
            .map(|calls| calls.load(Ordering::Relaxed))
            .sum()
    }

    /// Bytes in memory of the regions that have one of these addresses in them.
    fn resident_at(&self, addresses: &BTreeSet<usize>) -> usize {
        let regions = self.regions.lock().unwrap();
        let of = |(&start, pages): (&usize, &Vec<bool>)| {
            let bytes = pages.len() * page();
            addresses.range(start..start + bytes).next()?;
            let start = std::ptr::with_exposed_provenance::<u8>(start);
            // SAFETY: a region that is out, whose bytes are readable and initialised. The
            // kernel is asked about them and no byte is read.
            resident_bytes(unsafe { std::slice::from_raw_parts(start, bytes) })
        };
        regions.iter().filter_map(of).sum()
    }

    /// Are all pages of these committed?
    fn has_committed(&self, buffers: &[Buffer]) -> bool {
        let regions = self.regions.lock().unwrap();
        buffers.iter().all(|buffer| {
            let start = buffer.as_ptr().addr();
            let (at, pages) = regions.range(..=start).next_back().unwrap();
            let from = (start - at) / page();
            let to = (start - at + buffer.len()).div_ceil(page());
            pages[from..to].iter().all(|&committed| committed)
        })
    }

    fn mark(&self, region: &Region, range: &Range<usize>, committed: bool) {
        let mut regions = self.regions.lock().unwrap();
        let pages = regions.get_mut(&region.base().addr().get()).unwrap();
        let pages = &mut pages[range.start / page()..range.end / page()];
        // A source is told to decommit what is committed, and nothing twice.
        assert!(committed || pages.iter().all(|&now| now), "{range:?}");
        pages.fill(committed);
    }

    fn call_inside(&self) {
        if let Some(inside) = &*self.inside.lock().unwrap() {
            inside();
        }
    }
}

// SAFETY: every call is passed on to `OsPages` unchanged.
unsafe impl PageSource for Watched {
    fn page_bytes(&self) -> usize {
        page()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        let region = OsPages::new().reserve(bytes, align)?;
        let start = region.base().as_ptr().expose_provenance();
        let pages = vec![false; region.bytes() / page()];
        self.regions.lock().unwrap().insert(start, pages);
        Ok(region)
    }

    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        let refused = self.refused.lock().unwrap().take();
        if let Some(inside) = refused {
            inside();
            let bytes = range.len();
            return Err(AllocError::OutOfMemory { bytes });
        }
        self.mark(region, &range, true);
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().commit(region, range) }
    }

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        self.decommits.fetch_add(1, Ordering::Relaxed);
        self.call_inside();
        self.mark(region, &range, false);
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().decommit(region, range) }
    }

    unsafe fn release(&self, region: Region) {
        self.releases.fetch_add(1, Ordering::Relaxed);
        self.call_inside();
        self.regions
            .lock()
            .unwrap()
            .remove(&region.base().addr().get());
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().release(region) };
    }
}

type Slab = SlabAllocator<Arc<Watched>>;

fn watched(block_bytes: usize, blocks: u32) -> (Arc<Watched>, Arc<Slab>, SharedAllocator) {
    let pages = Arc::new(Watched::default());
    let slab = SlabAllocator::with_pages(block_bytes, blocks, Arc::clone(&pages));
    let slab = Arc::new(slab.unwrap());
    let handle = SharedAllocator::new(Arc::clone(&slab));
    (pages, slab, handle)
}

fn filled(handle: &SharedAllocator, bytes: usize, mark: u8) -> Buffer {
    let mut buffer = handle.allocate(bytes, 1).unwrap();
    buffer.as_mut_slice().fill(mark);
    buffer
}

fn addresses(buffers: &[Buffer]) -> BTreeSet<usize> {
    buffers
        .iter()
        .map(|buffer| buffer.as_ptr().addr())
        .collect()
}

/// Bytes of the pages that have a byte of a buffer in them.
fn bytes_of_pages(buffers: &[Buffer]) -> usize {
    let pages: BTreeSet<usize> = buffers
        .iter()
        .flat_map(|buffer| {
            let start = buffer.as_ptr().addr();
            start / page()..(start + buffer.len()).div_ceil(page())
        })
        .collect();
    pages.len() * page()
}

/// #2, #1 and #12: whatever is out and however it lies, after a trim exactly its pages are
/// in memory, and the trim says how many went.
#[test]
fn after_a_trim_the_pages_of_what_is_out_are_in_memory_and_no_others() {
    for bytes in SIZES {
        let blocks = (4 * MIB / bytes).clamp(13, 3000);
        let keeps: [(&str, &dyn Fn(usize) -> bool); 6] = [
            ("none", &|_| false),
            ("all", &|_| true),
            ("every second", &|at| at % 2 == 0),
            ("every seventh", &|at| at % 7 == 3),
            ("the last", &|at| at + 1 == blocks),
            ("by chance", &|at| Dice(at as u64).below(5) == 0),
        ];
        for (name, keeps) in keeps {
            let what = format!("{name} of {blocks} blocks of {bytes}");
            let (pages, slab, handle) = watched(bytes, u32::try_from(blocks).unwrap());
            let mut out: Vec<_> = (0..blocks).map(|_| filled(&handle, bytes, 1)).collect();
            // Twice: also what was cold in between, and came again in part.
            for round in 0..2 {
                let every = addresses(&out);
                let mut at = 0;
                out.retain(|_| {
                    at += 1;
                    keeps(at - 1)
                });
                let before = pages.resident_at(&every);
                let went = slab.trim();
                let after = pages.resident_at(&every);
                assert_eq!(after, bytes_of_pages(&out), "{what}, round {round}");
                assert_eq!(went, before - after, "{what}, round {round}");
                let stats = slab.stats();
                assert_eq!(stats.live_bytes, out.len() * slab.block_bytes(), "{what}");
                assert_eq!(slab.trim(), 0, "{what}: nothing is left to give");
                assert!(
                    out.iter()
                        .all(|buffer| buffer.as_slice().iter().all(|&b| b == 1))
                );
                while out.len() < blocks - blocks / 3 {
                    out.push(filled(&handle, bytes, 1));
                }
            }
        }
    }
}

/// Takings, giving back and trims by chance: what is out has its pages, holds what was
/// written, and a source is never asked to take what it has.
#[test]
fn what_is_out_has_its_pages_whatever_was_trimmed_before() {
    for bytes in SIZES.into_iter().filter(|&bytes| bytes < MIB) {
        for seed in 0..6 {
            let (pages, slab, handle) = watched(bytes, 400);
            let mut dice = Dice(seed);
            let mut out: Vec<Buffer> = Vec::new();
            for step in 0..40 {
                // In stretches: single blocks would seldom leave a page alone.
                let stretch = 1 + dice.below(60);
                if dice.below(2) == 0 {
                    let stretch = stretch.min(400 - out.len());
                    out.extend((0..stretch).map(|_| filled(&handle, bytes, 7)));
                } else {
                    let from = dice.below(out.len() + 1);
                    out.drain(from..(from + stretch).min(out.len()));
                }
                if dice.below(3) == 0 {
                    slab.trim();
                }
                let what = format!("blocks of {bytes}, seed {seed}, step {step}");
                assert!(pages.has_committed(&out), "{what}");
                let whole = |buffer: &Buffer| buffer.as_slice().iter().all(|&b| b == 7);
                assert!(out.iter().all(whole), "{what}");
                assert_eq!(slab.in_use() as usize, out.len(), "{what}");
            }
        }
    }
}

/// The one way to cold blocks between warm ones of the same page: the pages of a batch do
/// not come, while another thread got the batch behind it.
#[test]
fn a_page_with_cold_blocks_between_warm_ones_goes_once() {
    let (pages, slab, handle) = watched(64, 1000);
    let mut out: Vec<_> = (0..130).map(|_| filled(&handle, 64, 1)).collect();
    out.drain(..128);
    assert_eq!(slab.trim(), 2 * page());
    let others: Arc<Mutex<Vec<Buffer>>> = Arc::default();
    let refuse = || {
        *pages.refused.lock().unwrap() = Some(Box::new({
            let (handle, others) = (handle.clone(), Arc::clone(&others));
            move || {
                let (handle, others) = (handle.clone(), Arc::clone(&others));
                let taking = move || {
                    let batch = (0..12).map(|_| filled(&handle, 64, 1));
                    others.lock().unwrap().extend(batch);
                };
                std::thread::spawn(taking).join().unwrap();
            }
        }));
        assert!(handle.allocate(64, 64).is_err());
    };
    // 12 to 23 are out, then 0 to 11; 36 to 47 are out, and 24 to 35 stay cold.
    refuse();
    let first: Vec<_> = (0..12).map(|_| filled(&handle, 64, 1)).collect();
    refuse();
    let numbers = |buffers: &[Buffer]| -> BTreeSet<usize> {
        let numbers = addresses(buffers).into_iter();
        numbers.map(|at| at % page() / 64).collect()
    };
    assert_eq!(numbers(&first), (0..12).collect());
    assert_eq!(
        numbers(&others.lock().unwrap()),
        (12..24).chain(36..48).collect()
    );
    drop(first);
    others.lock().unwrap().clear();
    slab.trim();
    assert_eq!(slab.stats().cached_bytes, 0);
    out.extend((2..130).map(|_| filled(&handle, 64, 7)));
    assert!(pages.has_committed(&out));
    assert_eq!(addresses(&out).len(), 130);
}

/// #12: a block that nobody touched has no memory to give.
#[test]
fn a_trim_does_not_boast() {
    for bytes in SIZES {
        let (_pages, slab, handle) = watched(bytes, 40);
        let out: Vec<_> = (0..40)
            .map(|_| handle.allocate(bytes, 1).unwrap())
            .collect();
        drop(out);
        assert_eq!(slab.trim(), 0, "blocks of {bytes}");
        drop(filled(&handle, bytes, 1));
        assert_eq!(
            slab.trim(),
            bytes.next_multiple_of(page()),
            "blocks of {bytes}"
        );
        assert_eq!(slab.stats().cached_bytes, 0);
    }
}

/// #51: to give a block back is no system call, and a trim is one for each stretch of
/// neighbours.
#[test]
fn giving_back_costs_no_call_and_a_trim_one_for_each_stretch() {
    for bytes in SIZES {
        let blocks = (16 * MIB / bytes).clamp(16, 4096);
        let (pages, slab, handle) = watched(bytes, u32::try_from(blocks).unwrap());
        let mut out: Vec<_> = (0..blocks).map(|_| filled(&handle, bytes, 1)).collect();
        let before = pages.calls();
        for _ in 0..1000 {
            drop(out.pop());
            out.push(handle.allocate(bytes, 1).unwrap());
        }
        assert_eq!(pages.calls(), before, "blocks of {bytes}");
        // A stretch of idle blocks in front of each that stays.
        let every = blocks / 4;
        let mut at = 0;
        out.retain(|_| {
            at += 1;
            at % every == 0
        });
        assert_eq!(pages.calls(), before, "blocks of {bytes}");
        slab.trim();
        let trims = pages.calls() - before;
        assert!(
            trims <= 4 + 13,
            "{trims} calls for 4 stretches in at most 13 rows"
        );
        assert_eq!(pages.commits.load(Ordering::Relaxed) + trims, pages.calls());
    }
}

/// Blocks that share a page come back from the cold together.
#[test]
fn pages_that_went_come_again_in_few_calls() {
    for (bytes, most) in [(64, 26 + 1), (KIB, 26 + 1), (4 * KIB, 312), (64 * KIB, 312)] {
        let (pages, slab, handle) = watched(bytes, 312);
        let mut out: Vec<_> = (0..312).map(|_| filled(&handle, bytes, 1)).collect();
        out.truncate(1);
        slab.trim();
        let rows = pages.regions.lock().unwrap().len();
        let before = pages.commits.load(Ordering::Relaxed);
        while out.len() < 312 {
            out.push(handle.allocate_zeroed(bytes, 1).unwrap());
        }
        // 26 batches of 12, and a row that went as a whole is mapped again.
        let rows = pages.regions.lock().unwrap().len() - rows;
        let commits = pages.commits.load(Ordering::Relaxed) - before;
        assert!(commits <= most + rows, "{commits} for blocks of {bytes}");
        assert!(
            out[1..]
                .iter()
                .all(|buffer| buffer.as_slice().iter().all(|&b| b == 0))
        );
        assert_eq!(addresses(&out).len(), 312);
    }
}

/// #51: while pages go back, other threads take, give back and look: no lock is held.
#[test]
fn a_trim_holds_no_lock_while_pages_go() {
    for bytes in [64, 4 * KIB, 64 * KIB] {
        let (pages, slab, handle) = watched(bytes, 100_000);
        let kept = handle.allocate(bytes, 1).unwrap();
        let out: Vec<_> = (0..5000).map(|_| filled(&handle, bytes, 1)).collect();
        drop(out);
        let entered = Arc::new(AtomicUsize::new(0));
        *pages.inside.lock().unwrap() = Some(Box::new({
            let (handle, entered) = (handle.clone(), Arc::clone(&entered));
            move || {
                let handle = handle.clone();
                let other = std::thread::spawn(move || {
                    // None of these is idle: the trim has all that are.
                    let fresh: Vec<_> = (0..40).map(|_| filled(&handle, bytes, 2)).collect();
                    assert!(handle.stats().live_bytes >= 41 * bytes);
                    drop(fresh);
                });
                other.join().unwrap();
                entered.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let dog = watchdog("a trim that holds a lock", &entered);
        assert!(slab.trim() > 0);
        dog.done();
        assert!(entered.load(Ordering::Relaxed) >= 1, "blocks of {bytes}");
        // The hook has a handle, so it goes first.
        *pages.inside.lock().unwrap() = None;
        drop((kept, handle));
        assert_eq!(slab.in_use(), 0);
    }
}

/// #6: the last idle row of one slab goes while another one is short of pages, over and
/// over; elsewhere the size of what had gone was read afterwards. (Under AddressSanitizer
/// such a read is an error.)
#[test]
fn the_last_idle_row_goes_on_the_way_out_of_memory() {
    for bytes in [KIB, 4 * KIB, 6 * KIB, 256 * KIB] {
        let blocks = u32::try_from((2 * MIB / bytes).max(2)).unwrap();
        let of_tables = 2 * (72 * blocks as usize + page()).next_multiple_of(page());
        // Room for the tables of both and the blocks of one.
        let limit_bytes = 2 * MIB + of_tables;
        let pages = Arc::new(FakePages::over(OsPages::new()).with_limit(limit_bytes));
        let limit = Limit::unlimited();
        let slabs = [(); 2].map(|()| {
            let slab = SlabAllocator::fixed_with_pages(bytes, blocks, Arc::clone(&pages));
            Arc::new(slab.unwrap())
        });
        let handles = slabs
            .each_ref()
            .map(|slab| SharedAllocator::new(Budget::new(Arc::clone(slab), &limit)));
        let _guard = limit.on_pressure({
            let slabs = slabs.clone();
            move |_| slabs.iter().map(|slab| slab.trim()).sum()
        });
        for round in 0..20 {
            let handle = &handles[round % 2];
            let out: Vec<_> = (0..blocks).map(|_| filled(handle, bytes, 1)).collect();
            assert_eq!(out.len(), blocks as usize);
            let error = handles[(round + 1) % 2].allocate(bytes, 1).unwrap_err();
            assert!(matches!(error, AllocError::OutOfMemory { .. }), "{error}");
            assert!(pages.counts().committed_bytes <= limit_bytes);
        }
        assert_eq!(limit.used_bytes(), 0);
        slabs.iter().for_each(|slab| _ = slab.trim());
        assert!(pages.counts().committed_bytes <= of_tables);
        drop((slabs, handles, _guard));
        assert_eq!(pages.counts().regions, 0);
    }
}

/// A batch of cold blocks whose pages do not come stays cold as a whole, wherever it fails.
#[test]
fn a_batch_whose_pages_do_not_come_is_not_lost() {
    const BLOCKS: u32 = 300;
    let mut refused = 0;
    for call in 4..24 {
        let pages = FakePages::over(OsPages::new()).with_failing_call(call);
        let slab = SlabAllocator::fixed_with_pages(256, BLOCKS, Arc::new(pages)).unwrap();
        let handle = SharedAllocator::new(slab);
        let mut out: Vec<_> = (0..BLOCKS).map(|_| filled(&handle, 256, 1)).collect();
        let first = addresses(&out);
        out.truncate(1);
        handle.trim();
        while out.len() < BLOCKS as usize {
            match handle.allocate_zeroed(256, 1) {
                Ok(buffer) => out.push(buffer),
                Err(AllocError::OutOfMemory { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            let live = handle.stats().live_bytes;
            assert_eq!(live, out.len() * 256, "call {call}");
        }
        assert_eq!(addresses(&out), first, "call {call}");
        assert!(handle.allocate(1, 1).is_err());
    }
    assert!(refused > 10, "{refused} calls failed");
}
