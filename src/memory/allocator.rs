use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use serde::{Deserialize, Serialize};

use super::{AllocError, HeaderSlot};
use crate::sync::Arc;
use crate::types::Device;

/// The largest alignment a request may ask for: 1 GiB.
pub const MAX_ALIGN: usize = 1 << 30;

/// Whom an allocation is for.
///
/// A tag changes nothing about the memory; it is what [`Meter`](super::Meter)
/// keeps its numbers by. Give one with
/// [`SharedAllocator::with_tag`](super::SharedAllocator::with_tag).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Tag {
    /// Nobody said.
    #[default]
    Other = 0,
    /// A checkpoint's tensors.
    Weights = 1,
    /// Keys and values.
    Kv = 2,
    /// What dies with a step.
    Scratch = 3,
    /// What layers hand to each other.
    Activations = 4,
}

impl Tag {
    /// Every tag.
    pub const ALL: [Tag; 5] = [
        Tag::Other,
        Tag::Weights,
        Tag::Kv,
        Tag::Scratch,
        Tag::Activations,
    ];

    /// Its name: one word in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tag::Other => "other",
            Tag::Weights => "weights",
            Tag::Kv => "kv",
            Tag::Scratch => "scratch",
            Tag::Activations => "activations",
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is asked of an [`Allocator`].
///
/// Whoever makes one has checked it: `align` is a power of two of at most
/// [`MAX_ALIGN`], and `bytes` rounded up to `align` fits an `isize`.
///
/// 16 bytes, so it goes through the layers in two registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Request {
    bytes: usize,
    how: How,
}

/// All but the size. One number and no struct: small fields that are written one by one and
/// read at once make the processor wait.
#[derive(Clone, Copy, PartialEq, Eq)]
struct How(u64);

impl How {
    const ZEROED: u64 = 1 << 8;
    const TAG_SHIFT: u32 = 16;

    const fn new(align: usize) -> Self {
        Self(align.trailing_zeros() as u64)
    }

    const fn align(self) -> usize {
        1 << (self.0 & 63)
    }

    const fn with_align(self, align: usize) -> Self {
        Self(self.0 & !63 | Self::new(align).0)
    }

    const fn zeroed(self) -> Self {
        Self(self.0 | Self::ZEROED)
    }

    const fn is_zeroed(self) -> bool {
        self.0 & Self::ZEROED != 0
    }

    const fn tagged(self, tag: Tag) -> Self {
        Self(self.0 & !(255 << Self::TAG_SHIFT) | (tag as u64) << Self::TAG_SHIFT)
    }

    const fn tag(self) -> Tag {
        Tag::ALL[(self.0 >> Self::TAG_SHIFT) as usize & 255]
    }
}

impl Request {
    /// A request for `bytes` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// [`AlignTooLarge`](AllocError::AlignTooLarge) above [`MAX_ALIGN`],
    /// [`SizeOverflow`](AllocError::SizeOverflow) where the size rounded up to the
    /// alignment does not fit an `isize`.
    ///
    /// # Panics
    /// If `align` is not a power of two.
    #[inline]
    #[track_caller]
    pub const fn new(bytes: usize, align: usize) -> Result<Request, AllocError> {
        assert!(
            align.is_power_of_two(),
            "an alignment has to be a power of two"
        );
        if align > MAX_ALIGN {
            return Err(AllocError::AlignTooLarge {
                align,
                max: MAX_ALIGN,
            });
        }
        if bytes > isize::MAX as usize - (align - 1) {
            return Err(AllocError::SizeOverflow { bytes, align });
        }
        Ok(Request {
            bytes,
            how: How::new(align),
        })
    }

