//! The classes of small sizes: four to a doubling.
//!
//! ```text
//!   64  128  192  256 | 320  384  448  512 | 640  768  896  1024 | … | 20K  24K  28K  32K
//! ```
//!
//! Above 256 bytes a block is at most a quarter larger than what it was taken for, and each class is
//! a slab. Above, sizes have no classes: they
//! would strand memory (docs/allocators.md).

use std::ops::Range;

/// Sizes are multiples of this.
const GRAIN: usize = 64;

/// Classes, and the largest block of the last.
pub(super) const CLASSES: usize = if cfg!(loom) { 2 } else { 32 };
pub(super) const LARGEST: usize = bytes(CLASSES - 1);

#[cfg(not(loom))]
const _: () = assert!(LARGEST == 32 << 10);

/// Bytes of a block of a class.
pub(super) const fn bytes(class: usize) -> usize {
    if class < 4 {
        return (class + 1) * GRAIN;
    }
    let doubling = (class - 4) / 4;
    ((4 + (class % 4) + 1) * GRAIN) << doubling
}

/// The class of each multiple of [`GRAIN`], less one.
const CLASS_OF: [u8; LARGEST / GRAIN] = {
    let mut table = [0; LARGEST / GRAIN];
    let (mut class, mut at) = (0, 0);
    while at < table.len() {
        if (at + 1) * GRAIN > bytes(class as usize) {
            class += 1;
        }
        table[at] = class;
        at += 1;
    }
    table
};

/// The smallest class whose blocks have `bytes` bytes, at multiples of an alignment, a power of
/// two. `None` for none, for more than the largest have, and for more than [`GRAIN`]: for those
/// ask [`of_aligned`].
#[inline]
pub(super) fn of(bytes: usize, align_log2: u32) -> Option<usize> {
    if align_log2 > GRAIN.ilog2() {
        return None;
    }
    let class = CLASS_OF.get(bytes.wrapping_sub(1) / GRAIN);
    class.map(|&class| usize::from(class))
}

/// As [`of`], at multiples of any power of two.
pub(super) fn of_aligned(bytes_wanted: usize, align_log2: u32) -> Option<usize> {
    let align = 1_usize.checked_shl(align_log2)?;
    // As large as the alignment, a block of a class that is a power of two is aligned so.
    let first = of(bytes_wanted.max(align), 0)?;
    classes()
        .skip(first)
        .find(|&class| bytes(class).is_multiple_of(align))
}

pub(super) fn classes() -> Range<usize> {
    0..CLASSES
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for wanted in 1..=LARGEST {
            let class = of(wanted, 0).unwrap();
            assert!(bytes(class) >= wanted, "{wanted}");
            assert!(class == 0 || bytes(class - 1) < wanted, "{wanted}");
            // Four to a doubling: a quarter at the most.
            assert!(
                wanted <= 256 || bytes(class) * 4 <= (wanted + GRAIN) * 5,
                "{wanted}"
            );
        }
        assert_eq!(of(LARGEST + 1, 0), None);
    }

    #[test]
    fn an_alignment_is_that_of_every_block_of_its_class() {
        for align in (0..=20).map(|log2| 1_usize << log2) {
            for wanted in [1, align - align / 2, align, align + 1, 3 * align] {
                assert_eq!(
                    of(wanted, align.ilog2()).is_some(),
                    align <= 64 && wanted <= LARGEST
                );
                match of_aligned(wanted, align.ilog2()) {
                    Some(class) => {
                        assert!(bytes(class) >= wanted);
                        assert!(bytes(class).is_multiple_of(align.min(64)) || align <= 64);
                        assert!(align <= 64 || bytes(class).is_multiple_of(align));
                    }
                    None => assert!(wanted.max(align) > LARGEST / 2, "{wanted} at {align}"),
                }
            }
        }
    }
}
