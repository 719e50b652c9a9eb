//! Frozen bytes whose pages are read-only: a stray write ends the process where it happens,
//! and what goes back is writable again.
//!
//! Each stray write is made by a child process (this binary, run again with the name of the
//! test in the environment), which has to die of it.
#![cfg(all(target_os = "linux", not(loom), not(tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(clippy::print_stdout, reason = "a child says that it lived")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};

use tenslab::memory::{
    BorrowError, Budget, CpuAllocator, FakePages, Fault, FaultPlan, Guarded, Limit, Meter, OsPages,
    SharedAllocator, SlabAllocator, Storage, Tag, Trace, cpu,
};
use tenslab::{DType, Tensor, ops};

const MIB: usize = 1 << 20;

/// Names the test whose stray write a child has to make, and whether it makes it.
const STRAY: &str = "TENSLAB_STRAY_WRITE";

fn child(name: &str, writes: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(STRAY, writes)
        .output()
        .unwrap()
}

/// In the parent: the child dies of the write, and lives without it. In the child: gets the
/// bytes from `work` and writes to the last of them.
fn dies_of_a_stray_write(name: &str, work: fn() -> Storage) {
    if let Ok(writes) = std::env::var(STRAY) {
        let storage = work();
        let last = storage.as_ptr().wrapping_add(storage.len() - 1);
        // SAFETY: the bytes are the storage's.
        let before = unsafe { last.read() };
        if writes == "yes" {
            // SAFETY: none of it: this is the mistake that has to trap.
            unsafe { last.write_volatile(before ^ 1) };
        }
        drop(storage);
        println!("lived");
        return;
    }
    let lived = child(name, "no");
    let out = String::from_utf8_lossy(&lived.stdout);
    let errors = String::from_utf8_lossy(&lived.stderr);
    assert!(lived.status.success(), "without the write: {out}{errors}");
    assert!(out.contains("lived"), "{out}");
    let died = child(name, "yes");
    let errors = String::from_utf8_lossy(&died.stderr);
    // The sanitizer catches the signal, reports and exits.
    let reported = cfg!(tenslab_asan) && errors.contains("AddressSanitizer: SEGV");
    assert!(
        died.status.signal() == Some(11) || reported,
        "{}: {errors}",
        died.status
    );
    assert!(!String::from_utf8_lossy(&died.stdout).contains("lived"));
}

#[test]
fn a_stray_write_to_protected_bytes_traps() {
    dies_of_a_stray_write("a_stray_write_to_protected_bytes_traps", || {
        let mut buffer = cpu().allocate(MIB + 5, 64).unwrap();
        buffer.as_mut_slice().fill(7);
        let storage = Storage::from(buffer);
        // The page that the last byte is in, too.
        assert_eq!(storage.freeze_protected().unwrap().bytes, MIB + 4096);
        storage
    });
}

/// Every wrapper lets it through to the pages at the bottom.
#[test]
fn a_stray_write_through_a_whole_stack_traps() {
    dies_of_a_stray_write("a_stray_write_through_a_whole_stack_traps", || {
        let limit = Limit::new(64 * MIB);
        let stack = Guarded::new(Fault::new(Arc::new(CpuAllocator::new()), FaultPlan::Never));
        let stack = Trace::new(stack);
        let stack = SharedAllocator::new(Budget::new(Meter::new(stack), &limit));
        // A handle is an allocator, too.
        let stack = SharedAllocator::new(stack);
        let storage = Storage::from(stack.allocate(2 * MIB, 64).unwrap());
        let bytes = storage.freeze_protected().unwrap().bytes;
        assert!(bytes >= 2 * MIB, "{bytes}");
        storage
    });
}

fn counting() -> (Arc<FakePages<OsPages>>, SharedAllocator, Arc<Meter<Cpu>>) {
    counting_over(FakePages::over(OsPages::new()))
}

type Cpu = CpuAllocator<Arc<FakePages<OsPages>>>;

fn counting_over(
    pages: FakePages<OsPages>,
) -> (Arc<FakePages<OsPages>>, SharedAllocator, Arc<Meter<Cpu>>) {
    let pages = Arc::new(pages);
    let meter = Arc::new(Meter::new(CpuAllocator::with_pages(Arc::clone(&pages))));
    let shared = SharedAllocator::new(Arc::clone(&meter)).with_tag(Tag::Weights);
    (pages, shared, meter)
}

