//! One block of a guard's: where its redzones are, what is painted there and what is wrong.

use std::ptr::NonNull;

use super::report::{Damage, DamageKind};
use crate::memory::Block;

/// What a redzone holds, two by two.
pub(super) const REDZONE: [u8; 2] = [0xc5, 0xc5];

/// A block, as it came from upstream, and the part of it that was handed out.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) block: Block,
    pub(super) front: usize,
    pub(super) bytes: usize,
    /// The how-manieth allocation it is, from 0.
    pub(super) number: u64,
}

// SAFETY: a record is the right to give the block back, which any thread may; its bytes
// are only touched by who allocates it, and by who took the record out of the table.
unsafe impl Send for Record {}

/// Fills with a pattern of two bytes.
pub(super) fn paint(bytes: &mut [u8], pattern: [u8; 2]) {
    let (pairs, rest) = bytes.as_chunks_mut::<2>();
    pairs.fill(pattern);
    rest.copy_from_slice(&pattern[..rest.len()]);
}

/// The first byte that is not of the pattern: where, and what.
fn differs(bytes: &[u8], pattern: [u8; 2]) -> Option<(usize, u8)> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let whole = pairs.iter().all(|pair| *pair == pattern);
    if whole && *rest == pattern[..rest.len()] {
        return None;
    }
    let wrong = |(at, byte): &(usize, u8)| *byte != pattern[at & 1];
    bytes.iter().copied().enumerate().find(wrong)
}

impl Record {
    /// All that came from upstream: the redzones and what is between them.
    ///
    /// # Safety
    /// Nobody else uses the bytes while the slice lives.
    pub(super) unsafe fn parts(&mut self) -> (&mut [u8], &mut [u8], &mut [u8]) {
        let mut all = NonNull::slice_from_raw_parts(self.block.as_ptr(), self.block.len());
        // SAFETY: `len` initialised bytes of the upstream's, which nobody else uses (the
        // caller's promise); the slice borrows the record.
        let all = unsafe { all.as_mut() };
        let (front, rest) = all.split_at_mut(self.front);
        let (bytes, behind) = rest.split_at_mut(self.bytes);
        (front, bytes, behind)
    }

    fn damage(&self, kind: DamageKind, at: usize, found: u8) -> Damage {
        Damage {
            kind,
            tag: self.block.tag(),
            bytes: self.bytes,
            allocation: self.number,
            // Both are below `isize::MAX`, as every size is.
            offset: at.cast_signed() - self.front.cast_signed(),
            found,
        }
    }

    /// What is wrong with it. `dead`: it was given back, so nobody may have written.
    ///
    /// # Safety
    /// Nobody else uses the bytes meanwhile.
    pub(super) unsafe fn check(&mut self, dead: Option<[u8; 2]>) -> Option<Damage> {
        let (front_bytes, bytes) = (self.front, self.bytes);
        // SAFETY: the caller's promise.
        let (front, middle, behind) = unsafe { self.parts() };
        let written = dead.and_then(|pattern| differs(middle, pattern));
        let before = differs(front, REDZONE);
        let after = differs(behind, REDZONE);
        if let Some((at, found)) = written {
            return Some(self.damage(DamageKind::AfterGiveBack, front_bytes + at, found));
        }
        let kind = match dead {
            Some(_) => DamageKind::AfterGiveBack,
            None => DamageKind::OutOfBounds,
        };
        let after = after.map(|(at, found)| (front_bytes + bytes + at, found));
        before
            .or(after)
            .map(|(at, found)| self.damage(kind, at, found))
    }
}
