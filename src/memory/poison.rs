//! Tells AddressSanitizer which bytes of a pool are nobody's.
//!
//! To the sanitizer a pool's region is one live allocation, so it sees no overrun
//! from block to block and no use after a block was given back. Under
//! `cfg(tenslab_asan)` pools poison what they hold and unpoison what they hand
//! out; in every other build these are empty.

use std::ptr::NonNull;

#[cfg(tenslab_asan)]
mod asan {
    use std::ffi::c_void;

    unsafe extern "C" {
        pub(super) fn __asan_poison_memory_region(start: *const c_void, bytes: usize);
        pub(super) fn __asan_unpoison_memory_region(start: *const c_void, bytes: usize);
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
    let _ = (start, bytes);
}
