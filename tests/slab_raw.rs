//! The slab's raw door, its magazines, and what it gives back.
//!
//! ```text
//!   take_id ─▶ BlockId ─▶ give_back_id        foreign, double, stale: an error, and
//!                                             nothing changes
//!   trim                                      counted by CountedPages
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::collections::HashSet;
use std::sync::{Arc, Barrier, mpsc};

use probe::{CountedPages, Dice, FailAt};
use tenslab::memory::{
    AllocError, Allocator, BlockError, Buffer, PageSource, SharedAllocator, SlabAllocator,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn exhausted(blocks: u32) -> AllocError {
    AllocError::Exhausted { blocks }
}

/// requested, live, cached.
fn numbers(slab: &SlabAllocator<impl PageSource>) -> [usize; 3] {
    let stats = slab.stats();
    [stats.requested_bytes, stats.live_bytes, stats.cached_bytes]
}

#[test]
fn an_id_is_given_back_once() {
    let slab = SlabAllocator::new(64, 3).unwrap();
    let id = slab.take_id().unwrap();
    assert_eq!((slab.in_use(), numbers(&slab)), (1, [64, 64, 0]));
    slab.give_back_id(id).unwrap();
    for _ in 0..3 {
        assert_eq!(slab.give_back_id(id), Err(BlockError::GivenBack { id }));
        assert_eq!(slab.as_ptr(id), Err(BlockError::GivenBack { id }));
        assert_eq!((slab.in_use(), numbers(&slab)), (0, [0, 0, 64]));
    }
    // The list has it once: three takings give three blocks, and a fourth is refused.
    let ids: Vec<_> = (0..3).map(|_| slab.take_id().unwrap()).collect();
    let different: HashSet<_> = ids.iter().map(|id| id.number()).collect();
    assert_eq!(different.len(), 3);
    assert_eq!(slab.take_id(), Err(exhausted(3)));
}

#[test]
fn an_id_from_before_is_stale_also_while_a_buffer_has_the_block() {
    let slab = Arc::new(SlabAllocator::new(64, 1).unwrap());
    let handle = SharedAllocator::new(Arc::clone(&slab));
    let old = slab.take_id().unwrap();
    slab.give_back_id(old).unwrap();
    let new = slab.take_id().unwrap();
    assert_eq!((old.number(), old == new), (new.number(), false));
    let told = slab.give_back_id(old).unwrap_err();
    assert!(
        matches!(told, BlockError::Stale { id, .. } if id == old),
        "{told}"
    );
    assert!(slab.as_ptr(old).is_err());
    slab.give_back_id(new).unwrap();
    let buffer = handle.allocate(64, 64).unwrap();
    for id in [old, new] {
        assert!(slab.give_back_id(id).is_err(), "{id}");
        assert!(slab.as_ptr(id).is_err(), "{id}");
    }
    assert_eq!(slab.in_use(), 1);
    assert_eq!(slab.take_id(), Err(exhausted(1)));
    drop(buffer);
    assert_eq!(slab.in_use(), 0);
}

#[test]
fn an_id_of_another_slab_is_foreign() {
    let mine = SlabAllocator::new(64, 2).unwrap();
    let theirs = SlabAllocator::new(64, 2).unwrap();
    let (a, b) = (mine.take_id().unwrap(), theirs.take_id().unwrap());
    assert_eq!(a.number(), b.number());
    assert!(matches!(mine.give_back_id(b), Err(BlockError::Foreign { id, .. }) if id == b));
    assert!(matches!(mine.as_ptr(b), Err(BlockError::Foreign { .. })));
    assert_eq!((mine.in_use(), theirs.in_use()), (1, 1));
    // Also where the slab that made it is gone, and where it moved.
    drop(theirs);
    let moved = Box::new(mine);
    assert!(moved.give_back_id(b).is_err());
    moved.give_back_id(a).unwrap();
}

/// Every id that ever was, given back in random order, valid or not, against a plain model.
#[test]
fn ids_are_refused_as_a_list_of_them_says() {
    for seed in 0..20 {
        let slab = SlabAllocator::new(64, 40).unwrap();
        let mut dice = Dice(seed);
        let (mut ever, mut out) = (Vec::new(), HashSet::new());
        for _ in 0..3000 {
            if dice.below(2) == 0 {
                match slab.take_id() {
                    Ok(id) => {
                        assert!(out.insert(id), "{id} is out already");
                        ever.push(id);
                    }
                    Err(error) => assert_eq!((error, out.len()), (exhausted(40), 40)),
                }
            } else if !ever.is_empty() {
                let id = ever[dice.below(ever.len())];
                assert_eq!(slab.as_ptr(id).is_ok(), out.contains(&id), "{id}");
                assert_eq!(slab.give_back_id(id).is_ok(), out.remove(&id), "{id}");
            }
            if dice.below(100) == 0 {
                slab.trim();
            }
            assert_eq!(slab.in_use() as usize, out.len());
            let starts: HashSet<_> = out.iter().map(|&id| slab.as_ptr(id).unwrap()).collect();
            assert_eq!(starts.len(), out.len());
        }
    }
}

/// rmm #532: what another thread gave back is found, also where it never allocated.
#[test]
fn a_block_that_another_thread_gave_back_is_never_stranded() {
    let slab = SharedAllocator::new(SlabAllocator::new(4 * KIB, 20).unwrap());
    for round in 0..50 {
        let all: Vec<Buffer> = (0..20).map(|_| slab.allocate(1, 64).unwrap()).collect();
        assert_eq!(slab.allocate(1, 64).unwrap_err(), exhausted(20));
        std::thread::spawn(move || drop(all)).join().unwrap();
        assert_eq!(slab.stats().live_bytes, 0, "round {round}");
    }
}

/// mimalloc #1364 and regex #934: memory follows what is in use at one time.
#[test]
fn memory_does_not_grow_with_the_threads_that_ever_were() {
    let pages = CountedPages::new(FailAt::never());
    let counts = Arc::clone(&pages.0);
    let slab = Arc::new(SlabAllocator::with_pages(256 * KIB, 4096, pages).unwrap());
    let handle = SharedAllocator::new(Arc::clone(&slab));
    for _ in 0..200 {
        let handle = handle.clone();
        let work = move || {
            let out: Vec<_> = (0..4).map(|_| handle.allocate(1, 64).unwrap()).collect();
            drop(out);
        };
        std::thread::spawn(work).join().unwrap();
    }
    assert_eq!(numbers(&slab), [0, 0, 4 * 256 * KIB], "four blocks in all");
    assert_eq!(counts.reserved_bytes() / MIB, 1);
}

/// Producers that only take and a thread that only gives back: 1.5 x what is live.
#[test]
fn a_thread_that_only_gives_back_keeps_nothing() {
    let slab = Arc::new(SlabAllocator::new(4 * KIB, 100_000).unwrap());
    let handle = SharedAllocator::new(Arc::clone(&slab));
    let (send, receive) = mpsc::sync_channel::<Buffer>(200);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            let (handle, send) = (handle.clone(), send.clone());
            scope.spawn(move || {
                for _ in 0..2_000 {
                    send.send(handle.allocate(4 * KIB, 64).unwrap()).unwrap();
                }
            });
        }
        drop(send);
        scope.spawn(move || receive.iter().for_each(drop));
    });
    let [requested, live, cached] = numbers(&slab);
    assert_eq!((requested, live), (0, 0));
    // At most 200 in the channel, one in each of 17 hands.
    assert!(cached <= 217 * 4 * KIB * 3 / 2, "{cached}");
}

