//! Who gives what back, when, and how often.
//!
//! ```text
//!   handle ─┐
//!   handle ─┼─▶ allocator ◀── buffer, storage, tensor, view
//!   handle ─┘       │
//!                   └ destroyed once: after the last handle AND the last of what is out
//! ```
//!
//! A [`Spy`](probe::Spy) stands in the stack and panics where a block comes back that is
//! not out, comes back otherwise than it went out, or is out when the end comes. So each
//! test here only has to make the story happen.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod probe;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use probe::{CountedPages, Dice, FailAt, Spy};
use tenslab::memory::{
    AllocError, Allocator, Block, Budget, Buffer, CpuAllocator, Guarded, Limit, Lock, Meter,
    OsPages, PageSource, Request, SharedAllocator, SlabAllocator, Storage, Tag, Trace,
};
use tenslab::{DType, Tensor};

fn slab() -> SlabAllocator {
    SlabAllocator::new(4096, 100).unwrap()
}

#[test]
fn each_buffer_goes_back_exactly_once_also_of_zero_bytes() {
    let (spy, log) = Spy::watching(slab());
    let handle = SharedAllocator::new(spy);
    for bytes in [0, 1, 4096, 0, 0] {
        let before = log.returned();
        let buffer = handle.allocate(bytes, 64).unwrap();
        let moved = Some(buffer);
        assert_eq!(log.returned(), before);
        drop(moved);
        assert_eq!(log.returned(), before + 1, "{bytes} bytes");
    }
    // Two of zero bytes at once are two.
    let both = [
        handle.allocate(0, 1).unwrap(),
        handle.allocate(0, 1).unwrap(),
    ];
    assert_eq!(log.taken() - log.returned(), 2);
    drop(both);
    assert_eq!(log.taken(), log.returned());
    drop(handle);
    assert!(log.is_gone());
}

/// Lessons row 48: nothing that holds no bytes gives a layout of zero bytes to the global
/// allocator. (Under AddressSanitizer and valgrind that would be a report.)
#[test]
fn no_bytes_through_every_door_and_back() {
    let doors: [fn(&SharedAllocator); 7] = [
        |from| drop(from.allocate(0, 1).unwrap()),
        |from| drop(from.allocate_zeroed(0, 4096).unwrap()),
        |from| {
            let mut buffer = from.allocate(0, 64).unwrap();
            buffer.populate(0..0, 2).unwrap();
            assert_eq!(buffer.decommit(0..0).bytes, 0);
            buffer.commit(0..0).unwrap();
            buffer.try_grow(0).unwrap();
            assert!(buffer.as_slice().is_empty());
            assert!(buffer.as_mut_slice().is_empty());
            let (error, capacity) = (buffer.try_grow(1).unwrap_err(), 0);
            assert_eq!(error, AllocError::CannotGrow { bytes: 1, capacity });
        },
        |from| {
            let storage = Storage::from(from.allocate(0, 64).unwrap());
            let other = storage.clone();
            storage.freeze().unwrap();
            drop(storage);
            assert!(other.is_empty() && other.is_frozen());
        },
        |from| drop(Tensor::empty([0], DType::F32, from).unwrap()),
        |from| {
            let tensor = Tensor::zeros([3, 0], DType::BF16, from).unwrap();
            let view = tensor.slice(0, 1, 2).unwrap();
            drop(tensor);
            assert!(view.read_bytes().unwrap().is_empty());
        },
        |from| {
            let buffer = from.allocate(0, 64).unwrap();
            drop(Tensor::from_buffer(buffer, 0, [0, 5], DType::I64).unwrap());
        },
    ];
    let stacks: [fn() -> Arc<dyn Allocator>; 6] = [
        || Arc::new(CpuAllocator::new()),
        || Arc::new(CpuAllocator::new().with_lock(Lock::Required)),
        || Arc::new(slab()),
        || Arc::new(Guarded::new(slab())),
        || Arc::new(Trace::new(CpuAllocator::new())),
        || Arc::new(Budget::new(Meter::new(slab()), &Limit::new(0))),
    ];
    for stack in stacks {
        for door in doors {
            let (spy, log) = Spy::watching(stack());
            let handle = SharedAllocator::new(spy);
            // Two at once, from one and from two handles.
            let kept = handle.allocate(0, 64).unwrap();
            door(&handle);
            door(&handle.clone());
            assert_eq!((log.taken(), log.returned()), (3, 2));
            drop(handle);
            drop(kept);
            assert!(log.is_gone());
        }
    }
}

