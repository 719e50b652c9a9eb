//! What may be asked for, and what comes out of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tenslab::memory::{AllocError, Buffer, MAX_ALIGN, Tag, cpu, default_allocator};
use tenslab::{DType, Device, Tensor};

use super::{BLOCK, stacks, widened};

/// Writes a pattern into the ends and the middle, and reads it back.
fn can_be_used(buffer: &mut Buffer, what: &str) {
    let (len, bytes) = (buffer.len(), buffer.as_mut_slice());
    assert_eq!(bytes.len(), len);
    for at in [0, len / 2, len.saturating_sub(1)] {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = at as u8 ^ 0x5a;
            assert_eq!(bytes[at], at as u8 ^ 0x5a, "{what}");
        }
    }
}

#[test]
fn every_alignment_is_kept_for_sizes_around_it() {
    // Where the heap stands in for pages, an aligned gigabyte would really be cleared.
    let largest = if cfg!(any(tenslab_portable, tenslab_asan)) {
        16 << 20
    } else {
        MAX_ALIGN
    };
    for stack in stacks() {
        let mut align = 1;
        while align <= largest {
            let mut out = Vec::new();
            for bytes in [1, align - 1, align, align + 1, 3 * align] {
                // Three aligned gigabytes would be resident where every byte is written. A byte
                // is still had at every alignment.
                if stack.clears && bytes > 12 << 20 {
                    continue;
                }
                let what = format!("{}: {bytes} bytes at {align}", stack.name);
                let found = if bytes % 2 == 0 {
                    stack.allocator.allocate(bytes, align)
                } else {
                    stack.allocator.allocate_zeroed(bytes, align)
                };
                let wide = widened(&stack.wrappers, bytes, align).unwrap();
                if wide > stack.max_bytes {
                    let (bytes, block_bytes) = (wide, stack.max_bytes);
                    let error = AllocError::TooLarge { bytes, block_bytes };
                    assert_eq!(found.unwrap_err(), error, "{what}");
                } else if align > stack.max_align && bytes > 0 {
                    let max = stack.max_align;
                    let error = AllocError::AlignTooLarge { align, max };
                    assert_eq!(found.unwrap_err(), error, "{what}");
                } else {
                    let mut buffer = found.expect(&what);
                    assert!(!buffer.as_ptr().is_null(), "{what}");
                    assert!(buffer.as_ptr().addr().is_multiple_of(align), "{what}");
                    assert_eq!(buffer.len(), bytes, "{what}");
                    can_be_used(&mut buffer, &what);
                    out.push(buffer);
                }
            }
            assert_eq!(stack.allocator.outstanding(), out.len());
            drop(out);
            assert_eq!(stack.allocator.outstanding(), 0);
            align *= 2;
        }
    }
}

#[test]
fn zero_bytes_are_somewhere_aligned_and_never_null() {
    for stack in stacks() {
        let mut align = 1;
        while align <= MAX_ALIGN {
            for zeroed in [false, true] {
                let buffer = if zeroed {
                    stack.allocator.allocate_zeroed(0, align).unwrap()
                } else {
                    stack.allocator.allocate(0, align).unwrap()
                };
                assert!(!buffer.as_ptr().is_null(), "{} at {align}", stack.name);
                assert!(buffer.as_ptr().addr().is_multiple_of(align));
                assert!(buffer.is_empty() && buffer.as_slice().is_empty());
                assert_eq!(stack.allocator.outstanding(), 1);
            }
            align *= 2;
        }
        assert_eq!(stack.allocator.outstanding(), 0);
    }
}

#[test]
fn sizes_that_no_address_space_holds_are_refused_with_their_numbers() {
    for stack in stacks() {
        let top = isize::MAX as usize;
        for (bytes, align) in [
            (usize::MAX, 1),
            (usize::MAX, 64),
            (usize::MAX - 4095, 4096),
            (top + 1, 1),
            (top, 2),
            (top - 62, 64),
            (top, MAX_ALIGN),
            (usize::MAX, MAX_ALIGN),
        ] {
            let error = AllocError::SizeOverflow { bytes, align };
            let plain = stack.allocator.allocate(bytes, align).unwrap_err();
            assert_eq!(plain, error, "{}", stack.name);
            let zeroed = stack.allocator.allocate_zeroed(bytes, align).unwrap_err();
            assert_eq!(zeroed, error, "{}", stack.name);
        }
        // Just within: no allocator has it, and none panics or aborts over it.
        for (bytes, align) in [(top - 63, 64), (top, 1), (top - 4095, 4096), (top / 2, 64)] {
            if cfg!(tenslab_asan) && stack.max_bytes == usize::MAX {
                continue; // the sanitizer ends the process over such a request
            }
            for found in [
                stack.allocator.allocate(bytes, align),
                stack.allocator.allocate_zeroed(bytes, align),
            ] {
                let error = found.unwrap_err();
                assert!(
                    matches!(
                        error,
                        AllocError::OutOfMemory { .. }
                            | AllocError::SizeOverflow { .. }
                            | AllocError::TooLarge { .. }
                    ),
                    "{}: {error}",
                    stack.name
                );
            }
        }
        assert_eq!(stack.allocator.outstanding(), 0, "{}", stack.name);
    }
}

