//! AddressSanitizer sees into a slab: faults that must end the process.
//!
//! ```text
//!   region     | block 0        | block 1        | block 2 …
//!   poisoned           ▒▒▒▒▒▒▒▒   ▒▒▒▒▒▒▒▒▒▒▒▒▒▒   all that nobody has
//!              └ asked for ┘ └ past what was asked for: a fault (a block by id has none)
//!                            └──── the next block: a fault
//!                                 └ a block that went back: a fault
//! ```
//!
//! To the sanitizer a slab is one live mapping, so without our poisoning it would see
//! none of them. Each fault is made in a child process (this binary, run again with the
//! fault's name in the environment), which has to die with a report of the sanitizer; the
//! same steps without the fault have to live. Runs in the lane `cargo +nightly asan`.
#![cfg(tenslab_asan)]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::hint::black_box;
use std::process::{Command, Output};
use std::sync::Arc;

use tenslab::memory::{Allocator, CachingPool, Request, SharedAllocator, SlabAllocator, StepArena};
use tenslab::{DType, Tensor};

/// Names the fault that a child has to make.
const FAULT: &str = "TENSLAB_ASAN_FAULT";

const BLOCK: usize = 4096;

/// Runs the test `name` of this binary in a child that makes `fault`.
fn child(name: &str, fault: &str) -> Output {
    let this = std::env::current_exe().unwrap();
    Command::new(this)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(FAULT, fault)
        .output()
        .unwrap()
}

/// In the parent: the child dies over each fault, and lives without. In the child: the
/// work with its fault.
fn dies_over(name: &str, faults: &[&str], work: fn(&str)) {
    if let Ok(fault) = std::env::var(FAULT) {
        work(&fault);
        return;
    }
    let output = child(name, "none");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "without a fault: {errors}");
    for fault in faults {
        let output = child(name, fault);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{fault} was not seen");
        let report = "ERROR: AddressSanitizer: use-after-poison";
        assert!(errors.contains(report), "{fault}: {errors}");
    }
}

fn slab() -> SharedAllocator {
    SharedAllocator::new(SlabAllocator::new(BLOCK, 8).unwrap())
}

/// One byte at `offset` of what begins at `start`, in range or not.
fn peek(start: *mut u8, offset: usize) -> u8 {
    let place = black_box(start).wrapping_add(offset);
    // SAFETY: the caller wants to see whether the sanitizer says that it is none.
    unsafe { place.read_volatile() }
}

fn poke(start: *mut u8, offset: usize) {
    let place = black_box(start).wrapping_add(offset);
    // SAFETY: as in `peek`.
    unsafe { place.write_volatile(1) };
}

#[test]
fn an_overrun_of_a_block_is_a_fault() {
    dies_over(
        "an_overrun_of_a_block_is_a_fault",
        &["write", "read"],
        |fault| {
            let slab = slab();
            let block = slab.allocate(BLOCK, 64).unwrap();
            let neighbour = slab.allocate(BLOCK, 64).unwrap();
            drop(neighbour);
            poke(block.as_ptr(), BLOCK - 1);
            match fault {
                "write" => poke(block.as_ptr(), BLOCK),
                "read" => _ = peek(block.as_ptr(), BLOCK),
                _ => {}
            }
        },
    );
}

#[test]
fn a_block_that_was_never_handed_out_is_a_fault() {
    dies_over(
        "a_block_that_was_never_handed_out_is_a_fault",
        &["fresh"],
        |fault| {
            let slab = slab();
            let block = slab.allocate(BLOCK, 64).unwrap();
            if fault == "fresh" {
                poke(block.as_ptr(), 3 * BLOCK + 100);
            }
        },
    );
}

#[test]
fn what_was_not_asked_for_inside_a_block_is_a_fault() {
    let faults = ["first", "last", "recycled"];
    dies_over(
        "what_was_not_asked_for_inside_a_block_is_a_fault",
        &faults,
        |fault| {
            let slab = slab();
            let block = slab.allocate(100, 64).unwrap();
            poke(block.as_ptr(), 99);
            match fault {
                "first" => _ = peek(block.as_ptr(), 100),
                "last" => _ = peek(block.as_ptr(), BLOCK - 1),
                _ => {}
            }
            // A whole block goes back and comes out again as a part of one.
            drop(slab.allocate(BLOCK, 64).unwrap());
            let part = slab.allocate(8, 64).unwrap();
            poke(part.as_ptr(), 7);
            if fault == "recycled" {
                poke(part.as_ptr(), 8);
            }
        },
    );
}

#[test]
fn a_block_is_a_fault_after_it_went_back() {
    let faults = ["buffer", "tensor"];
    dies_over("a_block_is_a_fault_after_it_went_back", &faults, |fault| {
        let slab = slab();
        let block = slab.allocate(64, 64).unwrap();
        let start = block.as_ptr();
        drop(block);
        if fault == "buffer" {
            let _ = peek(start, 0);
        }
        let tensor = Tensor::zeros([16], DType::F32, &slab).unwrap();
        let view = tensor.slice(0, 8, 16).unwrap();
        let start = view.data_ptr::<f32>().cast();
        drop(tensor);
        let _ = peek(start, 0); // a view keeps it
        drop(view);
        if fault == "tensor" {
            let _ = peek(start, 31);
        }
    });
}

