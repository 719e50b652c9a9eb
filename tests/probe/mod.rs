//! What the memory tests put under the code: sources that count and fail on request.
//!
//! ```text
//!   SlabAllocator ─▶ CountedPages ─▶ OsPages      every region, every byte, the k-th call
//!   CpuAllocator ─▶ RoomyPages ─▶ OsPages        room behind every region, to grow into
//!   SharedAllocator ─▶ Spy<A> ─▶ A                every block out and back, the k-th call
//! ```
//!
//! A [`Spy`] also checks the promise that callers make: what comes back is out, and is
//! what went out.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tenslab::memory::{AllocError, Allocator, Block, OsPages, PageSource, Region, Request, Stats};

/// Fails the call with this number, counted from 0, and all other calls never.
#[derive(Debug)]
pub(crate) struct FailAt {
    calls: AtomicUsize,
    at: usize,
}

impl FailAt {
    pub(crate) fn call(at: usize) -> Self {
        let calls = AtomicUsize::new(0);
        Self { calls, at }
    }

    pub(crate) fn never() -> Self {
        Self::call(usize::MAX)
    }

    fn check(&self, bytes: usize) -> Result<(), AllocError> {
        if self.calls.fetch_add(1, Ordering::Relaxed) == self.at {
            return Err(AllocError::OutOfMemory { bytes });
        }
        Ok(())
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

/// What a [`CountedPages`] saw.
#[derive(Debug)]
pub(crate) struct PageCounts {
    pub(crate) fail: FailAt,
    pub(crate) regions: AtomicUsize,
    pub(crate) reserved_bytes: AtomicUsize,
    pub(crate) ever_reserved: AtomicUsize,
}

impl PageCounts {
    pub(crate) fn regions(&self) -> usize {
        self.regions.load(Ordering::Relaxed)
    }

    pub(crate) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn ever_reserved(&self) -> usize {
        self.ever_reserved.load(Ordering::Relaxed)
    }
}

/// The system's pages, counted.
#[derive(Debug, Clone)]
pub(crate) struct CountedPages(pub(crate) Arc<PageCounts>);

impl CountedPages {
    pub(crate) fn new(fail: FailAt) -> Self {
        Self(Arc::new(PageCounts {
            fail,
            regions: AtomicUsize::new(0),
            reserved_bytes: AtomicUsize::new(0),
            ever_reserved: AtomicUsize::new(0),
        }))
    }
}

// SAFETY: every call is passed on to `OsPages` unchanged, or refused before it.
unsafe impl PageSource for CountedPages {
    fn page_bytes(&self) -> usize {
        OsPages::new().page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        self.0.fail.check(bytes)?;
        let region = OsPages::new().reserve(bytes, align)?;
        self.0.regions.fetch_add(1, Ordering::Relaxed);
        self.0.ever_reserved.fetch_add(1, Ordering::Relaxed);
        self.0
            .reserved_bytes
            .fetch_add(region.bytes(), Ordering::Relaxed);
        Ok(region)
    }

    unsafe fn commit(&self, region: &Region, range: Range<usize>) -> Result<(), AllocError> {
        self.0.fail.check(range.len())?;
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().commit(region, range) }
    }

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().decommit(region, range) }
    }

    unsafe fn release(&self, region: Region) {
        self.0.regions.fetch_sub(1, Ordering::Relaxed);
        self.0
            .reserved_bytes
            .fetch_sub(region.bytes(), Ordering::Relaxed);
        // SAFETY: the caller's promise; our regions are `OsPages`'.
        unsafe { OsPages::new().release(region) }
    }
}

/// Bytes that a block of [`RoomyPages`] can grow by.
pub(crate) const ROOM: usize = 4 << 20;

/// The system's pages with [`ROOM`] behind each region, so that whether a block can grow
/// does not depend on where the kernel puts things.
#[derive(Debug, Default)]
pub(crate) struct RoomyPages {
    /// Bytes of each region with its room, by its base.
    whole: Mutex<HashMap<usize, usize>>,
    out: AtomicUsize,
    peak: AtomicUsize,
    grows: AtomicUsize,
    refusing: AtomicBool,
}

impl RoomyPages {
    /// Bytes of all regions, without the room behind them.
    pub(crate) fn out_bytes(&self) -> usize {
        self.out.load(Ordering::SeqCst)
    }

    /// The most that they ever were.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }

    /// How often growth was asked for.
    pub(crate) fn grows(&self) -> usize {
        self.grows.load(Ordering::SeqCst)
    }

    /// From now on no region grows, or they do again.
    pub(crate) fn refuse_growth(&self, refuse: bool) {
        self.refusing.store(refuse, Ordering::SeqCst);
    }

    fn count(&self, more: usize) {
        let out = self.out.fetch_add(more, Ordering::SeqCst) + more;
        self.peak.fetch_max(out, Ordering::SeqCst);
    }
}

