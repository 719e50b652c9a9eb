//! What page sources and the large blocks over them promise: counted by the kernel
//! (`mincore`), not by ourselves.
//!
//! Numbers (#4, #50, …) are rows of the list of what allocators elsewhere are blamed for.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tenslab::memory::{
    AllocError, Allocator, Buffer, CpuAllocator, FakePages, HeapPages, HugePages, Lock, Meter,
    OsPages, PageSource, Region, Request, SharedAllocator, SlabAllocator, Tag, cpu, populate,
};

const MIB: usize = 1 << 20;

/// Every source does what the trait says: reserve, commit, zeros, decommit, release.
fn keeps_the_contract<P: PageSource>(pages: &P) {
    let page = pages.page_bytes();
    assert!(page.is_power_of_two());
    for bytes in [0, 1, page - 1, page, page + 1, 3 * MIB + 5] {
        for align in [1, 64, page, 4 * page, 2 * MIB] {
            let region = pages.reserve(bytes, align).unwrap();
            assert!(region.bytes() >= bytes.max(1) && region.bytes() % page == 0);
            assert!(region.bytes() - bytes <= page, "{bytes} at {align}");
            assert!(region.base().addr().get() % align.max(page) == 0);
            let half = region.bytes() / page / 2 * page;
            // SAFETY: reserved just now.
            unsafe { pages.commit(&region, half..region.bytes()) }.unwrap();
            for at in [half, region.bytes() - 1] {
                // SAFETY: inside the region.
                let byte = unsafe { region.base().add(at) };
                // SAFETY: committed just now, and nobody else has it.
                assert_eq!(unsafe { byte.replace(7) }, 0);
            }
            // SAFETY: committed, and nobody uses it.
            let given = unsafe { pages.decommit(&region, half..region.bytes()) };
            assert!(given.is_none_or(|given| given <= region.bytes() - half));
            // SAFETY: inside the region.
            let first = unsafe { region.base().add(half) };
            // SAFETY: decommitted bytes stay readable.
            let byte = unsafe { first.read() };
            assert!(byte == 7 || (byte == 0 && given.is_some()));
            if given.is_some() && pages.decommits_to_zero() {
                // SAFETY: of this region.
                unsafe { pages.commit(&region, half..region.bytes()) }.unwrap();
                // SAFETY: committed just now.
                assert_eq!(unsafe { first.read() }, 0);
            }
            // SAFETY: from this source, once, unused.
            unsafe { pages.release(region) };
        }
    }
    for (most, align) in [(usize::MAX, 1), (isize::MAX as usize, 64), (1, 1 << 63)] {
        let error = pages.reserve(most, align).map(drop).unwrap_err();
        let named = matches!(error, AllocError::SizeOverflow { bytes, .. } if bytes == most);
        assert!(named, "{error}");
    }
    let whole = pages.reserve_committed(3 * page, page).unwrap();
    // SAFETY: committed as a whole.
    unsafe { whole.base().write_bytes(1, whole.bytes()) };
    // SAFETY: from this source, once, unused.
    unsafe { pages.release(whole) };
}

#[test]
fn every_source_keeps_the_contract() {
    keeps_the_contract(&OsPages::new());
    keeps_the_contract(&OsPages::new().with_huge_pages(HugePages::Never));
    keeps_the_contract(&HeapPages);
    keeps_the_contract(&FakePages::over(OsPages::new()));
    let fake = Arc::new(FakePages::new());
    keeps_the_contract(&fake);
    let counts = fake.counts();
    assert_eq!((counts.regions, counts.reserved_bytes), (0, 0));
    assert_eq!(counts.committed_bytes, 0);
    assert_eq!(counts.reserves, 6 * 5 + 1);
    assert_eq!(counts.decommits, 6 * 5);
}