#[test]
fn shapes_whose_bytes_wrap_are_refused() {
    // Fewer elements than an i64 counts, and more bytes than a usize.
    for stack in stacks() {
        for shape in [[1 << 61, 2], [1 << 31, 1 << 31], [1, 1 << 62]] {
            let what = format!("{}: {shape:?}", stack.name);
            assert!(
                Tensor::empty(shape, DType::F32, &stack.allocator).is_err(),
                "{what}"
            );
            assert!(
                Tensor::zeros(shape, DType::F32, &stack.allocator).is_err(),
                "{what}"
            );
        }
        assert_eq!(stack.allocator.outstanding(), 0, "{}", stack.name);
    }
}

#[test]
fn alignments_above_a_gigabyte_are_refused() {
    for stack in stacks() {
        for align in [MAX_ALIGN * 2, 1 << 40, 1 << 63] {
            for bytes in [0, 1, 4096] {
                let error = AllocError::AlignTooLarge {
                    align,
                    max: MAX_ALIGN,
                };
                let found = stack.allocator.allocate(bytes, align).unwrap_err();
                assert_eq!(found, error, "{}", stack.name);
            }
        }
    }
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_a_typo() {
    for stack in stacks() {
        for align in [0, 3, 24, 65, MAX_ALIGN + 1, usize::MAX] {
            let attempt = || stack.allocator.allocate(1, align).map(drop);
            let panic = catch_unwind(AssertUnwindSafe(attempt)).unwrap_err();
            let message = panic.downcast_ref::<&str>().expect("a message");
            assert!(message.contains("power of two"), "{message}");
        }
        assert_eq!(stack.allocator.outstanding(), 0, "{}", stack.name);
    }
}

#[test]
fn zeroed_is_zero_also_where_the_block_was_used_before() {
    for stack in stacks() {
        for bytes in [1, 100, 4096, 100_000, BLOCK - 1, BLOCK] {
            for round in 0..2 {
                let mut used = stack.allocator.allocate(bytes, 64).unwrap();
                used.as_mut_slice().fill(0xff);
                drop(used);
                let zeroed = stack.allocator.allocate_zeroed(bytes, 64).unwrap();
                let dirty = zeroed.as_slice().iter().position(|&byte| byte != 0);
                assert_eq!(dirty, None, "{}: {bytes} bytes, round {round}", stack.name);
            }
        }
    }
}

/// A shorter block is recycled as a longer one: the tail is as dirty as the rest.
#[test]
fn zeroed_is_zero_past_what_the_last_owner_asked_for() {
    for stack in stacks() {
        let mut used = stack.allocator.allocate(BLOCK, 64).unwrap();
        used.as_mut_slice().fill(0xff);
        drop(used);
        drop(stack.allocator.allocate_zeroed(10, 64).unwrap());
        let zeroed = stack.allocator.allocate_zeroed(BLOCK, 64).unwrap();
        assert!(
            zeroed.as_slice().iter().all(|&byte| byte == 0),
            "{}",
            stack.name
        );
    }
}

#[test]
fn a_tag_stays_with_the_buffer_and_changes_nothing_else() {
    for stack in stacks() {
        for tag in Tag::ALL {
            let handle = stack.allocator.with_tag(tag);
            assert_eq!(handle.tag(), tag);
            assert_eq!(stack.allocator.tag(), Tag::Other);
            let buffer = handle.allocate(100, 64).unwrap();
            assert_eq!(buffer.tag(), tag, "{}", stack.name);
            assert_eq!(handle.allocate(0, 1).unwrap().tag(), tag);
            assert_eq!(buffer.device(), Device::Cpu);
        }
        assert_eq!(stack.allocator.outstanding(), 0);
    }
}

#[test]
fn the_process_has_one_allocator_for_the_host_and_none_for_cuda() {
    assert!(std::ptr::eq(cpu(), default_allocator(Device::Cpu).unwrap()));
    let device = Device::Cuda(0);
    let error = default_allocator(device).map(|_| ()).unwrap_err();
    assert_eq!(error, AllocError::UnsupportedDevice { device });
    assert_eq!(
        error.to_string(),
        "allocation on cuda:0 is not implemented: tenslab runs on the CPU"
    );
}

/// Bytes of this process that are in memory now.
#[cfg(all(target_os = "linux", not(any(tenslab_portable, tenslab_asan))))]
fn resident_bytes() -> usize {
    use tenslab::memory::{OsPages, PageSource};

    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * OsPages::new().page_bytes()
}

/// Other tests of this file run beside it, but none of them holds half a gigabyte.
#[cfg(all(target_os = "linux", not(any(tenslab_portable, tenslab_asan))))]
#[test]
fn eight_gigabytes_of_zeros_touch_no_page_until_they_are_used() {
    let before = resident_bytes();
    let tensor = Tensor::zeros([8 << 30], DType::U8, cpu()).unwrap();
    let plain = cpu().allocate(2 << 30, 64).unwrap();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 512 << 20, "{grown} bytes became resident");
    for at in [0, 1 << 32, (8 << 30) - 1] {
        assert_eq!(tensor.item::<u8>(&[at]), 0);
    }
    drop((plain, tensor));
}

#[cfg(any(tenslab_portable, tenslab_asan))]
#[test]
fn large_zeros_are_zero() {
    let tensor = Tensor::zeros([64 << 20], DType::U8, cpu()).unwrap();
    assert!(tensor.read::<u8>().unwrap().iter().all(|&byte| byte == 0));
}