// SAFETY: regions are the first parts of regions of `OsPages`, committed as a whole, which
// go back as they came.
unsafe impl PageSource for RoomyPages {
    fn page_bytes(&self) -> usize {
        OsPages::new().page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<Region, AllocError> {
        let whole = OsPages::new().reserve_committed(bytes + ROOM, align)?;
        let region = Region::new(whole.base(), whole.bytes() - ROOM, whole.align());
        self.count(region.bytes());
        let mut all = self.whole.lock().unwrap();
        all.insert(whole.base().addr().get(), whole.bytes());
        Ok(region)
    }

    unsafe fn commit(&self, _: &Region, _: Range<usize>) -> Result<(), AllocError> {
        Ok(())
    }

    unsafe fn decommit(&self, region: &Region, range: Range<usize>) -> Option<usize> {
        // SAFETY: the caller's promise; the region is the first part of one of `OsPages`.
        unsafe { OsPages::new().decommit(region, range) }
    }

    unsafe fn grow(&self, region: &mut Region, bytes: usize) -> Result<(), AllocError> {
        self.grows.fetch_add(1, Ordering::SeqCst);
        let capacity = region.bytes();
        let refused = AllocError::CannotGrow { bytes, capacity };
        let most = self.whole.lock().unwrap()[&region.base().addr().get()];
        if bytes > most || self.refusing.load(Ordering::SeqCst) {
            return Err(refused);
        }
        let wanted = bytes.next_multiple_of(self.page_bytes()).max(capacity);
        self.count(wanted - capacity);
        *region = Region::new(region.base(), wanted, region.align());
        Ok(())
    }

    unsafe fn release(&self, region: Region) {
        let mut all = self.whole.lock().unwrap();
        let bytes = all.remove(&region.base().addr().get()).expect("it is out");
        drop(all);
        let whole = Region::new(region.base(), bytes, region.align());
        self.out.fetch_sub(region.bytes(), Ordering::SeqCst);
        // SAFETY: the caller's promise, for the region that `reserve` took.
        unsafe { OsPages::new().release(whole) }
    }
}

/// All of a block: address, bytes, capacity, cookie, tag and header slot. Blocks of zero
/// bytes may be alike, so they are counted.
type Identity = String;

fn identity(block: &Block) -> Identity {
    format!("{block:?}")
}

/// What a [`Spy`] saw.
#[derive(Debug)]
pub(crate) struct SpyLog {
    pub(crate) fail: FailAt,
    out: Mutex<HashMap<Identity, usize>>,
    gone: AtomicBool,
    taken: AtomicUsize,
    returned: AtomicUsize,
    last: Mutex<Option<Request>>,
}

impl SpyLog {
    /// Blocks handed out so far.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Blocks given back so far.
    pub(crate) fn returned(&self) -> usize {
        self.returned.load(Ordering::Relaxed)
    }

    /// Has the allocator been destroyed?
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// The request that came last.
    pub(crate) fn last_request(&self) -> Request {
        self.last.lock().unwrap().expect("a request")
    }
}

/// Another allocator, watched.
#[derive(Debug)]
pub(crate) struct Spy<A> {
    upstream: A,
    pub(crate) log: Arc<SpyLog>,
}

impl<A> Spy<A> {
    pub(crate) fn new(upstream: A, fail: FailAt) -> Self {
        let log = Arc::new(SpyLog {
            fail,
            out: Mutex::default(),
            gone: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
            returned: AtomicUsize::new(0),
            last: Mutex::default(),
        });
        Self { upstream, log }
    }

    pub(crate) fn watching(upstream: A) -> (Self, Arc<SpyLog>) {
        let spy = Self::new(upstream, FailAt::never());
        let log = Arc::clone(&spy.log);
        (spy, log)
    }
}

impl<A> Drop for Spy<A> {
    fn drop(&mut self) {
        let before = self.log.gone.swap(true, Ordering::SeqCst);
        assert!(!before, "destroyed twice");
        let out = self.log.out.lock().unwrap();
        assert!(out.is_empty(), "destroyed with blocks out: {out:?}");
    }
}

// SAFETY: blocks come from the upstream and go back to it unchanged.
unsafe impl<A: Allocator> Allocator for Spy<A> {
    fn allocate_block(&self, request: Request) -> Result<Block, AllocError> {
        *self.log.last.lock().unwrap() = Some(request);
        self.log.fail.check(request.bytes())?;
        let block = self.upstream.allocate_block(request)?;
        let mut out = self.log.out.lock().unwrap();
        *out.entry(identity(&block)).or_default() += 1;
        self.log.taken.fetch_add(1, Ordering::Relaxed);
        Ok(block)
    }

    unsafe fn release_block(&self, block: Block) {
        assert!(!self.log.is_gone(), "released after the end: {block:?}");
        let mut out = self.log.out.lock().unwrap();
        let count = out
            .get_mut(&identity(&block))
            .unwrap_or_else(|| panic!("not out, or not as it went out: {block:?}"));
        *count -= 1;
        if *count == 0 {
            out.remove(&identity(&block));
        }
        self.log.returned.fetch_add(1, Ordering::Relaxed);
        drop(out);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.upstream.release_block(block) }
    }

    fn stats(&self) -> Stats {
        self.upstream.stats()
    }
}

/// Seeded numbers (splitmix64), so that a failure can be run again.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.roll() % limit as u64).unwrap()
    }
}

/// Ends the process when nothing moves any more, so that a deadlock is a failure. A test is
/// never late: only standing still counts.
#[derive(Debug)]
pub(crate) struct Watchdog {
    done: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

/// Looks at `progress` until [`done`](Watchdog::done).
pub(crate) fn watchdog(what: &'static str, progress: &Arc<AtomicUsize>) -> Watchdog {
    let (progress, done) = (Arc::clone(progress), Arc::new(AtomicBool::new(false)));
    let seen = Arc::clone(&done);
    let thread = std::thread::spawn(move || {
        let (mut last, mut looks) = (usize::MAX, 0);
        while !seen.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let now = progress.load(Ordering::Relaxed);
            looks = if now == last { looks + 1 } else { 0 };
            last = now;
            if looks == 3000 {
                eprintln!("{what}: no step in {looks} looks, after {now}");
                std::process::abort();
            }
        }
    });
    Watchdog { done, thread }
}

impl Watchdog {
    pub(crate) fn done(self) {
        self.done.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}
