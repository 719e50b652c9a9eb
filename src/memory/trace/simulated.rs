use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::memory::{AllocError, Request, Stats};

/// An allocator without memory: best fit over a bounded range of addresses, to
/// [simulate](super::Recording::simulate) what a recording would need.
///
/// It rounds sizes up to 64 bytes, takes the smallest free range that will do (the lowest
/// of several), and joins what comes back with its free neighbours. It is no
/// [`Allocator`](crate::memory::Allocator), for there is nothing behind its addresses.
///
/// ```
/// use tenslab::memory::Simulated;
///
/// let space = Simulated::new(1 << 50); // a pebibyte
/// assert_eq!(space.largest_free_bytes(), 1 << 50);
/// ```
#[derive(Debug)]
pub struct Simulated {
    space: RefCell<Space>,
}

/// Sizes and addresses are multiples of this.
const GRAIN: usize = 64;

/// The first address: none is 0, and every alignment divides it.
const BASE: usize = crate::memory::MAX_ALIGN;

#[derive(Debug)]
struct Space {
    /// Free ranges by address: no two touch.
    by_address: BTreeMap<usize, usize>,
    /// The same, by length and address.
    by_length: BTreeSet<(usize, usize)>,
    requested: usize,
    live: usize,
    /// Where the highest block so far ended.
    high: usize,
}

/// A block of a [`Simulated`], which goes back when it is dropped.
#[derive(Debug)]
pub(in crate::memory) struct Place<'a> {
    space: &'a RefCell<Space>,
    pub(super) address: usize,
    pub(super) capacity: usize,
    requested: usize,
}

impl Simulated {
    /// `bytes` addresses (rounded down to 64, and to what an address space holds).
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.min(isize::MAX as usize - BASE) / GRAIN * GRAIN;
        let mut space = Space {
            by_address: BTreeMap::new(),
            by_length: BTreeSet::new(),
            requested: 0,
            live: 0,
            high: BASE,
        };
        if bytes > 0 {
            space.insert(BASE, bytes);
        }
        Self {
            space: RefCell::new(space),
        }
    }

    /// The largest block that fits now.
    #[must_use]
    pub fn largest_free_bytes(&self) -> usize {
        let space = self.space.borrow();
        space.by_length.last().map_or(0, |&(length, _)| length)
    }

    /// What is out; `reserved_bytes` is all up to the end of the highest block so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let space = self.space.borrow();
        let reserved_bytes = space.high - BASE;
        Stats {
            requested_bytes: space.requested,
            live_bytes: space.live,
            cached_bytes: reserved_bytes - space.live,
            reserved_bytes,
            ..Stats::default()
        }
    }

    /// Makes a block longer where it stands, if the addresses behind it are free.
    pub(super) fn grow(&self, place: &mut Place<'_>, bytes: usize) -> Result<(), AllocError> {
        let capacity = place.capacity;
        let refused = AllocError::CannotGrow { bytes, capacity };
        let wanted = bytes.checked_next_multiple_of(GRAIN).ok_or(refused)?;
        let mut space = self.space.borrow_mut();
        if capacity == 0 || !space.extend(place.address, capacity, wanted) {
            return Err(refused);
        }
        space.requested += bytes - place.requested;
        (place.requested, place.capacity) = (bytes, wanted.max(capacity));
        Ok(())
    }

    pub(super) fn take(&self, request: Request) -> Result<Place<'_>, AllocError> {
        let (requested, align) = (request.bytes(), request.align());
        let mut place = Place {
            space: &self.space,
            address: request.dangling().addr().get(),
            capacity: 0,
            requested,
        };
        if requested > 0 {
            // Above an isize::MAX by less than a grain, so it does not overflow.
            let capacity = requested.next_multiple_of(GRAIN);
            let mut space = self.space.borrow_mut();
            let address = (space.take(capacity, align.max(GRAIN)))
                .ok_or(AllocError::OutOfMemory { bytes: requested })?;
            space.requested += requested;
            (place.address, place.capacity) = (address, capacity);
        }
        Ok(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.capacity > 0 {
            let mut space = self.space.borrow_mut();
            space.requested -= self.requested;
            space.give_back(self.address, self.capacity);
        }
    }
}

impl Space {
    fn insert(&mut self, start: usize, length: usize) {
        self.by_address.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: usize, length: usize) {
        self.by_address.remove(&start);
        self.by_length.remove(&(length, start));
    }

    fn take(&mut self, capacity: usize, align: usize) -> Option<usize> {
        let (start, length, address) =
            (self.by_length.range((capacity, 0)..)).find_map(|&(length, start)| {
                let address = start.next_multiple_of(align);
                (address - start + capacity <= length).then_some((start, length, address))
            })?;
        self.remove(start, length);
        let (before, end) = (address - start, address + capacity);
        let after = length - before - capacity;
        if before > 0 {
            self.insert(start, before);
        }
        if after > 0 {
            self.insert(end, after);
        }
        self.live += capacity;
        self.high = self.high.max(end);
        Some(address)
    }

    /// Makes what is at `address` `wanted` bytes long, or says that it cannot be.
    fn extend(&mut self, address: usize, capacity: usize, wanted: usize) -> bool {
        let Some(more) = wanted.checked_sub(capacity).filter(|&more| more > 0) else {
            return true;
        };
        let end = address + capacity;
        let behind = self.by_address.get(&end).copied();
        let Some(length) = behind.filter(|&length| length >= more) else {
            return false;
        };
        self.remove(end, length);
        if length > more {
            self.insert(end + more, length - more);
        }
        self.live += more;
        self.high = self.high.max(end + more);
        true
    }

    fn give_back(&mut self, address: usize, capacity: usize) {
        self.live -= capacity;
        let (mut start, mut length) = (address, capacity);
        let before = self.by_address.range(..start).next_back();
        if let Some((&other, &bytes)) = before.filter(|(other, bytes)| **other + **bytes == start) {
            self.remove(other, bytes);
            start = other;
            length += bytes;
        }
        if let Some(&bytes) = self.by_address.get(&(start + length)) {
            self.remove(start + length, bytes);
            length += bytes;
        }
        self.insert(start, length);
    }
}