#[test]
fn a_trim_gives_wholly_idle_rows_back_and_they_come_again() {
    let pages = CountedPages::new(FailAt::never());
    let counts = Arc::clone(&pages.0);
    let slab = Arc::new(SlabAllocator::with_pages(64, 1 << 20, pages).unwrap());
    let handle = SharedAllocator::new(Arc::clone(&slab));
    // Rows of 16,384, 16,384 and 32,768; one block of the first stays.
    let mut out: Vec<_> = (0..65_536)
        .map(|_| handle.allocate(64, 64).unwrap())
        .collect();
    out.iter_mut()
        .for_each(|buffer| buffer.as_mut_slice().fill(1));
    let before = counts.reserved_bytes();
    assert_eq!(slab.trim(), 0, "nothing is idle");
    out.truncate(1);
    assert_eq!(slab.stats().cached_bytes, 65_535 * 64);
    // Of the first row all pages but the one that the block is in, where pages can go.
    let (pages, cached) = if cfg!(tenslab_portable) {
        (0, 16_383)
    } else {
        (255, 63)
    };
    assert_eq!(slab.trim(), 49_152 * 64 + pages * 4 * KIB);
    assert_eq!(before - counts.reserved_bytes(), 49_152 * 64);
    assert_eq!(numbers(&slab), [64, 64, cached * 64]);
    assert_eq!(slab.stats().reserved_bytes, counts.reserved_bytes());
    assert_eq!(slab.trim(), 0);
    // All of it comes again, each block once, and zero where zero is asked for.
    out.extend((1..65_536).map(|_| handle.allocate_zeroed(64, 64).unwrap()));
    let starts: HashSet<_> = out.iter().map(Buffer::as_ptr).collect();
    assert_eq!(starts.len(), 65_536);
    for buffer in &mut out[1..] {
        assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
        buffer.as_mut_slice().fill(1);
    }
    assert_eq!(counts.reserved_bytes(), before);
    drop(out);
    assert_eq!(slab.trim(), 65_536 * 64);
    assert_eq!(numbers(&slab), [0, 0, 0]);
}

