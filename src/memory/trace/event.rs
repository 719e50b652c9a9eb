use std::fmt;

use crate::memory::{Block, Request, Tag};

/// A short name in a trace: up to 23 bytes, kept inline.
///
/// What does not fit is cut off, and what would need quoting in a file (commas, quotes,
/// backslashes, control characters) becomes `_`.
///
/// ```
/// use tenslab::memory::Name;
///
/// assert_eq!(Name::new("prefill, layer 3").as_str(), "prefill_ layer 3");
/// assert_eq!(Name::new(&"x".repeat(99)).as_str().len(), 23);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Name {
    len: u8,
    bytes: [u8; Name::MAX_BYTES],
}

impl Name {
    /// Bytes that a name may have.
    pub const MAX_BYTES: usize = 23;

    /// `text` as a name.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut name = Self::default();
        for letter in text.chars() {
            let letter = if is_plain(letter) { letter } else { '_' };
            let start = usize::from(name.len);
            let Some(place) = name.bytes.get_mut(start..start + letter.len_utf8()) else {
                break;
            };
            letter.encode_utf8(place);
            name.len += u8::try_from(letter.len_utf8()).unwrap_or(0);
        }
        name
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Only whole letters were written, so it is never the default.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// The name that is written so, if one is.
    pub(super) fn exactly(text: &str) -> Option<Self> {
        let name = Self::new(text);
        (name.as_str() == text).then_some(name)
    }
}

fn is_plain(letter: char) -> bool {
    !letter.is_control() && !matches!(letter, ',' | '"' | '\\')
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An allocation that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// What was asked for.
    pub request: Request,
    /// Bytes of the allocator that it takes up.
    pub capacity: usize,
    /// Its first byte. A number: the memory may be gone.
    pub address: usize,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A block went out.
    Allocate(Allocation),
    /// A block is about to come back.
    Release {
        /// On whose behalf it was allocated.
        tag: Tag,
        /// Bytes that had been asked for.
        bytes: usize,
        /// Bytes of the allocator that it took up.
        capacity: usize,
        /// Its first byte.
        address: usize,
    },
    /// A block grew where it stands. (Where it could not, there is no event.)
    Grow {
        /// On whose behalf it was allocated.
        tag: Tag,
        /// Usable bytes that it has now.
        bytes: usize,
        /// Bytes of the allocator that it takes up now.
        capacity: usize,
        /// Its first byte.
        address: usize,
    },
    /// A request was refused.
    Refuse(Request),
    /// Somebody set a [mark](super::Trace::mark).
    Mark(Name),
}

/// One line of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Counted from 0 since the trace was made. One order for all threads: of two events
    /// of one address, the one that happened first has the smaller number.
    pub number: u64,
    /// Which thread, in the order in which the trace met them. Threads beyond 64 share
    /// the number 64, and a thread may get the number of one that ended before.
    pub thread: u16,
    /// What happened.
    pub kind: EventKind,
}

/// A block that is out, with the number of the event that it went out with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveBlock {
    /// The number of its allocation, whether or not that event is still kept.
    pub number: u64,
    /// The thread that took it.
    pub thread: u16,
    /// What it is. Where it grew, the bytes of the request and the capacity are those that
    /// it has now.
    pub allocation: Allocation,
}

impl Allocation {
    /// The same block, longer.
    pub(super) fn grown(&mut self, block: &Block) {
        self.capacity = block.capacity();
        let request = &self.request;
        // A length of memory that is there, so it fits.
        if let Ok(longer) = Request::new(block.len(), request.align()) {
            let longer = longer.tagged(request.tag());
            self.request = match request.is_zeroed() {
                true => longer.zeroed(),
                false => longer,
            };
        }
    }

    pub(super) fn of(request: Request, block: &Block) -> Self {
        Self {
            request,
            capacity: block.capacity(),
            address: block.as_ptr().addr().get(),
        }
    }
}

impl EventKind {
    pub(super) fn grow(block: &Block) -> Self {
        Self::Grow {
            tag: block.tag(),
            bytes: block.len(),
            capacity: block.capacity(),
            address: block.as_ptr().addr().get(),
        }
    }

    pub(super) fn release(block: &Block) -> Self {
        Self::Release {
            tag: block.tag(),
            bytes: block.len(),
            capacity: block.capacity(),
            address: block.as_ptr().addr().get(),
        }
    }
}
