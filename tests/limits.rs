//! What the system refuses is an error with the numbers in it, never a crash.
//!
//! Each test runs its work in a child process (this binary again, with the name of the
//! test in the environment), whose limits are lowered for good.
#![cfg(all(
    target_os = "linux",
    not(loom),
    not(tenslab_portable),
    not(tenslab_asan)
))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(clippy::print_stdout, reason = "a test says what it skipped")]

use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tenslab::memory::{
    AllocError, Budget, CpuAllocator, Limit, Lock, Meter, ProcessMemory, SharedAllocator,
    SlabAllocator, Trace, cpu, resident_bytes,
};
use tenslab::{DType, Tensor};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Names the test whose work a child has to do.
const WORK: &str = "TENSLAB_LIMITS_CHILD";

/// In the parent: runs the test `name` in a child, which has to end well and to have done
/// its work. In the child: does it.
fn in_a_child(name: &str, work: fn()) {
    if std::env::var(WORK).is_ok_and(|wanted| wanted == name) {
        work();
        println!("done: {name}");
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(WORK, name)
        .output()
        .unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}: {out}{errors}", output.status);
    assert!(out.contains(&format!("done: {name}")), "{out}");
    for line in out.lines().filter(|line| line.starts_with("skipped")) {
        println!("{line}");
    }
}

fn limit(resource: Resource, bytes: usize) {
    let current = Some(bytes as u64);
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

/// Without the right to lock whatever it wants. `false`: it cannot be given up.
fn give_up_the_right_to_lock() -> bool {
    let Ok(mut sets) = capabilities(None) else {
        println!("skipped: the capabilities of this thread cannot be read");
        return false;
    };
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    let given_up = set_capabilities(None, sets).is_ok();
    if !given_up {
        println!("skipped: the right to lock cannot be given up here");
    }
    given_up
}

fn locked(lock: Lock) -> SharedAllocator {
    SharedAllocator::new(CpuAllocator::new().with_lock(lock))
}

#[test]
fn a_lock_above_the_limit_is_an_error_with_the_limit_and_the_need() {
    in_a_child(
        "a_lock_above_the_limit_is_an_error_with_the_limit_and_the_need",
        || {
            if !give_up_the_right_to_lock() {
                return;
            }
            limit(Resource::Memlock, 2 * MIB);
            let required = locked(Lock::Required);
            let small = required.allocate(5000, 64).unwrap();
            let error = required.allocate(16 * MIB, 64).unwrap_err();
            let (bytes, limit_bytes) = (16 * MIB, 2 * MIB as u64);
            assert_eq!(error, AllocError::CannotLock { bytes, limit_bytes });
            assert_eq!(
                error.to_string(),
                "16777216 bytes cannot be locked into memory: the process may lock 2097152 \
                 in all (RLIMIT_MEMLOCK, ulimit -l)"
            );
            assert_eq!(required.outstanding(), 1);
            drop(small);
            // The limit is for all together, and what goes back is locked no more.
            for _ in 0..4 {
                let half = required.allocate(MIB, 64).unwrap();
                assert!(required.allocate(MIB + 4096, 64).is_err());
                drop(half);
            }
            // Best effort: handed out all the same, without touching it.
            let swappable = locked(Lock::BestEffort).allocate(16 * MIB, 64).unwrap();
            assert!(resident_bytes(swappable.as_slice()).unwrap() < 16 * MIB);
        },
    );
}

#[test]
fn a_locked_block_is_in_memory_and_does_not_go_in_parts() {
    in_a_child(
        "a_locked_block_is_in_memory_and_does_not_go_in_parts",
        || {
            for lock in [Lock::Required, Lock::BestEffort] {
                for bytes in [1, 5000, MIB] {
                    let mut buffer = match locked(lock).allocate(bytes, 64) {
                        Ok(buffer) => buffer,
                        Err(error) => {
                            println!("skipped: {error}");
                            return;
                        }
                    };
                    let resident = resident_bytes(buffer.as_slice()).unwrap();
                    assert!(resident >= bytes, "{lock:?}: {resident} of {bytes}");
                    assert_eq!(buffer.decommit(0..bytes).bytes, 0);
                    assert_eq!(resident_bytes(buffer.as_slice()), Some(resident));
                }
            }
        },
    );
}

/// #40: elsewhere `mmap`'s failure was compared with null.
#[test]
fn a_process_without_address_space_gets_errors() {
    in_a_child("a_process_without_address_space_gets_errors", || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').next().unwrap().parse().unwrap();
        limit(Resource::As, pages * rustix_page() + 64 * MIB);
        let bytes = 1 << 30;
        let out = AllocError::OutOfMemory { bytes };
        assert_eq!(cpu().allocate(bytes, 64).unwrap_err(), out);
        assert_eq!(
            cpu().allocate_zeroed(bytes, 1 << 21).unwrap_err(),
            AllocError::OutOfMemory {
                bytes: bytes + (1 << 21) - rustix_page(),
            }
        );
        assert_eq!(locked(Lock::Required).allocate(bytes, 64).unwrap_err(), out);
        assert!(Tensor::zeros([bytes], DType::U8, cpu()).is_err());
        let slab = SharedAllocator::new(SlabAllocator::new(bytes, 2).unwrap());
        assert!(slab.allocate(bytes, 64).is_err());
        // Also where the global allocator is asked: until nothing is left.
        let mut held = Vec::with_capacity(4096);
        let error = loop {
            match cpu().allocate((1 << 20) - 64, 64) {
                Ok(buffer) => held.push(buffer),
                Err(error) => break error,
            }
        };
        let bytes = (1 << 20) - 64;
        assert_eq!(error, AllocError::OutOfMemory { bytes });
        assert!(held.len() < 4096);
        let mut last = held.pop().unwrap();
        last.as_mut_slice().fill(1);
        drop(held);
        assert!(
            cpu().allocate(16 * MIB, 64).is_ok(),
            "what went back can be had again"
        );
    });
}