#[test]
fn a_trim_decommits_idle_blocks_of_a_page_and_more() {
    let slab = Arc::new(SlabAllocator::new(64 * KIB, 16).unwrap());
    let handle = SharedAllocator::new(Arc::clone(&slab));
    let mut out: Vec<_> = (0..16)
        .map(|_| handle.allocate(64 * KIB, 64).unwrap())
        .collect();
    for buffer in &mut out {
        buffer.as_mut_slice().fill(0xff);
    }
    let mut kept: Vec<Buffer> = Vec::new();
    for (at, buffer) in out.into_iter().enumerate() {
        if at % 4 == 0 {
            kept.push(buffer);
        }
    }
    let went = slab.trim();
    let portable = cfg!(tenslab_portable);
    assert_eq!(went, if portable { 0 } else { 12 * 64 * KIB });
    let live = 4 * 64 * KIB;
    let cached = if portable { 12 * 64 * KIB } else { 0 };
    assert_eq!(numbers(&slab), [live, live, cached]);
    assert_eq!(slab.trim(), 0, "what is cold went before");
    assert!(
        kept.iter()
            .all(|buffer| buffer.as_slice().iter().all(|&byte| byte == 0xff))
    );
    let again: Vec<_> = (0..12)
        .map(|_| handle.allocate_zeroed(64 * KIB, 64).unwrap())
        .collect();
    assert!(
        again
            .iter()
            .all(|buffer| buffer.as_slice().iter().all(|&byte| byte == 0))
    );
    assert_eq!(handle.allocate(1, 1).unwrap_err(), exhausted(16));
    drop((kept, again));
    assert_eq!(slab.trim(), 16 * 64 * KIB, "the row as a whole");
}

/// Blocks that share pages with their neighbours, against a model of what each holds.
#[test]
fn trims_never_touch_what_is_out() {
    for block_bytes in [64, 1000, 3 * KIB, 4 * KIB, 6 * KIB, 20 * KIB + 64] {
        for seed in 0..10 {
            let slab = SharedAllocator::new(SlabAllocator::new(block_bytes, 300).unwrap());
            let mut dice = Dice(seed);
            let mut out: Vec<(Buffer, u8)> = Vec::new();
            for step in 0..600_u32 {
                let mark = step.to_ne_bytes()[0];
                if dice.below(5) < 3 && out.len() < 300 {
                    let mut buffer = slab.allocate_zeroed(block_bytes, 1).unwrap();
                    assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
                    buffer.as_mut_slice().fill(mark);
                    out.push((buffer, mark));
                } else if !out.is_empty() {
                    let (buffer, mark) = out.swap_remove(dice.below(out.len()));
                    assert!(buffer.as_slice().iter().all(|&byte| byte == mark));
                }
                if dice.below(20) == 0 {
                    let before = slab.stats();
                    slab.trim();
                    let after = slab.stats();
                    assert_eq!(after.live_bytes, before.live_bytes);
                    assert!(after.cached_bytes <= before.cached_bytes);
                }
            }
        }
    }
}

/// Nothing before the first use, then what the first `n` blocks need.
#[test]
fn tables_take_72_bytes_a_block_and_4_kib() {
    assert!(size_of::<SlabAllocator>() <= 4096);
    for (block_bytes, blocks, used) in [(64, 100_000, 100_000), (MIB, 13, 13), (4 * KIB, 1_000, 57)]
    {
        let pages = CountedPages::new(FailAt::never());
        let counts = Arc::clone(&pages.0);
        let slab = SlabAllocator::fixed_with_pages(block_bytes, blocks, pages).unwrap();
        let handle = SharedAllocator::new(slab);
        assert_eq!(counts.reserved_bytes(), 0);
        let out: Vec<_> = (0..used).map(|_| handle.allocate(1, 1).unwrap()).collect();
        let tables = counts.reserved_bytes() - blocks as usize * block_bytes;
        assert!(tables <= 72 * blocks as usize + 4096, "{tables}");
        drop(out);
    }
}

