//! What an allocator says it holds, against what its page source handed out and what the
//! kernel has in memory.
//!
//! ```text
//!   wrapper ▶ SlabAllocator ▶ Mapped ▶ OsPages     the regions that are out, and which of
//!                                                  them ever lent a block
//!
//!   live + cached + unused + metadata == reserved == the regions
//!   metadata == the regions that lend no block
//!   live + cached == what of the others is in memory, where whole blocks are written
//! ```
//!
//! Row 2 of `docs/lessons.md`. The numbers are asked for where no call is under way.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use probe::Dice;
use tenslab::memory::{
    AllocError, Allocator, Budget, Buffer, CpuAllocator, Fault, FaultPlan, Guarded, Limit, Meter,
    OsPages, PageSource, Region, SharedAllocator, SlabAllocator, Stats, Trace,
};

const KIB: usize = 1 << 10;
const THREADS: u64 = 2;

/// A region that is out.
#[derive(Debug, Clone, Copy)]
struct Out {
    bytes: usize,
    lends_blocks: bool,
}

/// The system's pages, and what of them is out, by where it begins.
#[derive(Debug, Default)]
struct Mapped(Mutex<BTreeMap<usize, Out>>);

impl Mapped {
    /// The region that `address` is in lends blocks.
    fn lends(&self, address: usize) {
        let mut regions = self.0.lock().unwrap();
        let (start, region) = regions.range_mut(..=address).next_back().unwrap();
        assert!(address < start + region.bytes, "a block out of no region");
        region.lends_blocks = true;
    }

    fn regions(&self, lend_blocks: bool) -> Vec<(usize, usize)> {
        let regions = self.0.lock().unwrap();
        let of_kind = regions
            .iter()
            .filter(|(_, r)| r.lends_blocks == lend_blocks);
        of_kind.map(|(&start, r)| (start, r.bytes)).collect()
    }

    fn bytes(&self, lend_blocks: bool) -> usize {
        self.regions(lend_blocks).iter().map(|r| r.1).sum()
    }
}

// SAFETY: every call is passed on to `OsPages` unchanged.
unsafe impl PageSource for Mapped {
    fn page_bytes(&self) -> usize {
        OsPages::new().page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        // Under the lock, as `release`: an address that comes again is noted in order.
        let mut regions = self.0.lock().unwrap();
        let region = OsPages::new().reserve(bytes, align)?;
        let out = Out {
            bytes: region.bytes(),
            lends_blocks: false,
        };
        let before = regions.insert(region.base().as_ptr().expose_provenance(), out);
        assert!(before.is_none());
        Ok(region)
    }

    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().commit(region, range) }
    }

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().decommit(region, range) }
    }

    unsafe fn release(&self, region: Region) {
        let mut regions = self.0.lock().unwrap();
        let gone = regions.remove(&region.base().addr().get()).unwrap();
        assert_eq!(gone.bytes, region.bytes());
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().release(region) };
    }
}

type Slab = SlabAllocator<Arc<Mapped>>;
type Any = Arc<dyn Allocator>;

fn mapped(block_bytes: usize, blocks: u32) -> (Arc<Mapped>, Arc<Slab>) {
    let pages = Arc::new(Mapped::default());
    let slab = SlabAllocator::with_pages(block_bytes, blocks, Arc::clone(&pages)).unwrap();
    (pages, Arc::new(slab))
}

fn filled(handle: &SharedAllocator, pages: &Mapped, bytes: usize) -> Option<Buffer> {
    let mut buffer = handle.allocate(bytes, 1).ok()?;
    buffer.as_mut_slice().fill(1);
    pages.lends(buffer.as_ptr().addr());
    Some(buffer)
}

/// The identity, and each side of it against the regions.
fn adds_up(stats: Stats, pages: &Mapped, what: &str) {
    let (rows, tables) = (pages.bytes(true), pages.bytes(false));
    assert_eq!(stats.reserved_bytes, rows + tables, "{what}: {stats:?}");
    assert_eq!(stats.metadata_bytes, tables, "{what}: {stats:?}");
    assert_eq!(
        stats.live_bytes + stats.cached_bytes + stats.unused_bytes,
        rows,
        "{what}: {stats:?}"
    );
}

