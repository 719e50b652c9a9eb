//! [`Rows`]: rows that double, so that nothing ever moves and a place follows from a number.
//!
//! ```text
//!   row 0     | 0 | 1 | 2 | 3 |                         first
//!   row 1     | 4 | 5 | 6 | 7 |                         as many again
//!   row 2     | 8 | 9 | … | 15 |                        twice as many, and so on
//! ```

use std::ptr::NonNull;

use crate::sync::Ordering;
use crate::sync::atomic::AtomicPtr;

/// Rows that double, and where those that are there begin.
#[derive(Debug)]
pub(super) struct Rows<const N: usize> {
    /// Numbers in the first row, as a power of two.
    first_log2: u32,
    /// Null where the row is not there.
    bases: [AtomicPtr<u8>; N],
}

impl<const N: usize> Rows<N> {
    pub(super) fn new(first_log2: u32) -> Self {
        Self {
            first_log2,
            bases: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
        }
    }

    /// Which row a number is in, and the how-manieth it is there.
    #[inline]
    pub(super) fn place(&self, number: u32) -> (usize, u32) {
        Self::place_of(self.first_log2, number)
    }

    /// As [`place`](Self::place), where the first row has so many numbers, as a power of two.
    #[inline]
    pub(super) fn place_of(first_log2: u32, number: u32) -> (usize, u32) {
        match (u64::from(number) >> first_log2).checked_ilog2() {
            None => (0, number),
            // No overflow: the row's first number is at most `number`.
            Some(doubling) => (
                doubling as usize + 1,
                number - (1 << (doubling + first_log2)),
            ),
        }
    }

    /// The first number of a row; past the end of `u32` for rows that no number is in.
    pub(super) fn first(&self, row: usize) -> u64 {
        match row {
            0 => 0,
            _ => 1 << (row - 1 + self.first_log2 as usize).min(63),
        }
    }

    /// Numbers in a row where there are `all` in all.
    pub(super) fn len(&self, row: usize, all: u32) -> u32 {
        let all = u64::from(all);
        let len = self.first(row + 1).min(all) - self.first(row).min(all);
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    /// Where a row begins.
    #[inline]
    pub(super) fn base(&self, row: usize) -> Option<NonNull<u8>> {
        // Relaxed: whoever has a block of the row got its number after the row came
        // (through its owner's lock, or through a magazine); whoever has none gets
        // a pointer to look at, or nothing.
        NonNull::new(self.bases[row].load(Ordering::Relaxed))
    }

    /// The row comes (`Some`) or goes (`None`). Under its owner's lock.
    pub(super) fn set(&self, row: usize, base: Option<NonNull<u8>>) {
        // Relaxed: see `base`.
        self.bases[row].store(
            base.map_or(std::ptr::null_mut(), NonNull::as_ptr),
            Ordering::Relaxed,
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rows_have_every_number_once() {
        for first_log2 in [0, 1, 5, 20, 31, 32] {
            let rows = Rows::<33>::new(first_log2);
            let mut row = 0;
            let mut first = 0_u64;
            while first < u64::from(u32::MAX) {
                assert_eq!(rows.first(row), first);
                let last = rows.first(row + 1).min(u64::from(u32::MAX)) - 1;
                for number in [first, (first + last) / 2, last] {
                    let index = number - first;
                    let (number, index) = (u32::try_from(number), u32::try_from(index));
                    assert_eq!(rows.place(number.unwrap()), (row, index.unwrap()));
                }
                assert_eq!(u64::from(rows.len(row, u32::MAX)), last - first + 1);
                (first, row) = (last + 1, row + 1);
            }
            assert!(row <= 33);
            let lens: u64 = (0..33).map(|row| u64::from(rows.len(row, 1000))).sum();
            assert_eq!(lens, 1000);
        }
    }
}
