//! Tells AddressSanitizer and valgrind which bytes of a pool are nobody's.
//!
//! To such a tool a pool's region is one live allocation, so it sees no overrun from
//! block to block, no use after a block was given back, and no read of bytes that only an
//! earlier owner wrote. Under `cfg(tenslab_asan)` and `cfg(tenslab_valgrind)` pools poison
//! what they hold and unpoison what they hand out; in every other build these are empty.

use std::ptr::NonNull;

#[cfg(tenslab_asan)]
mod asan {
    use std::ffi::c_void;

    unsafe extern "C" {
        pub(super) fn __asan_poison_memory_region(start: *const c_void, bytes: usize);
        pub(super) fn __asan_unpoison_memory_region(start: *const c_void, bytes: usize);
    }
}

/// Valgrind's client requests, as its `valgrind.h` and `memcheck.h` lay them down for
/// x86-64: four rotations that together do nothing, and an exchange of a register with
/// itself. Outside of valgrind just that happens.
#[cfg(tenslab_valgrind)]
mod memcheck {
    use std::ptr::NonNull;

    /// `'M' << 24 | 'C' << 16`: the first of memcheck's requests.
    const MEMCHECK: usize = 0x4d43_0000;
    const NO_ACCESS: usize = MEMCHECK;
    const UNDEFINED: usize = MEMCHECK + 1;
    const DEFINED: usize = MEMCHECK + 2;

    fn tell(request: usize, start: NonNull<u8>, bytes: usize) {
        let message = [request, start.addr().get(), bytes, 0, 0, 0];
        // SAFETY: the rotations of rdi are by 3 + 13 + 61 + 51 = 2 * 64 bits, so it is as it
        // was; valgrind reads the six words that rax points to and answers in rdx. Flags
        // change, which is the default for `asm!`; memory is not written.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") message.as_ptr(),
                inout("rdx") 0_usize => _,
                options(nostack),
            );
        }
    }

    pub(super) fn no_access(start: NonNull<u8>, bytes: usize) {
        tell(NO_ACCESS, start, bytes);
    }

    pub(super) fn undefined(start: NonNull<u8>, bytes: usize) {
        tell(UNDEFINED, start, bytes);
    }

    pub(super) fn defined(start: NonNull<u8>, bytes: usize) {
        tell(DEFINED, start, bytes);
    }
}

/// From now on touching these bytes is a fault.
///
/// # Safety
/// The bytes are mapped, and nobody uses them until they are [`unpoison`]ed.
pub(crate) unsafe fn poison(start: NonNull<u8>, bytes: usize) {
    #[cfg(tenslab_asan)]
    // SAFETY: the runtime only marks its shadow of mapped bytes (the caller's promise).
    unsafe {
        asan::__asan_poison_memory_region(start.as_ptr().cast_const().cast(), bytes);
    }
    #[cfg(tenslab_valgrind)]
    memcheck::no_access(start, bytes);
    let _ = (start, bytes);
}

/// The bytes may be touched again.
///
/// # Safety
/// The bytes are mapped.
pub(crate) unsafe fn unpoison(start: NonNull<u8>, bytes: usize) {
    #[cfg(tenslab_asan)]
    // SAFETY: the runtime only marks its shadow of mapped bytes (the caller's promise).
    unsafe {
        asan::__asan_unpoison_memory_region(start.as_ptr().cast_const().cast(), bytes);
    }
    #[cfg(tenslab_valgrind)]
    memcheck::defined(start, bytes);
    let _ = (start, bytes);
}

/// The bytes may be touched, but what they hold is anything: valgrind reports whoever
/// decides something by them before they are written. To Rust they stay initialised.
#[inline]
pub(crate) fn unspecified(start: NonNull<u8>, bytes: usize) {
    #[cfg(tenslab_valgrind)]
    memcheck::undefined(start, bytes);
    let _ = (start, bytes);
}