    /// The same request with another alignment.
    ///
    /// For wrappers: a request that is made anew would forget who asked, and that the
    /// bytes have to be zero.
    ///
    /// # Errors
    /// As [`new`](Request::new).
    ///
    /// # Panics
    /// If `align` is not a power of two.
    #[track_caller]
    pub const fn with_align(mut self, align: usize) -> Result<Request, AllocError> {
        match Self::new(self.bytes, align) {
            Ok(_) => {
                self.how = self.how.with_align(align);
                Ok(self)
            }
            Err(error) => Err(error),
        }
    }

    /// The same request for bytes that are all zero.
    #[inline]
    #[must_use]
    pub const fn zeroed(mut self) -> Request {
        self.how = self.how.zeroed();
        self
    }

    /// The same request on behalf of `tag`.
    #[inline]
    #[must_use]
    pub const fn tagged(mut self, tag: Tag) -> Request {
        self.how = self.how.tagged(tag);
        self
    }

    /// Bytes asked for. 0 is a valid request.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address has to be a multiple of this power of two.
    #[inline]
    #[must_use]
    pub const fn align(&self) -> usize {
        self.how.align()
    }

    /// Must the bytes be zero?
    #[inline]
    #[must_use]
    pub const fn is_zeroed(&self) -> bool {
        self.how.is_zeroed()
    }

    /// On whose behalf.
    #[inline]
    #[must_use]
    pub const fn tag(&self) -> Tag {
        self.how.tag()
    }

    /// Where a block of zero bytes may point: nowhere, but aligned and never null.
    #[inline]
    #[must_use]
    pub const fn dangling(&self) -> NonNull<u8> {
        let address = std::ptr::without_provenance_mut(self.align());
        match NonNull::new(address) {
            Some(pointer) => pointer,
            None => unreachable!(),
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("bytes", &self.bytes)
            .field("align", &self.align())
            .field("zeroed", &self.is_zeroed())
            .field("tag", &self.tag())
            .finish()
    }
}

/// One allocation on its way out of an [`Allocator`] or back into it.
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
        // SAFETY: as above.
        let len = unsafe { (&raw const self.len).read_volatile() };
        // SAFETY: as above.
        let capacity = unsafe { (&raw const self.capacity).read_volatile() };
        // SAFETY: as above.
        let cookie = unsafe { (&raw const self.cookie).read_volatile() };
        // SAFETY: as above.
        let tag = unsafe { (&raw const self.tag).read_volatile() };
        // SAFETY: as above.
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

    /// Notes that it [grew](Allocator::grow_block) to `len` usable bytes, which take up
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

/// What an allocator holds, in bytes. A moment's picture: other threads go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Asked for by the allocations that are out.
    pub requested_bytes: usize,
    /// Taken up by them, rounding included.
    pub live_bytes: usize,
    /// Kept for later allocations.
    pub cached_bytes: usize,
    /// Address space held for both.
    pub reserved_bytes: usize,
}

/// What giving the memory of a part of a block back came to, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decommitted {
    /// The whole pages of the range: bytes that need no memory until they are written
    /// again. 0 where the allocator cannot give a part of a block back.
    pub bytes: usize,
    /// Those of them that were in memory: by so much the process got smaller.
    pub resident_bytes: usize,
}