fn resident() -> usize {
    ProcessMemory::resident().unwrap()
}

/// #38: elsewhere a cache of 40 GB was cleared when it was made. All ways to 8 GiB of zeros,
/// all held at once; the kernel counts the whole process, tables and all.
#[test]
fn eight_gigabytes_of_zeros_take_less_than_16_mib() {
    in_a_child("eight_gigabytes_of_zeros_take_less_than_16_mib", || {
        const BYTES: usize = 8 << 30;
        let slab = |block_bytes| {
            let blocks = u32::try_from(BYTES / block_bytes).unwrap();
            SlabAllocator::new(block_bytes, blocks).unwrap()
        };
        let limit = Limit::new(BYTES);
        let stacks: [(SharedAllocator, usize); 5] = [
            (cpu().clone(), BYTES),
            (SharedAllocator::new(Meter::new(slab(BYTES))), BYTES),
            (SharedAllocator::new(Budget::new(slab(MIB), &limit)), MIB),
            (SharedAllocator::new(slab(MIB)), MIB),
            (SharedAllocator::new(Trace::new(CpuAllocator::new())), BYTES),
        ];
        for (from, bytes) in stacks {
            let mut held = Vec::with_capacity(BYTES / bytes);
            let mut tensors = Vec::with_capacity(1);
            let before = resident();
            let tensor = Tensor::zeros([bytes], DType::U8, &from).unwrap();
            tensors.push(tensor);
            held.extend((1..BYTES / bytes).map(|_| from.allocate_zeroed(bytes, 64).unwrap()));
            let grown = resident().saturating_sub(before);
            assert!(grown < 16 * MIB, "{grown} bytes in blocks of {bytes}");
            assert_eq!(tensors[0].item::<u8>(&[bytes / 2]), 0);
            let last = held.last().map_or(0, |buffer| buffer.as_slice()[bytes - 1]);
            assert_eq!(last, 0);
        }
    });
}