#[test]
fn a_storage_gives_its_block_back_as_it_came_with_or_without_a_header_slot() {
    fn story(allocator: impl Allocator + 'static) {
        let (spy, log) = Spy::watching(allocator);
        let handle = SharedAllocator::new(spy);
        for bytes in [0, 5, 4096] {
            let storage = Storage::from(handle.allocate(bytes, 64).unwrap());
            let other = storage.clone();
            assert!(other.is_same(&storage) && other.id() == storage.id());
            assert_eq!((other.len(), other.is_empty()), (bytes, bytes == 0));
            drop(storage);
            assert_eq!(log.taken() - log.returned(), 1);
            drop(other);
            assert_eq!(log.taken(), log.returned());
        }
    }
    story(slab());
    story(CpuAllocator::new());
    story(Meter::new(slab()));
    story(SharedAllocator::new(slab()));
}

#[test]
fn the_allocator_lives_until_the_last_of_what_is_out_is_back() {
    let (spy, log) = Spy::watching(slab());
    let handle = SharedAllocator::new(spy);
    let other = handle.with_tag(Tag::Kv);
    let buffer = other.allocate(10, 64).unwrap();
    let tensor = Tensor::zeros([4, 4], DType::F32, &handle).unwrap();
    let view = tensor.slice(1, 1, 3).unwrap();
    drop((handle, other));
    assert!(!log.is_gone());
    drop(tensor);
    assert_eq!(view.item::<f32>(&[3, 1]), 0.0);
    drop(buffer);
    assert!(!log.is_gone(), "a view is still there");
    drop(view);
    assert!(log.is_gone());
}

#[test]
fn an_allocator_that_nothing_came_from_goes_with_its_last_handle() {
    let (spy, log) = Spy::watching(slab());
    let handle = SharedAllocator::new(spy);
    let clones: Vec<_> = (0..10).map(|_| handle.clone()).collect();
    drop(handle);
    assert!(!log.is_gone());
    drop(clones);
    assert!(log.is_gone());
}

/// The inner allocator is kept by the outer one, that by its buffer.
#[test]
fn nested_shared_allocators_end_from_the_outside_in() {
    let (inner_spy, inner) = Spy::watching(slab());
    let (outer_spy, outer) = Spy::watching(SharedAllocator::new(inner_spy));
    let handle = SharedAllocator::new(outer_spy);
    let buffer = handle.allocate(100, 64).unwrap();
    drop(handle);
    assert!(!outer.is_gone() && !inner.is_gone());
    drop(buffer);
    assert!(outer.is_gone() && inner.is_gone());
    assert_eq!((inner.taken(), inner.returned()), (1, 1));
}

#[test]
fn buffers_may_be_dropped_on_another_thread_after_everything_else() {
    let (spy, log) = Spy::watching(slab());
    let handle = SharedAllocator::new(spy);
    let buffers: Vec<Buffer> = (0..20).map(|_| handle.allocate(64, 64).unwrap()).collect();
    drop(handle);
    std::thread::spawn(move || drop(buffers)).join().unwrap();
    assert!(log.is_gone());
}

thread_local! {
    static KEPT: RefCell<Vec<Tensor>> = const { RefCell::new(Vec::new()) };
}

