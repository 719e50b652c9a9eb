//! The guard finds what it is for, says where, and is an allocator like the others.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use probe::{FailAt, Spy};
use tenslab::memory::{
    AllocError, Buffer, CpuAllocator, Guarded, Meter, SharedAllocator, SlabAllocator, Tag,
};
use tenslab::{DType, Tensor, bf16, f16};

fn guarded() -> (Arc<Guarded<CpuAllocator>>, SharedAllocator) {
    let guarded = Arc::new(Guarded::new(CpuAllocator::new()));
    let shared = SharedAllocator::new(Arc::clone(&guarded));
    (guarded, shared)
}

/// Writes one byte where it may not.
fn scribble(buffer: &Buffer, offset: isize) {
    let place = std::hint::black_box(buffer.as_ptr()).wrapping_offset(offset);
    // SAFETY: inside a redzone of the guard's, which nobody else looks at now.
    unsafe { place.write(0x11) };
}

/// The message of the panic with which `work` ends.
fn panics(work: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(work)).expect_err("no panic");
    payload
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_default()
}

#[test]
fn fresh_bytes_are_a_nan_in_every_float_dtype_and_zeros_are_zeros() {
    let (_, shared) = guarded();
    let empty = |dtype| Tensor::empty([3, 5], dtype, &shared).unwrap();
    let all = empty(DType::F32);
    assert!(all.read::<f32>().unwrap().iter().all(|x| x.is_nan()));
    let all = empty(DType::F64);
    assert!(all.read::<f64>().unwrap().iter().all(|x| x.is_nan()));
    let all = empty(DType::F16);
    assert!(all.read::<f16>().unwrap().iter().all(|x| x.is_nan()));
    let all = empty(DType::BF16);
    assert!(all.read::<bf16>().unwrap().iter().all(|x| x.is_nan()));
    for bytes in [1, 63, 4096, 3 << 20] {
        drop(shared.allocate(bytes, 64).unwrap());
        let zeroed = shared.allocate_zeroed(bytes, 64).unwrap();
        assert!(zeroed.as_slice().iter().all(|&byte| byte == 0));
    }
    // And they are not the same before and after.
    assert_ne!(
        Guarded::<CpuAllocator>::FRESH,
        Guarded::<CpuAllocator>::DEAD
    );
}

#[test]
fn a_byte_written_outside_a_block_is_found_when_it_goes_back() {
    let (guarded, shared) = guarded();
    let kv = shared.with_tag(Tag::Kv);
    let mut found = 0;
    for (number, (bytes, align, offset)) in [
        (100, 64, 100_isize),
        (100, 64, 163),
        (100, 64, -1),
        (100, 64, -64),
        (1, 1, 1),
        (7, 4096, -4096),
        (2 << 20, 64, 2 << 20),
        (5000, 8192, 5000),
    ]
    .into_iter()
    .enumerate()
    {
        let buffer = kv.allocate(bytes, align).unwrap();
        scribble(&buffer, offset);
        let message = panics(|| drop(buffer));
        assert_eq!(
            message,
            format!(
                "a block of {bytes} bytes (kv, allocation {number}) was written out of bounds: \
                 byte {offset} is 0x11"
            )
        );
        found += 1;
        assert_eq!(guarded.report().damaged, found);
    }
    assert!(guarded.report().is_clean());
    assert_eq!(shared.outstanding(), 0);
}

/// AddressSanitizer ends the process over the write itself.
#[cfg(not(tenslab_asan))]
#[test]
fn a_byte_written_after_the_give_back_is_found_when_it_leaves_the_quarantine() {
    let (guarded, shared) = guarded();
    for (number, offset) in [0_isize, 777, 999, -3, 1003].into_iter().enumerate() {
        let buffer = shared.allocate(1000, 64).unwrap();
        let start = buffer.as_ptr();
        drop(buffer);
        // SAFETY: none for a user; the guard has not given the memory back yet.
        unsafe { start.wrapping_offset(offset).write(0x22) };
        assert_eq!(
            panics(|| _ = shared.trim()),
            format!(
                "a block of 1000 bytes (other, allocation {number}) was written after it was \
                 given back: byte {offset} is 0x22"
            )
        );
        assert_eq!(guarded.report().quarantined_bytes, 0);
    }
    assert_eq!(guarded.report().damaged, 5);
}