/// #54: a server that had a spike is as small as before once it trims: its blocks go, the
/// tables stay (at most 72 bytes for each block that was ever out), and no more than 5 per
/// cent of what it was at first is added to that.
#[test]
fn after_a_spike_and_a_trim_a_process_is_as_small_as_before() {
    in_a_child(
        "after_a_spike_and_a_trim_a_process_is_as_small_as_before",
        || {
            const SPIKE: usize = 256 * MIB;
            for bytes in [KIB, 16 * KIB, MIB] {
                let blocks = SPIKE / bytes;
                let slab = SlabAllocator::new(bytes, u32::try_from(blocks).unwrap()).unwrap();
                let slab = SharedAllocator::new(Meter::new(slab));
                let mut held: Vec<Tensor> = Vec::with_capacity(blocks);
                // What a first small use brings along, and the list itself, are no spike.
                let few = |held: &mut Vec<Tensor>, count: usize| {
                    held.extend((0..count).map(|_| {
                        let tensor = Tensor::empty([bytes], DType::U8, &slab).unwrap();
                        tensor.write::<u8>().unwrap().fill(1);
                        tensor
                    }));
                };
                let list = std::mem::size_of::<Tensor>() * blocks;
                few(&mut held, 10);
                let before = resident();
                few(&mut held, blocks - 10);
                assert!(resident() > before + SPIKE / 10 * 9, "there was a spike");
                held.truncate(10);
                let gone = slab.trim();
                assert!(gone > SPIKE - 10 * bytes - 64 * KIB, "{gone} of {SPIKE}");
                let after = resident();
                let tables = 72 * blocks + 4 * KIB;
                let most = before + before / 20 + tables + list;
                assert!(after <= most, "{bytes}: {before} became {after} of {most}");
                held.clear();
                assert!(slab.trim() <= 10 * bytes.max(4 * KIB));
            }
            // Large blocks from the system need no trim.
            let before = resident();
            let mut large = cpu().allocate(SPIKE, 64).unwrap();
            large.as_mut_slice().fill(1);
            assert!(resident() > before + SPIKE / 10 * 9);
            drop(large);
            let after = resident();
            assert!(after <= before + before / 20, "{before} became {after}");
        },
    );
}

fn rustix_page() -> usize {
    use tenslab::memory::{OsPages, PageSource};
    OsPages::new().page_bytes()
}

/// A child, because there nobody else takes addresses meanwhile.
#[test]
fn a_block_grows_where_it_stands_while_the_addresses_behind_it_are_free() {
    in_a_child(
        "a_block_grows_where_it_stands_while_the_addresses_behind_it_are_free",
        || {
            // Mappings go downwards: the second is in front of the first.
            let first = cpu().allocate(8 * MIB, 64).unwrap();
            let mut second = cpu().allocate(2 * MIB, 64).unwrap();
            second.as_mut_slice().fill(7);
            let address = second.as_ptr();
            let behind = first.as_ptr().addr();
            if address.addr() + 2 * MIB != behind {
                println!("skipped: the kernel put the blocks apart");
                return;
            }
            let (bytes, capacity) = (4 * MIB, 2 * MIB);
            let error = second.try_grow(bytes).unwrap_err();
            assert_eq!(error, AllocError::CannotGrow { bytes, capacity });
            assert_eq!(second.len(), 2 * MIB);
            drop(first);
            second.try_grow(bytes - 1).unwrap();
            assert_eq!((second.as_ptr(), second.len()), (address, bytes - 1));
            let (old, new) = second.as_slice().split_at(2 * MIB);
            assert!(old.iter().all(|&byte| byte == 7));
            assert!(new.iter().all(|&byte| byte == 0), "fresh pages");
            second.as_mut_slice().fill(8);
            drop(second);
            // All of it went back: so much fits there again.
            let mut again = cpu().allocate(4 * MIB, 64).unwrap();
            assert!(again.as_mut_slice().iter().all(|&byte| byte == 0));
        },
    );
}
