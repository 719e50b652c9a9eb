//! One allocation, as it goes through the layers.

use std::ptr::NonNull;

use super::{HeaderSlot, Tag};

/// One allocation on its way out of an [`Allocator`](super::Allocator) or back into it.
///
/// It carries all that the allocator needs to find it again: there is no map from
/// pointers and nothing is stored in front of the data. It is neither `Copy` nor
/// `Clone`, and dropping one without giving it back leaks it.
#[derive(Debug)]
#[must_use = "a block that is dropped is leaked: give it back"]
pub struct Block {
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
    cookie: u64,
    tag: WideTag,
    header: Option<HeaderSlot>,
}

/// A [`Tag`] as wide as the other parts, so that a block has no gap: one would be copied too.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
enum WideTag {
    Other,
    Weights,
    Kv,
    Scratch,
    Activations,
}

impl WideTag {
    #[inline]
    const fn new(tag: Tag) -> Self {
        match tag {
            Tag::Other => WideTag::Other,
            Tag::Weights => WideTag::Weights,
            Tag::Kv => WideTag::Kv,
            Tag::Scratch => WideTag::Scratch,
            Tag::Activations => WideTag::Activations,
        }
    }

    #[inline]
    const fn tag(self) -> Tag {
        Tag::ALL[self as usize]
    }
}

impl Block {
    /// A block of `len` usable bytes at `ptr`, which take up `capacity` bytes of the
    /// allocator. `cookie` is whatever the allocator wants to see again.
    #[inline]
    pub const fn new(ptr: NonNull<u8>, len: usize, capacity: usize, cookie: u64, tag: Tag) -> Self {
        Self {
            ptr,
            len,
            capacity,
            cookie,
            tag: WideTag::new(tag),
            header: None,
        }
    }

    /// The same block once more, read part by part.
    ///
    /// A copy of the whole would be wide loads of what was stored in narrow parts a moment
    /// ago, and the processor forwards no such load: it waits for the stores, at every copy
    /// (measured: 27 ns a buffer with three such copies, 12 ns without). Plain loads of the
    /// parts are merged into wide ones by the compiler; volatile loads are not.
    ///
    /// # Safety
    /// Only one of the two is used from now on.
    #[inline(always)]
    pub(super) unsafe fn part_by_part(&self) -> Self {
        // SAFETY: behind a reference, so live, aligned and initialised.
        let ptr = unsafe { (&raw const self.ptr).read_volatile() };
        // SAFETY: behind a reference, so live, aligned and initialised.
        let len = unsafe { (&raw const self.len).read_volatile() };
        // SAFETY: behind a reference, so live, aligned and initialised.
        let capacity = unsafe { (&raw const self.capacity).read_volatile() };
        // SAFETY: behind a reference, so live, aligned and initialised.
        let cookie = unsafe { (&raw const self.cookie).read_volatile() };
        // SAFETY: behind a reference, so live, aligned and initialised.
        let tag = unsafe { (&raw const self.tag).read_volatile() };
        // SAFETY: behind a reference, so live, aligned and initialised.
        let header = unsafe { (&raw const self.header).read_volatile() };
        Self {
            ptr,
            len,
            capacity,
            cookie,
            tag,
            header,
        }
    }

    /// The same block with a place for its storage header, so that sharing the
    /// block needs no heap block.
    #[inline]
    pub const fn with_header(mut self, slot: HeaderSlot) -> Self {
        self.header = Some(slot);
        self
    }

    /// Notes that it [grew](super::Allocator::grow_block) to `len` usable bytes, which take up
    /// `capacity` bytes of the allocator.
    pub const fn set_grown(&mut self, len: usize, capacity: usize) {
        self.len = len;
        self.capacity = capacity;
    }

    /// The first byte.
    #[inline]
    #[must_use]
    pub const fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Usable bytes: what was asked for.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Are there no usable bytes?
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the allocator that the block takes up.
    #[inline]
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// What the allocator wanted to see again.
    #[inline]
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Its length and what it takes up: as the two getters, for who wants both at once. Two
    /// loads, where the compiler would merge the getters' into a wide one: see
    /// [`part_by_part`](Self::part_by_part).
    #[inline(always)]
    pub(super) fn size(&self) -> (usize, usize) {
        // SAFETY: behind a reference, so live, aligned and initialised.
        let len = unsafe { (&raw const self.len).read_volatile() };
        // SAFETY: behind a reference, so live, aligned and initialised.
        let capacity = unsafe { (&raw const self.capacity).read_volatile() };
        (len, capacity)
    }

    /// On whose behalf it was allocated.
    #[inline]
    #[must_use]
    pub const fn tag(&self) -> Tag {
        self.tag.tag()
    }

    /// The place for the storage header, if the allocator has one.
    #[inline]
    #[must_use]
    pub const fn header(&self) -> Option<HeaderSlot> {
        self.header
    }
}