/// #41: whichever call to the source fails, the answer is an error and nothing is left.
#[test]
fn whichever_call_fails_is_an_error_and_leaves_nothing() {
    for call in 0.. {
        let pages = Arc::new(FakePages::new().with_failing_call(call));
        let slab = SlabAllocator::with_pages(4096, 600, Arc::clone(&pages)).unwrap();
        let slab = SharedAllocator::new(slab);
        let large = SharedAllocator::new(CpuAllocator::with_pages(Arc::clone(&pages)));
        let mut out: Vec<Buffer> = Vec::new();
        let mut refused = 0;
        for step in 0..600 {
            let found = if step % 100 == 0 {
                large.allocate(2 * MIB, 64)
            } else {
                slab.allocate(4096, 64)
            };
            match found {
                Ok(buffer) => out.push(buffer),
                Err(AllocError::OutOfMemory { .. }) => refused += 1,
                Err(other) => panic!("call {call}: {other}"),
            }
        }
        drop((out, slab, large));
        let counts = pages.counts();
        assert_eq!(
            (counts.regions, counts.committed_bytes),
            (0, 0),
            "call {call}"
        );
        assert_eq!(refused, usize::from(call < counts.calls), "call {call}");
        if call >= counts.calls {
            assert!(call > 6 * 2, "there were calls to fail");
            return;
        }
    }
}

#[test]
fn a_fake_without_memory_gives_addresses_only_and_one_with_a_limit_keeps_it() {
    let pages = Arc::new(FakePages::new().with_limit(5 * MIB));
    let large = SharedAllocator::new(CpuAllocator::with_pages(Arc::clone(&pages)));
    let first = large.allocate(3 * MIB, 64).unwrap();
    let bytes = 3 * MIB;
    let error = large.allocate(bytes, 64).unwrap_err();
    assert_eq!(error, AllocError::OutOfMemory { bytes });
    let _second = large.allocate(2 * MIB, 64).unwrap();
    drop(first);
    assert_eq!(pages.counts().committed_bytes, 2 * MIB);
    assert!(large.allocate(bytes, 64).is_ok());
}

#[test]
fn a_fake_panics_over_a_call_that_breaks_the_contract() {
    let pages = FakePages::new();
    let region = pages.reserve(8192, 4096).unwrap();
    let other_pages = FakePages::new();
    let other = other_pages.reserve(4096, 4096).unwrap();
    let panics = |commit, region, range| {
        let call = AssertUnwindSafe(|| {
            if commit {
                // SAFETY: none: the fake has to refuse before it touches anything.
                let _ = unsafe { pages.commit(region, range) };
            } else {
                // SAFETY: none, as for the commit.
                let _ = unsafe { pages.decommit(region, range) };
            }
        });
        catch_unwind(call).is_err()
    };
    assert!(panics(true, &other, 0..4096), "not its region");
    assert!(panics(true, &region, 0..100), "not whole pages");
    assert!(panics(true, &region, 4096..12288), "not in the region");
    assert!(panics(false, &region, 4096..12288), "not in the region");
    assert!(!panics(true, &region, 0..4096));
    assert!(!panics(false, &region, 0..4096));
    assert_eq!(pages.counts().committed_bytes, 0);
    // SAFETY: from this source, once, unused.
    unsafe { pages.release(region) };
    // SAFETY: none: it is not this fake's.
    let foreign = catch_unwind(AssertUnwindSafe(|| unsafe {
        pages.release(Region::new(other.base(), other.bytes(), other.align()));
    }));
    assert!(foreign.is_err());
    // SAFETY: from that source, once, unused.
    unsafe { other_pages.release(other) };
}

/// #4: no power-of-two rounding of large sizes.
#[test]
fn a_block_of_five_gibibytes_and_a_byte_wastes_less_than_two_megabytes() {
    let sizes: &[usize] = if cfg!(any(tenslab_portable, tenslab_asan)) {
        &[MIB + 1, 5 * MIB + 1, 33 * MIB + 1]
    } else {
        &[
            MIB + 1,
            5 * MIB + 1,
            33 * MIB + 1,
            (1 << 30) + 1,
            (5 << 30) + 1,
        ]
    };
    for policy in [HugePages::Inherit, HugePages::Never, HugePages::Dense] {
        let allocator = CpuAllocator::new().with_huge_pages(policy);
        for &bytes in sizes {
            for align in [1, 64, 1 << 16, 2 * MIB] {
                let block = allocator
                    .allocate_block(Request::new(bytes, align).unwrap())
                    .unwrap();
                let waste = block.capacity() - block.len();
                assert!(waste <= (2 * MIB).max(bytes / 8), "{bytes}: {waste}");
                assert!(waste < 2 * OsPages::new().page_bytes(), "{bytes}: {waste}");
                // SAFETY: from this allocator, once, unused.
                unsafe { allocator.release_block(block) };
            }
        }
    }
}

