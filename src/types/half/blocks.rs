//! How the SIMD paths cut two slices: what comes before the first block, whole blocks,
//! and what is left.
//!
//! ```text
//!   to    . . | 0 … 31 | 0 … 31 | 0 … 31 | . . . .
//!         head  ▲ a multiple of 64, if stored around the cache     tail
//! ```

use std::arch::x86_64::_mm_sfence;

/// Elements of a block: one cache line of halves.
pub(super) const BLOCK: usize = 32;

/// What a store around the cache must be aligned to, at the most.
const LINE: usize = 64;

/// Both slices, cut at the same places.
pub(super) struct Cut<'a, S, D> {
    pub(super) head: (&'a [S], &'a mut [D]),
    pub(super) from: &'a [[S; BLOCK]],
    pub(super) to: &'a mut [[D; BLOCK]],
    pub(super) tail: (&'a [S], &'a mut [D]),
}

impl<'a, S, D> Cut<'a, S, D> {
    /// With `STREAM` each block of `to` begins at a multiple of 64 bytes.
    ///
    /// The lengths are the same, which [`CodePath`](super::CodePath) has checked; if they
    /// were not, the longer one's end would not be converted.
    pub(super) fn new<const STREAM: bool>(from: &'a [S], to: &'a mut [D]) -> Self {
        let len = from.len().min(to.len());
        let before = if STREAM {
            to.as_ptr().align_offset(LINE).min(len)
        } else {
            0
        };
        let (from_head, from) = from[..len].split_at(before);
        let (to_head, to) = to[..len].split_at_mut(before);
        let (from, from_tail) = from.as_chunks();
        let (to, to_tail) = to.as_chunks_mut();
        Cut {
            head: (from_head, to_head),
            from,
            to,
            tail: (from_tail, to_tail),
        }
    }
}

/// Stores around the cache are ordered with nothing until there is a fence.
#[target_feature(enable = "sse")]
pub(super) fn fence<const STREAM: bool>() {
    if STREAM {
        _mm_sfence();
    }
}
