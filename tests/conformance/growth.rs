//! A block grows where it stands, through every two wrappers, or it is as it was.

use std::sync::Arc;

use tenslab::memory::{
    AllocError, Allocator, Block, CpuAllocator, Fault, FaultPlan, Guarded, Request, SlabAllocator,
    Tag,
};

use super::probe::{ROOM, RoomyPages};
use super::{Any, BLOCK, is_guarded, name, wrap, wrappers};

const MIB: usize = 1 << 20;

/// All that a block says of itself.
fn identity(block: &Block) -> String {
    format!("{block:?}")
}

fn fill(block: &Block, pattern: u8) {
    // SAFETY: `len` bytes of a block that is out and that this test alone uses.
    unsafe { block.as_ptr().as_ptr().write_bytes(pattern, block.len()) };
}

fn holds(block: &Block, len: usize, pattern: u8) -> bool {
    let bytes = std::ptr::NonNull::slice_from_raw_parts(block.as_ptr(), len);
    // SAFETY: no more than the `len` initialised bytes of a block that is out and that this
    // test alone uses.
    unsafe { bytes.as_ref() }
        .iter()
        .all(|&byte| byte == pattern)
}

#[test]
fn a_block_grows_where_it_stands_and_stays_within_what_was_said() {
    for wrappers in wrappers() {
        // A guard's block never grows, for its redzone is where it would. The next test
        // asks it for more all the same.
        if is_guarded(&wrappers) {
            continue;
        }
        let what = name(&wrappers, "cpu with room");
        let pages = Arc::new(RoomyPages::default());
        let bottom: Any = Arc::new(CpuAllocator::with_pages(Arc::clone(&pages)));
        let stack = wrap(&wrappers, bottom);
        let request = Request::new(MIB + 1, 64).unwrap().tagged(Tag::Kv);
        let mut block = stack.allocate_block(request).unwrap();
        fill(&block, 3);
        let first = block.capacity();
        let mut grew = 0;
        for bytes in [first, first, first + 1, 2 * MIB, 3 * MIB - 7, MIB + ROOM] {
            let (before, len) = (identity(&block), block.len());
            let was = (block.as_ptr(), block.cookie(), block.tag());
            let said = stack.grown_capacity(&block, bytes);
            assert_eq!(identity(&block), before, "{what}: asking changed it");
            // SAFETY: this stack's block, which is out, and `bytes` is no less than it has,
            // for the sizes rise.
            match unsafe { stack.grow_block(&mut block, bytes) } {
                Ok(()) => {
                    assert_eq!(block.len(), bytes, "{what}");
                    assert_eq!((block.as_ptr(), block.cookie(), block.tag()), was, "{what}");
                    assert!(block.capacity() >= bytes, "{what}");
                    assert!(said.is_some_and(|most| block.capacity() <= most), "{what}");
                    assert!(holds(&block, len, 3), "{what}: {bytes}");
                    fill(&block, 3);
                    grew += 1;
                }
                Err(error) => panic!("{what}: {bytes}: {error}"),
            }
            assert_eq!(pages.out_bytes(), block.capacity(), "{what}");
        }
        assert_eq!(grew, 6, "{what}");
        // More than there is room for, and more than there is.
        for bytes in [MIB + 2 * ROOM, isize::MAX as usize, usize::MAX] {
            let (before, len) = (identity(&block), block.len());
            // SAFETY: as above.
            assert!(unsafe { stack.grow_block(&mut block, bytes) }.is_err());
            assert_eq!(identity(&block), before, "{what}");
            assert!(holds(&block, len, 3), "{what}");
        }
        // SAFETY: this stack's block, once, and nobody uses it any more.
        unsafe { stack.release_block(block) };
        assert_eq!(pages.out_bytes(), 0, "{what}");
    }
}

/// What never grows, and what fails when it is asked to.
#[test]
fn a_block_that_cannot_grow_is_as_it_was() {
    type Make = fn() -> Any;
    let bottoms: [(&str, usize, Make); 5] = [
        ("slab", BLOCK / 2, || {
            Arc::new(SlabAllocator::new(BLOCK, 4).unwrap())
        }),
        ("heap", 1000, || Arc::new(CpuAllocator::new())),
        ("nothing", 0, || Arc::new(CpuAllocator::new())),
        ("failing", MIB, || {
            let bottom = CpuAllocator::with_pages(RoomyPages::default());
            Arc::new(Fault::new(bottom, FaultPlan::Calls(1..2)))
        }),
        ("guarded with room", MIB, || {
            let bottom = CpuAllocator::with_pages(RoomyPages::default());
            Arc::new(Guarded::new(bottom).with_quarantine(0))
        }),
    ];
    for (bottom, len, make) in bottoms {
        for wrappers in wrappers() {
            let what = name(&wrappers, bottom);
            let stack = wrap(&wrappers, make());
            let request = Request::new(len, 64).unwrap();
            let mut block = stack.allocate_block(request).unwrap();
            let before = identity(&block);
            fill(&block, 5);
            // SAFETY: this stack's block, which is out, and it is longer.
            let found = unsafe { stack.grow_block(&mut block, BLOCK + MIB) };
            let error = found.unwrap_err();
            let fits = match error {
                AllocError::CannotGrow { bytes, capacity } => {
                    bytes == BLOCK + MIB && capacity == block.capacity()
                }
                // A guard refuses before it asks anybody.
                AllocError::OutOfMemory { .. } => bottom == "failing" && !is_guarded(&wrappers),
                _ => false,
            };
            assert!(fits, "{what}: {error}");
            assert_eq!(identity(&block), before, "{what}");
            assert!(holds(&block, len, 5), "{what}");
            // SAFETY: this stack's block, once, and nobody uses it any more.
            unsafe { stack.release_block(block) };
            assert_eq!(stack.stats().live_bytes, 0, "{what}");
        }
    }
}