#[test]
fn ranges_of_no_whole_page_give_nothing_and_small_blocks_neither() {
    let mut large = cpu().allocate_zeroed(MIB, 64).unwrap();
    large.as_mut_slice().fill(3);
    for range in [0..0, 1..100, 1..4097, 4095..8191, MIB - 1..MIB - 1] {
        assert_eq!(large.decommit(range.clone()).bytes, 0, "{range:?}");
    }
    assert!(large.as_slice().iter().all(|&byte| byte == 3));
    let mut small = cpu().allocate(8192, 4096).unwrap();
    small.as_mut_slice().fill(3);
    assert_eq!(small.decommit(0..8192).bytes, 0);
    assert!(small.as_slice().iter().all(|&byte| byte == 3));
    assert!(small.commit(0..8192).is_ok());
    let panics = |buffer: &mut Buffer, range| {
        catch_unwind(AssertUnwindSafe(|| buffer.decommit(range))).is_err()
    };
    assert!(panics(&mut small, 0..8193));
    assert!(panics(&mut large, MIB + 1..MIB + 1));
}

#[test]
fn populating_changes_no_byte_whatever_the_range_and_the_threads() {
    let mut buffer = cpu().allocate_zeroed(9 * MIB + 3, 64).unwrap();
    for (at, byte) in buffer.as_mut_slice().iter_mut().enumerate().step_by(997) {
        *byte = at.to_le_bytes()[0] | 1;
    }
    let before = buffer.as_slice().to_vec();
    for threads in [0, 1, 2, 3, 64] {
        for range in [
            0..0,
            5..5,
            1..2,
            4095..4097,
            0..9 * MIB + 3,
            3 * MIB + 1..9 * MIB,
        ] {
            buffer.populate(range, threads).unwrap();
        }
    }
    populate(&mut [], 2).unwrap();
    assert_eq!(buffer.as_slice(), before);
}

/// Growth within the pages that the block has is always possible, and a meter follows.
#[test]
fn a_block_grows_up_to_its_last_page_and_the_meter_counts_it() {
    let meter = Arc::new(Meter::new(CpuAllocator::new()));
    let shared = SharedAllocator::new(Arc::clone(&meter)).with_tag(Tag::Kv);
    let mut buffer = shared.allocate_zeroed(MIB + 1, 64).unwrap();
    let (address, live) = (buffer.as_ptr(), meter.snapshot().total.live_bytes);
    buffer.as_mut_slice()[MIB] = 9;
    buffer.try_grow(10).unwrap();
    assert_eq!(buffer.len(), MIB + 1, "asking for less does nothing");
    buffer.try_grow(MIB + 4096).unwrap();
    assert_eq!((buffer.len(), buffer.as_ptr()), (MIB + 4096, address));
    assert_eq!(buffer.as_slice()[MIB..][..2], [9, 0]);
    let stats = meter.snapshot();
    assert_eq!(stats[Tag::Kv].requested_bytes, MIB + 4096);
    assert_eq!(stats.total.live_bytes, live);
    for bytes in [usize::MAX, isize::MAX as usize] {
        let capacity = live;
        let error = buffer.try_grow(bytes).unwrap_err();
        assert_eq!(error, AllocError::CannotGrow { bytes, capacity });
    }
    assert_eq!(buffer.len(), MIB + 4096);
    drop(buffer);
    assert_eq!(meter.snapshot().total.requested_bytes, 0);
    assert_eq!(meter.snapshot().total.live_bytes, 0);

    let mut small = shared.allocate(100, 64).unwrap();
    let (bytes, capacity) = (101, 100);
    let error = small.try_grow(101).unwrap_err();
    assert_eq!(error, AllocError::CannotGrow { bytes, capacity });
}