#[test]
fn damage_can_be_told_instead_and_the_block_never_comes_out_again() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let slab = SlabAllocator::new(4096, 2).unwrap();
    let guarded = Guarded::new(slab).with_quarantine(0).on_damage(|damage| {
        assert_eq!(
            (damage.bytes, damage.offset, damage.found),
            (256, 256, 0x11)
        );
        TOLD.fetch_add(1, Ordering::Relaxed);
    });
    let shared = SharedAllocator::new(guarded);
    let buffer = shared.allocate(256, 64).unwrap();
    let damaged = buffer.as_ptr();
    scribble(&buffer, 256);
    drop(buffer);
    assert_eq!(TOLD.load(Ordering::Relaxed), 1);
    for _ in 0..10 {
        let other = shared.allocate(256, 64).unwrap();
        assert_ne!(other.as_ptr(), damaged);
        assert_eq!(
            shared.allocate(1, 1).unwrap_err(),
            AllocError::Exhausted { blocks: 2 }
        );
    }
}

#[test]
fn what_is_out_is_reported_by_tag() {
    let (guarded, shared) = guarded();
    let scratch = shared.with_tag(Tag::Scratch);
    let first = scratch.allocate(10, 64).unwrap();
    let leaked: Vec<_> = (0..3).map(|_| scratch.allocate(100, 64).unwrap()).collect();
    let nothing = shared.with_tag(Tag::Weights).allocate(0, 64).unwrap();
    drop(first);
    let report = guarded.report();
    assert_eq!(
        (report[Tag::Scratch].blocks, report[Tag::Scratch].bytes),
        (3, 300)
    );
    assert_eq!(report[Tag::Scratch].oldest, Some(1));
    assert_eq!(
        report.to_string(),
        "weights: 1 block, 0 bytes\nscratch: 3 blocks, 300 bytes, the oldest is allocation 1\n"
    );
    assert!(!report.is_clean());
    drop((leaked, nothing));
    assert!(guarded.report().is_clean());
    assert_eq!(guarded.report().to_string(), "");
}

#[test]
fn the_quarantine_keeps_the_last_bytes_and_no_more() {
    let meter = Arc::new(Meter::new(CpuAllocator::new()));
    let one = 1000 + 128;
    let guarded = Arc::new(Guarded::new(Arc::clone(&meter)).with_quarantine(3 * one));
    let shared = SharedAllocator::new(Arc::clone(&guarded));
    for given_back in 1..10 {
        drop(shared.allocate(1000, 64).unwrap());
        let kept = given_back.min(3);
        assert_eq!(meter.snapshot().total.allocations, kept);
        assert_eq!(guarded.report().quarantined_bytes, kept * one);
    }
    drop(shared.allocate(1 << 20, 64).unwrap()); // more than all of it
    assert_eq!(meter.snapshot().total.allocations, 0);
    drop(shared.allocate(0, 64).unwrap());
    drop(shared.allocate(1000, 64).unwrap());
    drop((shared, guarded));
    assert_eq!(meter.snapshot().total.allocations, 0, "the end empties it");
}

/// Every block goes back as it came, also when the upstream refuses one in between, and
/// whichever thread drops it.
#[test]
fn blocks_go_back_upstream_as_they_came() {
    for quarantine in [0, 5000, 1 << 20] {
        for failing in [0, 1, 17, usize::MAX] {
            let slab = SlabAllocator::new(64 << 10, 64).unwrap();
            let spy = Spy::new(slab, FailAt::call(failing));
            let log = Arc::clone(&spy.log);
            let guarded = Guarded::new(spy).with_quarantine(quarantine);
            let shared = SharedAllocator::new(guarded);
            let mut refused = 0;
            std::thread::scope(|scope| {
                let (to_other, from_other) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    for buffer in from_other {
                        drop::<Tensor>(buffer);
                    }
                });
                for round in 0..50 {
                    match Tensor::empty([100 * (round % 7)], DType::F32, &shared) {
                        Ok(tensor) => to_other.send(tensor).unwrap(),
                        Err(_) => refused += 1,
                    }
                }
            });
            let failed = usize::from(failing < 50);
            if quarantine == 0 || failing == 0 {
                assert_eq!(refused, failed);
            }
            // Where something is in quarantine it goes back, and the upstream is asked again.
            assert!(refused <= failed);
            drop(shared);
            assert!(log.is_gone());
            assert_eq!((log.taken(), log.returned()), (50 - refused, 50 - refused));
        }
    }
}