/// Other thread-local values may be gone by then; the allocator needs none.
#[test]
fn tensors_may_die_in_the_destructor_of_a_thread() {
    let (spy, log) = Spy::watching(Meter::new(slab()));
    let handle = SharedAllocator::new(spy);
    std::thread::spawn(move || {
        KEPT.with_borrow_mut(|kept| {
            for _ in 0..5 {
                kept.push(Tensor::zeros([16], DType::F32, &handle).unwrap());
                kept.push(Tensor::zeros([0], DType::F32, tenslab::memory::cpu()).unwrap());
            }
        });
    })
    .join()
    .unwrap();
    assert_eq!(log.returned(), 5);
    assert!(log.is_gone());
}

#[test]
fn the_last_handle_and_the_last_buffer_may_race() {
    for _ in 0..300 {
        let (spy, log) = Spy::watching(slab());
        let handle = SharedAllocator::new(spy);
        let storage = Storage::from(handle.allocate(64, 64).unwrap());
        let other = storage.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(handle));
            scope.spawn(move || drop(storage));
            scope.spawn(move || drop(other));
        });
        assert!(log.is_gone());
        assert_eq!(log.returned(), 1);
    }
}

/// One story that meets every kind of call, then a failure at each of them in turn.
fn story(handle: &SharedAllocator) -> Result<(), tenslab::Error> {
    let mut kept = Vec::new();
    for round in 1..=4 {
        kept.push(Tensor::zeros([round, 8], DType::F32, handle)?);
        let buffer = handle.allocate_zeroed(round * 100, 64)?;
        let storage = Storage::from(buffer);
        kept.push(Tensor::from_storage(&storage, 4, [round, 5], DType::F16)?);
        kept.push(Tensor::empty([0, 3], DType::I64, handle)?);
        kept.push(tenslab::ops::cast(&kept[0], DType::BF16, handle)?);
    }
    Ok(())
}

#[test]
fn a_failure_at_any_call_leaves_nothing_behind() {
    let mut failures = 0;
    for at in 0.. {
        let spy = Spy::new(slab(), FailAt::call(at));
        let log = Arc::clone(&spy.log);
        let handle = SharedAllocator::new(spy);
        let told = story(&handle);
        assert_eq!(handle.outstanding(), 0, "failing at {at}");
        assert_eq!(log.taken(), log.returned(), "failing at {at}");
        drop(handle);
        assert!(log.is_gone());
        if log.fail.calls() <= at {
            assert!(told.is_ok());
            break;
        }
        let error = told.unwrap_err().to_string();
        assert!(error.starts_with("out of memory: "), "{error}");
        failures += 1;
    }
    assert_eq!(failures, 16, "each allocation of the story failed once");
}

/// Reserving and committing, of blocks and of tables, for three rows of blocks.
#[test]
fn a_slab_whose_pages_fail_at_any_call_errs_and_works_again() {
    let mut failures = 0;
    for at in 0.. {
        let pages = CountedPages::new(FailAt::call(at));
        let counts = Arc::clone(&pages.0);
        let slab = SlabAllocator::with_pages(512 << 10, 8, pages).unwrap();
        let handle = SharedAllocator::new(slab);
        let mut refused = 0;
        let mut out = Vec::new();
        while out.len() < 8 {
            match handle.allocate_zeroed(512 << 10, 64) {
                Ok(buffer) => out.push(buffer),
                Err(AllocError::OutOfMemory { bytes }) => {
                    assert!(bytes > 0);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(handle.stats().reserved_bytes, counts.reserved_bytes());
            assert_eq!(handle.stats().live_bytes, out.len() * (512 << 10));
        }
        assert!(refused <= 1, "only one call failed");
        assert_eq!(handle.outstanding(), 8);
        drop((out, handle));
        assert_eq!(
            (counts.regions(), counts.reserved_bytes()),
            (0, 0),
            "at {at}"
        );
        failures += refused;
        if refused == 0 {
            break;
        }
    }
    // Three rows of blocks and one of tables, each reserved and committed.
    assert_eq!(failures, 8);
}

/// Panics where it is told to. The blocks are a slab's.
struct Panicky {
    slab: SlabAllocator,
    in_allocate: bool,
}

// SAFETY: blocks come from the slab and go back to it unchanged.
unsafe impl Allocator for Panicky {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        assert!(!self.in_allocate, "told to panic");
        self.slab.allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.slab.release_block(block) };
        assert!(self.in_allocate, "told to panic");
    }
}