#[test]
fn a_source_that_cannot_lock_says_so_where_it_is_required() {
    let pages = Arc::new(FakePages::new());
    let with = |lock| {
        let allocator = CpuAllocator::with_pages(Arc::clone(&pages)).with_lock(lock);
        SharedAllocator::new(allocator)
    };
    let error = with(Lock::Required).allocate(5000, 64).unwrap_err();
    let (bytes, limit_bytes) = (8192, 0);
    assert_eq!(error, AllocError::CannotLock { bytes, limit_bytes });
    assert_eq!(pages.counts().regions, 0);
    assert_eq!(
        with(Lock::BestEffort).allocate(5000, 64).unwrap().len(),
        5000
    );
    assert!(
        with(Lock::Required).allocate(0, 64).is_ok(),
        "nothing to lock"
    );
}

/// What only the kernel can tell.
#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod kernel {
    use super::*;
    use tenslab::memory::resident_bytes;

    fn touched(allocator: &SharedAllocator, bytes: usize) -> Buffer {
        let mut buffer = allocator.allocate(bytes, 64).unwrap();
        buffer.as_mut_slice().fill(1);
        assert_eq!(resident_bytes(buffer.as_slice()), Some(bytes));
        buffer
    }

    /// Does the system give huge pages to all, to who asks, or to nobody?
    fn huge_pages() -> String {
        let path = "/sys/kernel/mm/transparent_hugepage/enabled";
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let chosen = text.split(['[', ']']).nth(1);
        chosen.unwrap_or("never").to_owned()
    }

    /// #12: giving back lowers what is resident, and the answer says by how much.
    #[test]
    fn decommit_gives_memory_back_and_says_how_much() {
        let pages = OsPages::new();
        let page = pages.page_bytes();
        let before = probe_resident();
        let mut buffer = touched(cpu(), 256 * MIB);
        let full = probe_resident();
        assert!(full >= before + 192 * MIB);
        let given = buffer.decommit(64 * MIB + 1..256 * MIB);
        assert_eq!(given.bytes, 192 * MIB - page);
        assert_eq!(given.resident_bytes, given.bytes);
        assert_eq!(resident_bytes(buffer.as_slice()), Some(64 * MIB + page));
        let after = probe_resident();
        assert!(after + 128 * MIB < full, "{full} became {after}");
        // A second time there is nothing to give, and a part only what is there.
        let again = buffer.decommit(128 * MIB..256 * MIB);
        assert_eq!((again.bytes, again.resident_bytes), (128 * MIB, 0));
        buffer.commit(128 * MIB..256 * MIB).unwrap();
        buffer.as_mut_slice()[200 * MIB] = 1;
        assert_eq!(buffer.as_slice()[200 * MIB + 1], 0);
        let rest = buffer.decommit(0..256 * MIB);
        assert_eq!(rest.resident_bytes, 64 * MIB + page + page);
    }

    fn probe_resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * OsPages::new().page_bytes()
    }

    /// #50: huge pages under sparse memory would make it 32 times as much and more. Over
    /// the system and in a slab, of one block and of many that are sparse together.
    #[test]
    fn a_byte_every_two_megabytes_stays_small_unless_huge_pages_were_asked_for() {
        let page = OsPages::new().page_bytes();
        for policy in [HugePages::Inherit, HugePages::Never, HugePages::Dense] {
            let system = huge_pages();
            let asked = match policy {
                HugePages::Inherit => system == "always",
                HugePages::Never => false,
                HugePages::Dense => system != "never",
            };
            let pages = OsPages::new().with_huge_pages(policy);
            let slab = |bytes, blocks| SlabAllocator::fixed_with_pages(bytes, blocks, pages);
            let stacks = [
                (
                    64 * MIB,
                    SharedAllocator::new(CpuAllocator::with_pages(pages)),
                ),
                (64 * MIB, SharedAllocator::new(slab(64 * MIB, 1).unwrap())),
                (2 * MIB, SharedAllocator::new(slab(2 * MIB, 32).unwrap())),
                (
                    64 << 10,
                    SharedAllocator::new(slab(64 << 10, 1024).unwrap()),
                ),
            ];
            for (bytes, shared) in stacks {
                let what = format!("{policy:?} on {system}, {bytes} a block");
                let mut out: Vec<_> = (0..64 * MIB / bytes)
                    .map(|_| shared.allocate_zeroed(bytes, 64).unwrap())
                    .collect();
                // A byte of every 2 MiB of the block, or of the blocks together.
                let (every, step) = ((2 * MIB / bytes).max(1), bytes.min(2 * MIB));
                for buffer in out.iter_mut().step_by(every) {
                    for byte in buffer.as_mut_slice().iter_mut().step_by(step) {
                        *byte = 1;
                    }
                }
                let resident: usize = out
                    .iter()
                    .map(|buffer| resident_bytes(buffer.as_slice()).unwrap())
                    .sum();
                if !asked {
                    assert_eq!(resident, 32 * page, "{what}");
                } else {
                    println!("{what}: {resident} bytes of {}", 64 * MIB);
                    // The kernel may have no huge page at hand, but never gives less.
                    assert!(resident >= 32 * page, "{what}");
                }
            }
        }
    }

    #[test]
    fn dense_regions_begin_at_a_huge_page_and_small_ones_need_not() {
        let shared = SharedAllocator::new(CpuAllocator::new().with_huge_pages(HugePages::Dense));
        for bytes in [2 * MIB, 3 * MIB, 64 * MIB + 1] {
            let buffer = shared.allocate(bytes, 64).unwrap();
            assert!(buffer.as_ptr().addr().is_multiple_of(2 * MIB), "{bytes}");
        }
        let slab =
            SlabAllocator::with_pages(4 * MIB, 4, OsPages::new().with_huge_pages(HugePages::Dense))
                .unwrap();
        let slab = SharedAllocator::new(slab);
        let mut block = slab.allocate(4 * MIB, 64).unwrap();
        block.as_mut_slice().fill(1);
        assert_eq!(resident_bytes(block.as_slice()), Some(4 * MIB));
    }

    /// #39: nobody touches memory ahead of its owner, and who does on purpose touches
    /// only what was named.
    #[test]
    fn only_the_pages_that_are_named_are_populated() {
        let page = OsPages::new().page_bytes();
        for threads in [1, 2, 5] {
            let mut buffer = cpu().allocate(64 * MIB, 64).unwrap();
            assert_eq!(resident_bytes(buffer.as_slice()), Some(0));
            let (from, to) = (7 * MIB + 5 * page + 1, 40 * MIB + 1);
            buffer.populate(from..to, threads).unwrap();
            let resident = |range| resident_bytes(&buffer.as_slice()[range]).unwrap();
            let first = from - 1;
            let named = to - 1 + page - first;
            assert_eq!(resident(0..64 * MIB), named, "{threads} threads");
            assert_eq!(resident(first..to), named);
            assert_eq!(resident(0..first) + resident(to + page - 1..64 * MIB), 0);
        }
    }

    /// #38: zeros cost nothing until they are used, from the system and from a slab.
    #[test]
    fn zeros_are_not_resident_until_they_are_used() {
        let slab = |bytes| SharedAllocator::new(SlabAllocator::new(bytes, 3).unwrap());
        let sizes = [128 << 10, MIB, 64 * MIB, 8 << 30].into_iter();
        for (bytes, from) in sizes.flat_map(|bytes| [(bytes, cpu().clone()), (bytes, slab(bytes))])
        {
            let mut buffer = from.allocate_zeroed(bytes, 64).unwrap();
            assert_eq!(resident_bytes(buffer.as_slice()), Some(0), "{bytes}");
            buffer.as_mut_slice()[bytes / 2] = 1;
            let page = OsPages::new().page_bytes();
            if huge_pages() != "always" {
                assert_eq!(resident_bytes(buffer.as_slice()), Some(page), "{bytes}");
            }
        }
    }
}