#[test]
fn sizes_that_leave_no_room_for_redzones_are_errors_with_the_size_asked_for() {
    let (_, shared) = guarded();
    for (bytes, align) in [
        (isize::MAX as usize - 63, 64),
        (isize::MAX as usize - 4095, 4096),
    ] {
        let error = shared.allocate(bytes, align).unwrap_err();
        assert_eq!(error, AllocError::SizeOverflow { bytes, align });
    }
    let slab = SharedAllocator::new(Guarded::new(SlabAllocator::new(4096, 2).unwrap()));
    let (bytes, block_bytes) = (4096 + 128, 4096);
    let error = slab.allocate(4096, 64).unwrap_err();
    assert_eq!(error, AllocError::TooLarge { bytes, block_bytes });
    assert!(slab.allocate(4096 - 128, 64).is_ok());
}

/// #21: every alignment with sizes around it, over a slab and over the system.
#[test]
fn every_alignment_is_kept_and_no_two_blocks_share_a_byte() {
    let slab = SlabAllocator::new(16 << 20, 512).unwrap();
    let over = [
        SharedAllocator::new(Guarded::new(CpuAllocator::new())),
        SharedAllocator::new(Guarded::new(slab).with_quarantine(64 << 10)),
    ];
    for shared in over {
        for align in (0..=21).map(|log2| 1_usize << log2) {
            let mut out: Vec<Buffer> = [1, align - 1, align, align + 1, 3 * align]
                .into_iter()
                .map(|bytes| shared.allocate(bytes, align).unwrap())
                .collect();
            for (fill, buffer) in (1..).zip(&mut out) {
                assert!(buffer.as_ptr().addr().is_multiple_of(align));
                buffer.as_mut_slice().fill(fill);
            }
            for (fill, buffer) in (1..).zip(&out) {
                assert!(buffer.as_slice().iter().all(|&byte| byte == fill));
            }
        }
        assert_eq!(shared.outstanding(), 0);
    }
}

#[test]
fn a_part_of_a_guarded_block_can_be_given_back() {
    let (_, shared) = guarded();
    let mut buffer = shared.allocate_zeroed(4 << 20, 4096).unwrap();
    buffer.as_mut_slice().fill(1);
    let given = buffer.decommit(4096..3 << 20);
    if cfg!(all(target_os = "linux", not(tenslab_portable))) {
        assert_eq!(given.bytes, (3 << 20) - 4096);
        assert_eq!(buffer.as_slice()[4096..3 << 20].iter().max(), Some(&0));
    }
    buffer.commit(4096..3 << 20).unwrap();
    assert_eq!(buffer.as_slice()[4095], 1);
    assert_eq!(buffer.as_slice()[3 << 20], 1);
    let error = buffer.try_grow(5 << 20).unwrap_err();
    assert!(matches!(error, AllocError::CannotGrow { .. }));
}

/// Blocks in the quarantine are nobody's: they never make the next request fail.
#[test]
fn the_quarantine_gives_way_where_upstream_is_short() {
    let slab = SlabAllocator::new(4096, 2).unwrap();
    let guarded = Arc::new(Guarded::new(slab));
    let handle = SharedAllocator::new(Arc::clone(&guarded));
    let kept = handle.allocate(100, 64).unwrap();
    for _ in 0..5 {
        drop(handle.allocate(100, 64).unwrap());
        assert!(guarded.report().quarantined_bytes > 0);
    }
    let other = handle.allocate(100, 64).unwrap();
    assert_eq!(guarded.report().quarantined_bytes, 0);
    let error = handle.allocate(100, 64).unwrap_err();
    assert_eq!(error, AllocError::Exhausted { blocks: 2 });
    drop((kept, other));
    assert!(guarded.report().is_clean());
}