/// Takes, gives back and trims at random on two threads, also what the other one took.
/// `look` is called between rounds, when both are done, with what is out.
fn storm(
    handle: &SharedAllocator,
    pages: &Mapped,
    size: &(dyn Fn(&mut Dice) -> usize + Sync),
    look: &dyn Fn(&[Buffer]),
) {
    const ROUNDS: u64 = 12;
    const STEPS: usize = 150;
    let held = Mutex::new(Vec::new());
    for round in 0..ROUNDS {
        // Some rounds fill the slab, some empty it.
        let takes = [7, 2, 5][usize::try_from(round % 3).unwrap()];
        let work = &|seed| {
            let mut dice = Dice(seed);
            for _ in 0..STEPS {
                if dice.below(10) < takes {
                    let size = size(&mut dice);
                    let block = filled(handle, pages, size);
                    held.lock().unwrap().extend(block);
                } else if dice.below(40) == 0 {
                    handle.trim();
                } else {
                    let mut held = held.lock().unwrap();
                    let gone = match held.len() {
                        0 => None,
                        len => Some(held.swap_remove(dice.below(len))),
                    };
                    drop(held);
                    drop(gone);
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || work(round * THREADS + thread));
            }
        });
        look(&held.lock().unwrap());
    }
}

/// #2: through every wrapper, and every one of them passes all numbers on.
#[test]
fn the_numbers_add_up_to_the_regions_through_every_wrapper() {
    let one_in = NonZeroU64::new(10).unwrap();
    let wrappers: [(&str, &dyn Fn(Any) -> Any); 9] = [
        ("nothing", &|upstream| upstream),
        ("arc", &|upstream| Arc::new(upstream)),
        ("shared", &|upstream| {
            Arc::new(SharedAllocator::new(upstream))
        }),
        ("meter", &|upstream| Arc::new(Meter::new(upstream))),
        ("budget", &|upstream| {
            Arc::new(Budget::new(upstream, &Limit::unlimited()))
        }),
        ("trace", &|upstream| Arc::new(Trace::new(upstream))),
        ("fault", &|upstream| {
            let plan = FaultPlan::Seeded { seed: 1, one_in };
            Arc::new(Fault::new(upstream, plan))
        }),
        ("guarded", &|upstream| {
            Arc::new(Guarded::new(upstream).with_quarantine(0))
        }),
        ("all", &|upstream| {
            let guarded = Guarded::new(upstream).with_quarantine(0);
            let budget = Budget::new(Trace::new(guarded), &Limit::unlimited());
            Arc::new(Fault::new(Meter::new(budget), FaultPlan::Never))
        }),
    ];
    for (name, wrap) in wrappers {
        // Room for redzones is in all of them.
        for block_bytes in [512, 4 * KIB, 20 * KIB + 64] {
            let what = format!("{name} over blocks of {block_bytes}");
            let (pages, slab) = mapped(block_bytes, 300);
            let handle = SharedAllocator::new(wrap(Arc::clone(&slab) as Any));
            assert_eq!(handle.stats(), Stats::default(), "{what}: nothing at first");
            let size = |dice: &mut Dice| 1 + dice.below(block_bytes / 2);
            storm(&handle, &pages, &size, &|held| {
                let stats = handle.stats();
                adds_up(stats, &pages, &what);
                assert_eq!(stats, slab.stats(), "{what}");
                assert_eq!(stats.live_bytes, held.len() * slab.block_bytes(), "{what}");
            });
            handle.trim();
            let stats = handle.stats();
            adds_up(stats, &pages, &what);
            let empty = (stats.live_bytes, stats.cached_bytes, stats.unused_bytes);
            #[cfg(all(target_os = "linux", not(tenslab_portable)))]
            assert_eq!(empty, (0, 0, 0), "{what}: a trim leaves the tables");
            assert_eq!(empty.0, 0, "{what}");
            drop(handle);
            drop(slab);
            assert_eq!(pages.bytes(true) + pages.bytes(false), 0, "{what}");
        }
    }
}

