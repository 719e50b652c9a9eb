//! What is asked of an allocator, and for whom.

use std::fmt;
use std::ptr::NonNull;

use serde::{Deserialize, Serialize};

use super::AllocError;

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

/// What is asked of an [`Allocator`](super::Allocator).
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
        1 << self.align_log2()
    }

    #[allow(clippy::cast_possible_truncation, reason = "six bits")]
    const fn align_log2(self) -> u32 {
        (self.0 & 63) as u32
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

    /// Which power of two that is.
    #[inline]
    pub(super) const fn align_log2(&self) -> u32 {
        self.how.align_log2()
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
