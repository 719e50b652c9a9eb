//! Valgrind sees into a slab: faults that it has to report.
//!
//! ```text
//!   region      | block 0        | block 1        | block 2 …
//!   no access           ▒▒▒▒▒▒▒▒   ▒▒▒▒▒▒▒▒▒▒▒▒▒▒   all that nobody has
//!   undefined     ░░░░░░                            what nobody wrote since it went out
//! ```
//!
//! What AddressSanitizer does not know is the second line: bytes that the new owner did not
//! write. They are initialised to Rust, so nothing is undefined about them, but whoever
//! decides by them decides by an earlier owner's data. Each fault is made in a child process
//! under valgrind, which has to report it; the same steps without it have to be clean.
//!
//! Runs in the lane `cargo memcheck`, together with a few other tests, which have to be
//! clean too.
#![cfg(tenslab_valgrind)]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::hint::black_box;
use std::process::{Command, Output};

use tenslab::memory::{Buffer, CpuAllocator, SharedAllocator, SlabAllocator, StepArena};
use tenslab::{DType, Tensor};

/// Names the fault that a child has to make.
const FAULT: &str = "TENSLAB_MEMCHECK_FAULT";

/// What valgrind exits with when it reported something.
const REPORTED: i32 = 99;

const BLOCK: usize = 4096;

/// Runs the test `name` of this binary under valgrind in a child that makes `fault`.
fn child(name: &str, fault: &str) -> Output {
    Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=99"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(FAULT, fault)
        .output()
        .expect("valgrind")
}

/// In the parent: valgrind reports each fault as what it is, and nothing without one. In
/// the child: the work with its fault.
fn is_reported(name: &str, faults: &[(&str, &str)], work: fn(&str)) {
    if let Ok(fault) = std::env::var(FAULT) {
        work(&fault);
        return;
    }
    let output = child(name, "none");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "without a fault: {errors}");
    for (fault, report) in faults {
        let output = child(name, fault);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(REPORTED), "{fault}: {errors}");
        assert!(errors.contains(report), "{fault}: {errors}");
    }
}

fn slab() -> SharedAllocator {
    SharedAllocator::new(SlabAllocator::new(BLOCK, 8).unwrap())
}

/// One byte at `offset` of what begins at `start`, in range or not.
fn peek(start: *mut u8, offset: usize) -> u8 {
    let place = black_box(start).wrapping_add(offset);
    // Used, or valgrind leaves out a load whose register is overwritten before anybody looks.
    // SAFETY: mapped; that it may not be touched is the fault that valgrind has to see.
    black_box(unsafe { place.read_volatile() })
}

fn poke(start: *mut u8, offset: usize) {
    let place = black_box(start).wrapping_add(offset);
    // SAFETY: as in `peek`.
    unsafe { place.write_volatile(1) };
}

/// Decides something by a byte.
fn decide(byte: u8) {
    if byte == 7 {
        black_box(());
        println!("seven");
    }
}

#[test]
fn overruns_and_use_after_give_back() {
    let faults = [
        ("read past the end", "Invalid read"),
        ("write past the end", "Invalid write"),
        ("inside the block, not asked for", "Invalid read"),
        ("after give-back", "Invalid read"),
        ("after the last view", "Invalid write"),
    ];
    is_reported("overruns_and_use_after_give_back", &faults, |fault| {
        let slab = slab();
        let block = slab.allocate(BLOCK, 64).unwrap();
        let part = slab.allocate(100, 64).unwrap();
        drop(slab.allocate(BLOCK, 64).unwrap());
        let (whole, short) = (block.as_ptr(), part.as_ptr());
        poke(whole, BLOCK - 1);
        poke(short, 99);
        match fault {
            "inside the block, not asked for" => _ = peek(short, 100),
            "read past the end" => _ = peek(short, BLOCK),
            "write past the end" => poke(short, BLOCK),
            _ => {}
        }
        drop((block, part));
        if fault == "after give-back" {
            let _ = peek(whole, 0);
        }
        let tensor = Tensor::zeros([16], DType::F32, &slab).unwrap();
        let start = tensor.data_ptr::<f32>().cast();
        let view = tensor.slice(0, 8, 16).unwrap();
        drop(tensor);
        poke(start, 0);
        drop(view);
        if fault == "after the last view" {
            poke(start, 0);
        }
    });
}

#[test]
fn blocks_that_are_taken_by_id() {
    let faults = [
        ("overrun", "Invalid write"),
        ("after give-back", "Invalid read"),
        ("unwritten", "uninitialised"),
    ];
    is_reported("blocks_that_are_taken_by_id", &faults, |fault| {
        let slab = SlabAllocator::new(BLOCK, 8).unwrap();
        let id = slab.take_id().unwrap();
        let start = slab.as_ptr(id).unwrap().as_ptr();
        poke(start, BLOCK - 1);
        decide(peek(start, BLOCK - 1));
        match fault {
            "overrun" => poke(start, BLOCK),
            "unwritten" => decide(peek(start, 5)),
            _ => {}
        }
        slab.give_back_id(id).unwrap();
        if fault == "after give-back" {
            let _ = peek(start, 0);
        }
    });
}

#[test]
fn what_an_arena_has_of_the_last_step() {
    let faults = [
        ("behind", "Invalid write"),
        ("given back", "Invalid read"),
        ("unwritten", "uninitialised"),
        ("of the last step", "uninitialised"),
    ];
    is_reported("what_an_arena_has_of_the_last_step", &faults, |fault| {
        let arena = std::sync::Arc::new(StepArena::new());
        let room = SharedAllocator::new(std::sync::Arc::clone(&arena));
        let mut first = room.allocate(100, 64).unwrap();
        let start = first.as_ptr();
        match fault {
            "unwritten" => decide(peek(start, 5)),
            "behind" => poke(start, 100),
            _ => {}
        }
        first.as_mut_slice().fill(7);
        drop(first);
        arena.end_step().unwrap();
        if fault == "given back" {
            let _ = peek(start, 0);
        }
        let second = room.allocate(100, 64).unwrap();
        assert_eq!(second.as_ptr(), start);
        if fault == "of the last step" {
            decide(peek(start, 5));
        }
        drop(second);
        decide(peek(room.allocate_zeroed(200, 64).unwrap().as_ptr(), 199));
    });
}

#[test]
fn bytes_that_their_owner_did_not_write() {
    let faults = [
        ("recycled", "uninitialised"),
        ("heap", "uninitialised"),
        ("pages", "uninitialised"),
    ];
    is_reported("bytes_that_their_owner_did_not_write", &faults, |fault| {
        let (slab, cpu) = (slab(), SharedAllocator::new(CpuAllocator::new()));
        slab.allocate(BLOCK, 64).unwrap().as_mut_slice().fill(7);
        let byte = |buffer: Buffer| peek(buffer.as_ptr(), 3);
        // Zeros that were asked for are written, also where nobody had to.
        decide(byte(slab.allocate_zeroed(BLOCK, 64).unwrap()));
        decide(byte(cpu.allocate_zeroed(100, 64).unwrap()));
        decide(byte(cpu.allocate_zeroed(2 << 20, 64).unwrap()));
        match fault {
            "recycled" => decide(byte(slab.allocate(BLOCK, 64).unwrap())),
            "heap" => decide(byte(cpu.allocate(100, 64).unwrap())),
            "pages" => decide(byte(cpu.allocate(2 << 20, 64).unwrap())),
            _ => {}
        }
    });
}