/// An allocator that keeps nothing has nothing to say, and no table to hold.
#[test]
fn who_does_not_count_says_zero() {
    let cpu = SharedAllocator::new(Meter::new(CpuAllocator::new()));
    let _out = cpu.allocate(4 << 20, 64).unwrap();
    assert_eq!(cpu.stats(), Stats::default());
}

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod in_memory {
    use std::collections::BTreeSet;

    use tenslab::memory::{Storage, resident_bytes};

    use super::*;

    fn resident(regions: &[(usize, usize)]) -> usize {
        let of = |&(start, bytes): &(usize, usize)| {
            let start = std::ptr::with_exposed_provenance::<u8>(start);
            // SAFETY: a region that is out, whose bytes are readable and initialised. The
            // kernel is asked about them and no byte is read.
            resident_bytes(unsafe { std::slice::from_raw_parts(start, bytes) }).unwrap()
        };
        regions.iter().map(of).sum()
    }

    /// #2: live and cached are what has memory, unused is what has none.
    #[test]
    fn what_is_unused_is_not_in_memory_and_the_rest_is() {
        for block_bytes in [4 * KIB, 12 * KIB, 64 * KIB] {
            let what = format!("blocks of {block_bytes}");
            let (pages, slab) = mapped(block_bytes, 300);
            let handle = SharedAllocator::new(Arc::clone(&slab));
            storm(&handle, &pages, &|_| block_bytes, &|held| {
                let stats = handle.stats();
                adds_up(stats, &pages, &what);
                let (rows, tables) = (pages.regions(true), pages.regions(false));
                assert_eq!(stats.live_bytes, held.len() * block_bytes, "{what}");
                let with_memory = stats.live_bytes + stats.cached_bytes;
                assert_eq!(resident(&rows), with_memory, "{what}");
                assert!(resident(&tables) <= stats.metadata_bytes, "{what}");
            });
        }
    }

    /// #2: after a trim what is in memory is the pages of what is out, and the tables.
    /// Every block was a storage once, so no page of a table is untouched.
    #[test]
    fn after_a_trim_memory_is_what_is_live_and_the_metadata() {
        let page = OsPages::new().page_bytes();
        for block_bytes in [64, 192, KIB, 3 * KIB, 4 * KIB, 20 * KIB + 64, 64 * KIB] {
            for keep in [0, 1, 2, 7, 100] {
                let blocks = (KIB * KIB / block_bytes).clamp(13, 3000);
                let what = format!("one in {keep} of {blocks} blocks of {block_bytes}");
                let (pages, slab) = mapped(block_bytes, u32::try_from(blocks).unwrap());
                let handle = SharedAllocator::new(Arc::clone(&slab));
                let mut out: Vec<_> = (0..blocks)
                    .map(|_| Storage::from(filled(&handle, &pages, block_bytes).unwrap()))
                    .collect();
                let mut at = 0;
                out.retain(|_| {
                    at += 1;
                    keep > 0 && at % keep == 0
                });
                slab.trim();
                let stats = slab.stats();
                adds_up(stats, &pages, &what);
                assert_eq!(stats.live_bytes, out.len() * slab.block_bytes(), "{what}");
                let live: BTreeSet<usize> = out
                    .iter()
                    .flat_map(|storage| {
                        let start = storage.as_ptr().addr();
                        start / page..(start + storage.len()).div_ceil(page)
                    })
                    .collect();
                let in_memory = resident(&pages.regions(true)) + resident(&pages.regions(false));
                assert_eq!(
                    in_memory,
                    live.len() * page + stats.metadata_bytes,
                    "{what}: {stats:?}"
                );
            }
        }
    }
}
