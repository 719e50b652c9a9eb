//! Bytes with many owners: a count, a state word, and what is needed to give the block back, in
//! one cache line.

mod pages;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

pub use self::pages::Protected;

use super::shared::RawOwner;
use super::state::{Refusal, StateWord};
use super::{Block, BorrowError, Buffer, SharedAllocator, Tag};
use crate::mutant::{self, Mutant};
use crate::sync::atomic::{AtomicBool, AtomicU32};
use crate::sync::{Ordering, acquire_end};
use crate::types::Device;

/// What the handles of one storage share. It lives in the descriptor table of the
/// allocator that made the block, or in a box where the allocator has none.
#[repr(align(64))]
struct Header {
    refs: AtomicU32,
    state: StateWord,
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
    cookie: u64,
    owner: RawOwner,
    tag: Tag,
    boxed: bool,
    /// Are pages of the block read-only, or may they be?
    protected: AtomicBool,
}

// One cache line: the counts, and all that is needed to read the bytes.
// (loom's atomics are larger.)
#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() == 64);

/// A place for the header of one storage, given with a [`Block`].
///
/// An allocator that has such places spares its users a heap block for each
/// storage they make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderSlot(NonNull<Header>);

impl HeaderSlot {
    /// Bytes of a slot: one cache line.
    pub const BYTES: usize = size_of::<Header>();

    /// Alignment of a slot.
    pub const ALIGN: usize = align_of::<Header>();

    /// The slot at `place`. What it holds now does not matter.
    ///
    /// # Safety
    /// `place` is a multiple of [`ALIGN`](Self::ALIGN), and the
    /// [`BYTES`](Self::BYTES) bytes there are writable and belong to the block that
    /// the slot is given with, for as long as that block is out.
    #[must_use]
    pub const unsafe fn new(place: NonNull<u8>) -> Self {
        Self(place.cast())
    }
}

/// Names a storage in errors: unique among the storages alive at one time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(usize);

impl fmt::Display for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "storage {:#x}", self.0)
    }
}

impl fmt::Debug for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes with many owners, and a state that says who may touch them.
///
/// A clone is one more owner of the same bytes; the last one gives them back.
/// Tensors are views of a storage, many over one:
///
/// ```
/// use tenslab::{DType, Tensor, memory::{self, Storage}};
///
/// let storage = Storage::from(memory::cpu().allocate_zeroed(4096, 64)?);
/// let embedding = Tensor::from_storage(&storage, 0, [8, 64], DType::F32)?;
/// let norm = Tensor::from_storage(&storage, 2048, [64], DType::F32)?;
///
/// storage.freeze()?;                          // from now on, only readers
/// assert_eq!(embedding.read::<f32>()?[0], 0.0);
/// assert!(norm.write::<f32>().is_err());
/// # Ok::<(), tenslab::Error>(())
/// ```
///
/// Cost: a clone and a drop are one atomic addition each. The header is a cache
/// line in the allocator's own table, so that sharing a block of a slab needs
/// no heap block. Any thread may do anything here.
pub struct Storage {
    header: NonNull<Header>,
}

// SAFETY: the header is shared through atomics, its other fields do not change while
// a handle lives, and allocators take blocks back from any thread. The bytes are
// reached through the state word or through raw pointers.
unsafe impl Send for Storage {}
// SAFETY: `&Storage` reaches the atomics and the fields that do not change; it lends no
// bytes but behind the state word.
unsafe impl Sync for Storage {}

impl From<Buffer> for Storage {
    /// Shares a buffer. Allocates nothing where the block came with a header slot.
    #[inline]
    fn from(buffer: Buffer) -> Self {
        Self::new(buffer, StateWord::default())
    }
}

impl Storage {
    #[inline]
    fn new(buffer: Buffer, state: StateWord) -> Self {
        let (block, owner) = buffer.into_parts();
        let slot = block.header();
        let header = Header {
            refs: AtomicU32::new(1),
            state,
            ptr: block.as_ptr(),
            len: block.len(),
            capacity: block.capacity(),
            cookie: block.cookie(),
            owner: owner.into_raw(),
            tag: block.tag(),
            boxed: slot.is_none(),
            protected: AtomicBool::new(false),
        };
        let header = match slot {
            Some(HeaderSlot(place)) => {
                // SAFETY: `HeaderSlot::new` promised that the place is aligned,
                // writable and this block's own while the block is out, which it is.
                unsafe { place.write(header) };
                place
            }
            None => NonNull::from(Box::leak(Box::new(header))),
        };
        Self { header }
    }