/// Hands out blocks of memory and takes them back, from any thread.
///
/// This is the side that implementers and wrappers see. Users hold a
/// [`SharedAllocator`](super::SharedAllocator). A wrapper owns another allocator,
/// passes every call on, and does its own work around them. The methods that have a
/// default are for the bottom of a stack: a wrapper that does not forward them hides what
/// is below it.
///
/// ```
/// use tenslab::Device;
/// use tenslab::memory::{AllocError, Allocator, Block, Request, Stats};
///
/// struct RoundUp<A>(A);
///
/// // SAFETY: blocks come from `A` and go back to it unchanged.
/// unsafe impl<A: Allocator> Allocator for RoundUp<A> {
///     fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
///         self.0.allocate_block(request.with_align(request.align().max(128))?)
///     }
///
///     unsafe fn release_block(&self, block: Block) {
///         // SAFETY: the caller's promise, passed on.
///         unsafe { self.0.release_block(block) }
///     }
///
///     fn device(&self) -> Device {
///         self.0.device()
///     }
///
///     fn stats(&self) -> Stats {
///         self.0.stats()
///     }
///
///     fn trim(&self) -> usize {
///         self.0.trim()
///     }
/// }
/// ```
///
/// # Safety
/// For each block that [`allocate_block`](Allocator::allocate_block) returns, until
/// it is released:
/// - its `len` is the request's `bytes`, and its pointer a multiple of the
///   request's `align`;
/// - the `len` bytes are readable and writable, belong to nobody else and are
///   **initialised**: zero if the request says so, else anything;
/// - its header slot, if there is one, belongs to nobody else;
/// - both stay where they are when the allocator value moves.
pub unsafe trait Allocator: Send + Sync {
    /// Hands out a block.
    ///
    /// # Errors
    /// An [`AllocError`] that says what was asked and what there is. Nothing is
    /// changed then.
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError>;

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator, is given back
    /// once, and nobody uses its bytes or its header slot any more.
    unsafe fn release_block(&self, block: Block);

    /// Makes `block` `bytes` bytes long, where it stands. By default that cannot be.
    ///
    /// After `Ok` the block's `len` is `bytes`, its bytes up to the old `len` are as
    /// before and the new ones are initialised; address, cookie, tag and header slot are
    /// the same. After `Err` nothing is changed.
    ///
    /// # Errors
    /// [`AllocError::CannotGrow`] where there is no room.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator and is not given back,
    /// `bytes` is no less than its `len`, and nobody else uses the block meanwhile.
    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        Err(AllocError::CannotGrow {
            bytes,
            capacity: block.capacity(),
        })
    }

    /// Gives the memory of a part of a block back, as far as it is whole pages. The
    /// block stays out and its bytes stay readable and writable; what they hold is
    /// anything until they are written. By default nothing happens.
    ///
    /// An allocator with a limit stops counting [`Decommitted::bytes`]; who wants to use
    /// them again says so with [`commit`](Allocator::commit) first.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator and is not given back,
    /// `range` is inside its `len`, and nobody else uses the range meanwhile.
    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        let _ = (block, range);
        Decommitted::default()
    }

    /// Says that a part of a block that was [decommitted](Allocator::decommit) will be
    /// used again. By default nothing happens: memory comes with the first touch.
    ///
    /// # Errors
    /// That of an allocator with a limit. The bytes can still be touched, but then more is
    /// used than was allowed.
    ///
    /// # Safety
    /// `block` came from `allocate_block` of this very allocator and is not given back,
    /// and `range` is inside its `len`.
    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        let _ = (block, range);
        Ok(())
    }

    /// Where the memory is.
    fn device(&self) -> Device {
        Device::Cpu
    }

    /// What is held at this moment. All zero where the allocator does not count.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Gives cached memory back to wherever it came from.
    ///
    /// Returns how many bytes went.
    fn trim(&self) -> usize {
        0
    }
}

// SAFETY: blocks come from the allocator behind the pointer, which keeps the contract, and
// go back to that one; it does not move while an `Arc` of it lives.
unsafe impl<A: Allocator + ?Sized> Allocator for Arc<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        (**self).allocate_block(request)
    }

    unsafe fn release_block(&self, block: Block) {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).release_block(block) }
    }

    unsafe fn grow_block(&self, block: &mut Block, bytes: usize) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).grow_block(block, bytes) }
    }

    unsafe fn decommit(&self, block: &Block, range: Range<usize>) -> Decommitted {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).decommit(block, range) }
    }

    unsafe fn commit(&self, block: &Block, range: Range<usize>) -> Result<(), AllocError> {
        // SAFETY: the caller's promise, passed on to the allocator it was made about.
        unsafe { (**self).commit(block, range) }
    }

    fn device(&self) -> Device {
        (**self).device()
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }

    fn trim(&self) -> usize {
        (**self).trim()
    }
}