#[test]
fn an_allocator_that_panics_is_still_destroyed() {
    for in_allocate in [true, false] {
        let slab = slab();
        let (spy, log) = Spy::watching(Panicky { slab, in_allocate });
        let handle = SharedAllocator::new(spy);
        let attempt = || handle.allocate(64, 64).map(drop);
        assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err());
        assert_eq!(handle.outstanding(), 0, "panic in allocate: {in_allocate}");
        drop(handle);
        assert!(log.is_gone());
    }
}

/// Rounds every alignment up, as the example of `Allocator` does.
struct RoundUp<A>(A);

// SAFETY: blocks come from `A` and go back to it unchanged.
unsafe impl<A: Allocator> Allocator for RoundUp<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        self.0
            .allocate_block(request.with_align(request.align().max(128))?)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.release_block(block) }
    }
}

#[test]
fn a_wrapper_that_changes_the_alignment_keeps_the_rest_of_the_request() {
    let (spy, log) = Spy::watching(slab());
    let handle = SharedAllocator::new(RoundUp(spy)).with_tag(Tag::Scratch);
    let mut dirty = handle.allocate(4096, 1).unwrap();
    dirty.as_mut_slice().fill(0xff);
    drop(dirty);
    let zeroed = handle.allocate_zeroed(4000, 1).unwrap();
    assert!(zeroed.as_slice().iter().all(|&byte| byte == 0));
    let request = log.last_request();
    assert_eq!((request.bytes(), request.align()), (4000, 128));
    assert_eq!((request.is_zeroed(), request.tag()), (true, Tag::Scratch));
    let too_large = Request::new(1, 1).unwrap().with_align(1 << 31);
    assert!(matches!(too_large, Err(AllocError::AlignTooLarge { .. })));
}

#[test]
fn pages_are_as_large_as_asked_aligned_and_zero() {
    let page = OsPages::new().page_bytes();
    assert!(page.is_power_of_two());
    let mut dice = Dice(7);
    for align in [1, 64, page, 4 * page, 2 << 20] {
        let bytes = 1 + dice.below(5 * page);
        let region = OsPages::new().reserve(bytes, align).unwrap();
        assert!(region.bytes() >= bytes && region.bytes().is_multiple_of(page));
        assert!(region.base().addr().get().is_multiple_of(align.max(page)));
        // SAFETY: the region is `OsPages`' and not given back yet.
        unsafe { OsPages::new().commit(&region, 0..region.bytes()) }.unwrap();
        // SAFETY: as above; a range past its end is refused.
        let past = unsafe { OsPages::new().commit(&region, 0..region.bytes() + page) };
        assert!(past.is_err());
        for at in 0..region.bytes() {
            // SAFETY: inside the region.
            let byte = unsafe { region.base().add(at) };
            // SAFETY: committed, and nobody else's.
            assert_eq!(unsafe { byte.read() }, 0);
        }
        // SAFETY: ours, once, and not used any more.
        unsafe { OsPages::new().release(region) };
    }
}

/// The alignment decides how much of a wide mapping is cut off again, so a wrong one must
/// not get that far.
#[test]
fn pages_at_an_alignment_that_is_no_power_of_two_are_a_typo() {
    for align in [0, 3, 12_288, usize::MAX] {
        let panic = catch_unwind(|| OsPages::new().reserve(4096, align).map(|_| ())).unwrap_err();
        let message = panic.downcast_ref::<&str>().expect("a message");
        assert!(message.contains("power of two"), "{message}");
    }
    let error = OsPages::new().reserve(usize::MAX, 64).unwrap_err();
    assert!(matches!(error, AllocError::SizeOverflow { .. }));
    let error = OsPages::new().reserve(4096, 1 << 63).unwrap_err();
    assert!(matches!(error, AllocError::SizeOverflow { .. }));
}