    /// Shares a buffer that nobody ever writes: its pages may be read-only.
    pub(super) fn frozen(buffer: Buffer) -> Self {
        Self::new(buffer, StateWord::frozen())
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the header is initialised when the first handle is made and taken
        // apart when the last one is dropped; this one is alive. Nobody has it mutably.
        unsafe { self.header.as_ref() }
    }

    /// The first byte. Never null. Writing through it is the caller's to answer for.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.header().ptr.as_ptr()
    }

    /// The first byte.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.header().ptr
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header().len
    }

    /// Are there no bytes?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its name in errors.
    #[must_use]
    pub fn id(&self) -> StorageId {
        StorageId(self.header.addr().get())
    }

    /// On whose behalf it was allocated.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.header().tag
    }

    /// Where the memory is.
    #[must_use]
    pub fn device(&self) -> Device {
        self.header().owner.device()
    }

    /// Are these two handles of one storage?
    #[must_use]
    pub fn is_same(&self, other: &Storage) -> bool {
        self.header == other.header
    }

    /// Forbids writing, for ever. Readers may be there; freezing twice is fine.
    ///
    /// # Errors
    /// [`BorrowError::Writing`] while somebody writes.
    pub fn freeze(&self) -> Result<(), BorrowError> {
        self.header()
            .state
            .freeze()
            .map_err(|why| self.refused(why))
    }

    /// Is the block one that the allocator of `handle` will take back?
    pub(super) fn is_of(&self, handle: &SharedAllocator) -> bool {
        self.header().owner.is_of(handle)
    }

    /// Is writing forbidden for ever?
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.header().state.is_frozen()
    }

    /// Checks that this is the only handle and that the bytes are not frozen. Then nobody
    /// else can be at them while the handle stays borrowed mutably: guards borrow a handle,
    /// and a clone needs one.
    #[inline]
    pub(crate) fn must_be_sole(&mut self) -> Result<(), BorrowError> {
        let header = self.header();
        if mutant::is(Mutant::SoleFrozenFirst) && !header.state.is_frozen() {
            return match header.refs.load(Ordering::Acquire) {
                1 => Ok(()),
                _ => Err(self.refused(Refusal::Frozen)),
            };
        }
        let acquire = if mutant::is(Mutant::SoleRelaxed) {
            Ordering::Relaxed
        } else {
            // Acquire: pairs with the Release of every other handle's drop, so that what
            // was done through them is over, and a freeze is seen below.
            Ordering::Acquire
        };
        let handles = header.refs.load(acquire);
        // Asked only after the handles were counted: until then another may freeze and go.
        if header.state.is_frozen() {
            return Err(self.refused(Refusal::Frozen));
        }
        if handles == 1 || mutant::is(Mutant::SoleIgnoresHandles) {
            return Ok(());
        }
        let storage = self.id();
        Err(BorrowError::NotSole { storage, handles })
    }

    /// The bytes, to write, where this is the only handle: no guard, and nothing is
    /// counted.
    ///
    /// # Errors
    /// [`BorrowError::Frozen`], then [`BorrowError::NotSole`].
    pub fn get_mut(&mut self) -> Result<&mut [u8], BorrowError> {
        self.must_be_sole()?;
        let mut bytes = NonNull::slice_from_raw_parts(self.base(), self.len());
        // SAFETY: the block's `len` bytes are readable, writable and initialised by the
        // allocator's contract. Nobody else has them: this is the only handle, it is borrowed
        // mutably, so no other can be made meanwhile, and a guard would borrow a handle.
        Ok(unsafe { bytes.as_mut() })
    }

    /// The block that it is, as it goes back to its allocator.
    fn block(&self) -> Block {
        block_of(self.header(), self.header)
    }

    /// Becomes one of many readers, until the guard is dropped.
    #[inline]
    pub(crate) fn share(&self) -> Result<Shared<'_>, BorrowError> {
        match self.header().state.read() {
            Ok(counted) => Ok(Shared {
                storage: self,
                counted,
            }),
            Err(why) => Err(self.refused(why)),
        }
    }

    /// Becomes the only one who touches the bytes, until the guard is dropped.
    #[inline]
    pub(crate) fn exclude(&self) -> Result<Exclusive<'_>, BorrowError> {
        match self.header().state.write() {
            Ok(()) => Ok(Exclusive { storage: self }),
            Err(why) => Err(self.refused(why)),
        }
    }

    #[cold]
    fn refused(&self, why: Refusal) -> BorrowError {
        let storage = self.id();
        match why {
            Refusal::Writing => BorrowError::Writing { storage },
            Refusal::Reading(readers) => BorrowError::Reading { storage, readers },
            Refusal::Frozen => BorrowError::Frozen { storage },
            Refusal::TooManyReaders(readers) => BorrowError::TooManyReaders { storage, readers },
        }
    }
}

