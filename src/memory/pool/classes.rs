//! The classes of small sizes: four to a doubling.
//!
//! ```text
//!   64  128  192  256 | 320  384  448  512 | 640  768  896  1024 | … | 20K  24K  28K  32K
//! ```
//!
//! A block is at most a fifth larger than what it was taken for (a class more than half full at
//! the worst, below 320 bytes), and each class is a slab. Above, sizes have no classes: they
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

/// The smallest class whose blocks have `bytes` bytes (at least one), at a multiple of `align`.
#[inline]
pub(super) fn of(bytes_wanted: usize, align: usize) -> Option<usize> {
    // As large as the alignment, a block of a class that is a power of two is aligned so.
    let wanted = bytes_wanted.max(if align > GRAIN { align } else { 1 });
    if wanted > LARGEST {
        return None;
    }
    let last_grain = (wanted - 1) / GRAIN;
    let class = if last_grain < 4 {
        last_grain
    } else {
        let log2 = last_grain.ilog2() as usize;
        (log2 - 1) * 4 + ((last_grain >> (log2 - 2)) & 3)
    };
    if align <= GRAIN {
        return Some(class);
    }
    classes()
        .skip(class)
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
            let class = of(wanted, 1).unwrap();
            assert!(bytes(class) >= wanted, "{wanted}");
            assert!(class == 0 || bytes(class - 1) < wanted, "{wanted}");
            // Four to a doubling: a fifth at the most.
            assert!(
                wanted <= 256 || bytes(class) * 4 <= (wanted + GRAIN) * 5,
                "{wanted}"
            );
        }
        assert_eq!(of(LARGEST + 1, 1), None);
    }

    #[test]
    fn an_alignment_is_that_of_every_block_of_its_class() {
        for align in (0..=20).map(|log2| 1_usize << log2) {
            for wanted in [1, align - align / 2, align, align + 1, 3 * align] {
                match of(wanted, align) {
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