#[test]
fn a_block_that_was_taken_by_id_is_a_fault_outside_and_afterwards() {
    let faults = ["overrun", "neighbour", "given back", "handed out again"];
    dies_over(
        "a_block_that_was_taken_by_id_is_a_fault_outside_and_afterwards",
        &faults,
        |fault| {
            let slab = SlabAllocator::new(BLOCK, 8).unwrap();
            let [id, other] = [slab.take_id(), slab.take_id()].map(Result::unwrap);
            let [start, after] = [id, other].map(|id| slab.as_ptr(id).unwrap().as_ptr());
            assert_eq!(after.addr(), start.addr() + BLOCK);
            poke(start, BLOCK - 1);
            poke(after, 0);
            slab.give_back_id(other).unwrap();
            match fault {
                "overrun" => poke(start, BLOCK),
                "neighbour" => _ = peek(after, BLOCK - 1),
                _ => {}
            }
            slab.give_back_id(id).unwrap();
            if fault == "given back" {
                let _ = peek(start, 0);
            }
            // The same block through the other door, and less of it.
            let part = slab.allocate_block(Request::new(100, 64).unwrap()).unwrap();
            assert_eq!(part.as_ptr().as_ptr(), start);
            poke(start, 99);
            if fault == "handed out again" {
                let _ = peek(start, 100);
            }
            // SAFETY: it came from this slab just now, and nobody uses it any more.
            unsafe { slab.release_block(part) };
        },
    );
}

/// An arena hands out from the end of a chunk to its beginning.
#[test]
fn of_an_arena_all_that_nobody_has_is_a_fault() {
    let faults = [
        "behind",
        "in front",
        "fresh",
        "gap",
        "given back",
        "the next step",
    ];
    dies_over(
        "of_an_arena_all_that_nobody_has_is_a_fault",
        &faults,
        |fault| {
            let arena = Arc::new(StepArena::new());
            let room = SharedAllocator::new(Arc::clone(&arena));
            let first = room.allocate(100, 64).unwrap();
            let second = room.allocate(100, 4096).unwrap();
            let (start, aligned) = (first.as_ptr(), second.as_ptr());
            poke(start, 99);
            poke(aligned, 99);
            match fault {
                "behind" => poke(start, 100),
                // In front of it is its header, and in front of that is nothing yet.
                "in front" => poke(aligned.wrapping_sub(65), 0),
                "fresh" => _ = peek(aligned.wrapping_sub(9000), 0),
                "gap" => _ = peek(aligned, 128),
                _ => {}
            }
            // A tensor's header lies in front of its bytes.
            let tensor = Tensor::from_storage(&first.into(), 0, [25], DType::F32).unwrap();
            tensor.write::<f32>().unwrap().fill(1.0);
            drop(tensor);
            if fault == "given back" {
                let _ = peek(start, 0);
            }
            drop(second);
            arena.end_step().unwrap();
            if fault == "the next step" {
                poke(aligned, 0);
            }
            let again = room.allocate(100, 64).unwrap();
            assert_eq!(again.as_ptr(), start);
            poke(start, 99);
        },
    );
}

/// Large blocks of a pool are pages: what is past the last byte asked for is nobody's.
#[test]
fn of_a_pool_all_that_nobody_has_is_a_fault() {
    let faults = [
        "behind",
        "in the cache",
        "in the heap",
        "the rest of a split",
        "given back to the system",
        "small",
    ];
    dies_over(
        "of_a_pool_all_that_nobody_has_is_a_fault",
        &faults,
        |fault| {
            let pool = CachingPool::new().unwrap();
            let memory = SharedAllocator::new(pool.clone());
            let bytes = 100_000;
            let first = memory.allocate(bytes, 64).unwrap();
            let second = memory.allocate_zeroed(bytes, 64).unwrap();
            let small = memory.allocate(100, 64).unwrap();
            let (start, end, tiny) = (first.as_ptr(), second.as_ptr(), small.as_ptr());
            poke(start, bytes - 1);
            poke(end, bytes - 1);
            if fault == "behind" {
                poke(start, bytes);
            }
            drop(first);
            if fault == "in the cache" {
                poke(start, 0);
            }
            // As many pages, and asked to be zero: the rest of the last page is nobody's again.
            let again = memory.allocate_zeroed(bytes - 10, 64).unwrap();
            assert_eq!(again.as_ptr(), start);
            poke(start, bytes - 11);
            drop((again, second));
            pool.flush();
            if fault == "in the heap" {
                poke(end, 5000);
            }
            let half = memory.allocate(50_000, 64).unwrap();
            assert_eq!(half.as_ptr(), start);
            if fault == "the rest of a split" {
                poke(start, 53_248);
            }
            drop(half);
            pool.trim();
            if fault == "given back to the system" {
                let _ = peek(start, 0);
            }
            drop(small);
            if fault == "small" {
                poke(tiny, 0);
            }
        },
    );
}

/// A chunk goes back to the heap unpoisoned, which hands it out again.
#[test]
fn chunks_go_back_to_the_heap_without_poison() {
    for _ in 0..50 {
        let arena = StepArena::new();
        let room = SharedAllocator::new(arena);
        drop(room.allocate(40_000, 64).unwrap());
        assert_eq!(room.trim(), 64 << 10);
        let mut bytes = vec![0_u8; (64 << 10) - 16];
        black_box(&mut bytes).fill(1);
    }
}

/// The addresses may be somebody else's next: they are given back unpoisoned.
#[test]
fn regions_go_back_to_the_system_without_poison() {
    for _ in 0..50 {
        let slab = SharedAllocator::new(SlabAllocator::new(1 << 20, 4).unwrap());
        let blocks: Vec<_> = (0..4)
            .map(|_| slab.allocate(1 << 20, 64).unwrap())
            .collect();
        drop((slab, blocks));
        let mut pages = tenslab::memory::cpu().allocate_zeroed(4 << 20, 64).unwrap();
        pages.as_mut_slice().fill(1);
    }
}