#[test]
fn a_fixed_slab_is_one_row() {
    let pages = CountedPages::new(FailAt::never());
    let counts = Arc::clone(&pages.0);
    let slab = SlabAllocator::fixed_with_pages(256 * KIB, 100, pages).unwrap();
    let handle = SharedAllocator::new(slab);
    let out: Vec<_> = (0..100).map(|_| handle.allocate(1, 1).unwrap()).collect();
    assert_eq!(counts.ever_reserved(), 2, "blocks and table");
    assert_eq!(handle.allocate(1, 1).unwrap_err(), exhausted(100));
    drop(out);
}

/// Committing a cold block fails at any call: it stays cold, and comes the next time.
#[test]
fn a_cold_block_whose_pages_do_not_come_is_not_lost() {
    let mut refused = 0;
    for at in 0..14 {
        let slab = SlabAllocator::with_pages(4 * KIB, 2, CountedPages::new(FailAt::call(at)));
        let slab = Arc::new(slab.unwrap());
        let mut ids = Vec::new();
        for _ in 0..3 {
            while ids.len() < 2 {
                match slab.take_id() {
                    Ok(id) => ids.push(id),
                    Err(AllocError::OutOfMemory { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
                assert_eq!(slab.in_use() as usize, ids.len());
            }
            slab.give_back_id(ids.pop().unwrap()).unwrap();
            slab.trim();
        }
        assert_eq!((slab.in_use(), ids.len()), (1, 1));
    }
    assert!(refused >= 4, "{refused} calls failed");
}

/// Takers, givers and trims at once: no block has two holders, none is lost, and the
/// numbers add up whenever all stand still.
#[test]
fn numbers_add_up_at_every_standstill() {
    const BLOCKS: u32 = 96;
    let slab = Arc::new(SlabAllocator::new(8 * KIB, BLOCKS).unwrap());
    let gate = Barrier::new(4);
    let held = [const { std::sync::atomic::AtomicUsize::new(0) }; 4];
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (slab, gate, held) = (&slab, &gate, &held);
            scope.spawn(move || {
                let mut dice = Dice(seed as u64);
                let mut ids = Vec::new();
                for _ in 0..20 {
                    for _ in 0..300 {
                        if dice.below(2) == 0 && ids.len() < BLOCKS as usize / 4 {
                            // A quarter each: nobody may ever be refused.
                            let id = slab.take_id().unwrap();
                            let start = slab.as_ptr(id).unwrap().cast::<u64>();
                            // SAFETY: the block is this thread's, and aligned to 64.
                            unsafe { start.write(seed as u64) };
                            ids.push(id);
                        } else if !ids.is_empty() {
                            let id = ids.swap_remove(dice.below(ids.len()));
                            let start = slab.as_ptr(id).unwrap().cast::<u64>();
                            // SAFETY: the block is this thread's, and aligned to 64.
                            assert_eq!(unsafe { start.read() }, seed as u64);
                            slab.give_back_id(id).unwrap();
                        }
                        if dice.below(100) == 0 {
                            slab.trim();
                        }
                    }
                    held[seed].store(ids.len(), std::sync::atomic::Ordering::SeqCst);
                    gate.wait();
                    let out: usize = held
                        .iter()
                        .map(|held| held.load(std::sync::atomic::Ordering::SeqCst))
                        .sum();
                    let [requested, live, cached] = numbers(slab);
                    assert_eq!([requested, live], [out * 8 * KIB; 2]);
                    assert!(live + cached <= BLOCKS as usize * 8 * KIB);
                    assert!(live + cached <= slab.stats().reserved_bytes);
                    gate.wait();
                }
                ids.into_iter()
                    .for_each(|id| slab.give_back_id(id).unwrap());
            });
        }
    });
    assert_eq!(slab.in_use(), 0);
    let all: HashSet<_> = (0..BLOCKS)
        .map(|_| slab.take_id().unwrap().number())
        .collect();
    assert_eq!(all.len(), BLOCKS as usize);
    assert_eq!(slab.take_id(), Err(exhausted(BLOCKS)));
}