impl Clone for Storage {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: the new handle comes from a living one, which keeps the bytes.
        if self.header().refs.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
            // Only forgotten handles get here; wrapping would free too early.
            std::process::abort();
        }
        Self {
            header: self.header,
        }
    }
}

impl Drop for Storage {
    #[inline]
    fn drop(&mut self) {
        let refs = &self.header().refs;
        let looked = mutant::is(Mutant::ProtectionLooksFirst)
            .then(|| self.header().protected.load(Ordering::Relaxed));
        let last = if mutant::is(Mutant::LastViewTwoSteps) {
            let before = refs.load(Ordering::Acquire);
            refs.store(before - 1, Ordering::Release);
            before == 1
        } else if mutant::is(Mutant::LastViewRelaxed) {
            refs.fetch_sub(1, Ordering::Relaxed) == 1
        } else {
            // Acquire: pairs with the Release of the other handles' drops. Where this is the
            // only one left nobody can make another, and no exchange is needed.
            refs.load(Ordering::Acquire) == 1
                // Release: what was done through this handle happens before the bytes
                // go back; pairs with the fence in `give_back`.
                || refs.fetch_sub(1, Ordering::Release) == 1
        };
        if last {
            // SAFETY: the count says that this was the last handle.
            unsafe { give_back(self.header, looked) };
        }
    }
}

/// The block that the header at `place` is of.
fn block_of(header: &Header, place: NonNull<Header>) -> Block {
    let block = Block::new(
        header.ptr,
        header.len,
        header.capacity,
        header.cookie,
        header.tag,
    );
    if header.boxed {
        block
    } else {
        block.with_header(HeaderSlot(place))
    }
}

/// Takes the header apart and gives the block back, writable. `looked`: what a wrong variant
/// saw of the protection while other handles were there.
///
/// # Safety
/// The header is initialised, and the caller dropped the last handle to it.
unsafe fn give_back(place: NonNull<Header>, looked: Option<bool>) {
    if !mutant::is(Mutant::LastViewRelaxed) {
        // Acquire: pairs with the Release of every other handle's drop.
        acquire_end(|acquire| {
            // SAFETY: initialised, and nobody has it mutably: the caller was the last one.
            unsafe { place.as_ref() }.refs.load(acquire)
        });
    }
    // SAFETY: initialised, and nobody else has it any more (the caller's promise);
    // it is read once and the place not looked at again as a `Header`.
    let header = unsafe { place.read() };
    let block = block_of(&header, place);
    // Relaxed: whoever protected it held a handle, and the fence saw that one's drop.
    let protected = looked.unwrap_or_else(|| header.protected.load(Ordering::Relaxed));
    if header.boxed {
        // SAFETY: `boxed` says that `Storage::from` leaked it from a box. As
        // `ManuallyDrop`, because the value was just read out of it.
        drop(unsafe { Box::from_raw(place.cast::<ManuallyDrop<Header>>().as_ptr()) });
    }
    // SAFETY: `Storage::from` made it by `into_raw`, and this is the only taking.
    let owner = unsafe { header.owner.into_owner() };
    // SAFETY: these are the parts of the buffer that the storage was made of, so it is out.
    if protected && !unsafe { owner.allocator().unprotect(&block) } {
        // Whoever got it next would trap. Its owner stays inside, so it counts as out, and
        // the allocator below it is not destroyed.
        std::mem::forget(owner);
        return;
    }
    // SAFETY: these are the parts of the buffer that the storage was made of, the
    // last handle is gone, and with it every guard and tensor.
    unsafe { owner.release(block) };
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage")
            .field("id", &self.id())
            .field("ptr", &self.as_ptr())
            .field("len", &self.len())
            .field("tag", &self.tag())
            .field("frozen", &self.is_frozen())
            .finish_non_exhaustive()
    }
}

/// While it lives, nobody writes.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    storage: &'a Storage,
    counted: bool,
}

impl Drop for Shared<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.counted {
            self.storage.header().state.end_read();
        }
    }
}

/// While it lives, nobody else reads or writes.
#[derive(Debug)]
pub(crate) struct Exclusive<'a> {
    storage: &'a Storage,
}

impl Drop for Exclusive<'_> {
    #[inline]
    fn drop(&mut self) {
        self.storage.header().state.end_write();
    }
}