#[test]
fn readers_go_on_and_nobody_gets_the_bytes_to_write() {
    let (_, allocator, _) = counting();
    let tensor = ops::full([MIB], 3.0_f32, DType::F32, &allocator).unwrap();
    let mut storage = tensor.storage().clone();
    let reading = tensor.read::<f32>().unwrap();
    assert_eq!(storage.freeze_protected().unwrap().bytes, 4 * MIB);
    assert_eq!(storage.freeze_protected().unwrap().bytes, 4 * MIB); // twice is fine
    assert_eq!((reading[0], reading[MIB - 1]), (3.0, 3.0));
    drop(reading);
    assert!(tensor.write::<f32>().is_err());
    assert!(storage.decommit(0..MIB).is_err());
    storage.commit(0..MIB).unwrap();
    drop(tensor);
    let error = storage.get_mut().unwrap_err();
    assert!(matches!(error, BorrowError::Frozen { .. }), "{error}");
}

#[test]
fn a_writer_is_in_the_way_and_then_nothing_is_protected() {
    let (pages, allocator, _) = counting();
    let tensor = Tensor::zeros([MIB], DType::F32, &allocator).unwrap();
    let mut writing = tensor.write::<f32>().unwrap();
    let calls = pages.counts().calls;
    let error = tensor.storage().freeze_protected().unwrap_err();
    assert!(matches!(error, BorrowError::Writing { .. }), "{error}");
    assert_eq!(pages.counts().calls, calls);
    writing.fill(1.0);
    drop(writing);
    assert!(!tensor.is_frozen());
}

/// Redzones are checked and the bytes are painted when a block goes back: with pages that were
/// still read-only that would trap.
#[test]
fn what_goes_back_is_writable_and_goes_back_once() {
    let (pages, allocator, meter) = counting();
    let guarded = SharedAllocator::new(Guarded::new(allocator.clone()));
    for handles in [1, 3] {
        let storage = Storage::from(guarded.allocate(MIB, 64).unwrap());
        let others = vec![storage.clone(); handles];
        let calls = pages.counts().calls;
        assert!(storage.freeze_protected().unwrap().bytes >= MIB);
        drop(storage);
        assert_eq!(pages.counts().calls, calls + 1, "it is still protected");
        drop(others);
        assert_eq!(
            pages.counts().calls,
            calls + 2,
            "one call makes it writable"
        );
    }
    guarded.trim();
    assert_eq!(
        (pages.counts().regions, meter.snapshot().total.live_bytes),
        (0, 0)
    );
    let mut again = allocator.allocate(MIB, 64).unwrap();
    again.as_mut_slice().fill(1);
}

/// Calls to the page source: 0 reserves, 1 commits, 2 protects, 3 makes writable again and fails.
#[test]
fn what_stays_read_only_is_leaked_and_goes_on_counting() {
    let (pages, allocator, meter) =
        counting_over(FakePages::over(OsPages::new()).with_failing_call(3));
    // Reachable for ever, as the leak is: a sanitizer reports only what nothing points to.
    static KEPT: OnceLock<SharedAllocator> = OnceLock::new();
    KEPT.get_or_init(|| allocator.clone());
    let storage = Storage::from(allocator.allocate(MIB, 64).unwrap());
    let bytes = storage.as_ptr();
    assert_eq!(storage.freeze_protected().unwrap().bytes, MIB);
    drop(storage);
    assert_eq!(pages.counts().regions, 1);
    assert_eq!(allocator.outstanding(), 1);
    assert_eq!(meter.snapshot()[Tag::Weights].live_bytes, MIB);
    // SAFETY: leaked, so still mapped, and nobody writes.
    assert_eq!(unsafe { bytes.read() }, 0);
    // What comes after is none of its business.
    let other = Storage::from(allocator.allocate(MIB, 64).unwrap());
    assert_ne!(other.as_ptr(), bytes);
    assert_eq!(other.freeze_protected().unwrap().bytes, MIB);
    drop(other);
    assert_eq!((pages.counts().regions, allocator.outstanding()), (1, 1));
}

/// Refused is frozen all the same, and goes back.
#[test]
fn what_cannot_be_protected_is_frozen_and_goes_back() {
    let (pages, allocator, _) = counting_over(FakePages::over(OsPages::new()).with_failing_call(2));
    let storage = Storage::from(allocator.allocate(MIB, 64).unwrap());
    assert_eq!(storage.freeze_protected().unwrap().bytes, 0);
    assert!(storage.is_frozen());
    drop(storage);
    assert_eq!((pages.counts().regions, allocator.outstanding()), (0, 0));
}

#[test]
fn bytes_that_share_their_pages_are_only_frozen() {
    let slab = SharedAllocator::new(SlabAllocator::new(64 << 10, 4).unwrap());
    for (allocator, bytes) in [(cpu(), 0), (cpu(), 1), (cpu(), MIB - 1), (&slab, 64 << 10)] {
        let storage = Storage::from(allocator.allocate(bytes, 64).unwrap());
        assert_eq!(storage.freeze_protected().unwrap().bytes, 0, "{bytes}");
        assert!(storage.is_frozen());
    }
    let mut again = slab.allocate_zeroed(64 << 10, 64).unwrap();
    again.as_mut_slice().fill(1);
}
