//! The threads that fill a slab, and who is told how far they are.

use std::ops::ControlFlow;
use std::thread;

use super::options::{LoadOptions, LoadProgress};
use super::pieces::{Feed, PIECE_BYTES, Piece};
use super::plan::Plan;
use super::reader::{Found, Reader, Reads};
use crate::sync::Mutex;
use crate::weights::{Checkpoint, WeightsError};

/// More threads than this do not read faster; they would only add scratch.
const MAX_THREADS: usize = 16;

/// Whom the calling thread tells how far it has come, and who may say that it is enough.
pub(super) struct Listener<'a> {
    progress: &'a mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    /// Bytes of what was done before.
    before_bytes: u64,
    total_bytes: u64,
}

impl<'a> Listener<'a> {
    pub(super) fn new(
        total_bytes: u64,
        progress: &'a mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Self {
        Self {
            progress,
            before_bytes: 0,
            total_bytes,
        }
    }

    /// Tells that so many bytes of this part of the work are done. An error is the wish to end.
    pub(super) fn tell(&mut self, checkpoint: &Checkpoint, bytes: u64) -> Result<(), WeightsError> {
        let done_bytes = self.before_bytes.saturating_add(bytes);
        let total_bytes = self.total_bytes;
        let progress = LoadProgress {
            done_bytes,
            total_bytes,
        };
        match (self.progress)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(WeightsError::Cancelled {
                path: checkpoint.path().into(),
                done_bytes,
                total_bytes,
            }),
        }
    }

    /// A part of the work, of so many bytes, is done. The next part will tell.
    #[cfg(feature = "sha256")]
    pub(super) fn part_is_done(&mut self, bytes: u64) {
        self.before_bytes = self.before_bytes.saturating_add(bytes);
    }
}

/// Runs `work` on the calling thread, as number 0, and on others. Returns on how many: a thread
/// that the system does not give is one thread less, no failure.
pub(super) fn on_threads(threads: usize, other: impl Fn() + Sync, own: impl FnOnce()) -> usize {
    thread::scope(|scope| {
        let mut started = 1;
        for number in 1..threads.min(MAX_THREADS) {
            let builder = thread::Builder::new().name(format!("tenslab-load-{number}"));
            if builder.spawn_scoped(scope, &other).is_ok() {
                started += 1;
            }
        }
        own();
        started
    })
}

/// What the reading threads share. Held for the cut of one piece, never for a read.
struct Work<'a> {
    feed: Feed<'a>,
    done_bytes: u64,
    /// The failure with the lowest piece number so far.
    failed: Option<(usize, WeightsError)>,
    reads: Reads,
    found: Vec<Found>,
}

impl<'a> Work<'a> {
    /// The next piece. None after a failure: the rest need not be read.
    fn next(&mut self) -> Option<Piece<'a>> {
        match self.failed {
            None => self.feed.next(),
            Some(_) => None,
        }
    }

    fn fail(&mut self, number: usize, error: WeightsError) {
        if self
            .failed
            .as_ref()
            .is_none_or(|(first, _)| number < *first)
        {
            self.failed = Some((number, error));
        }
    }
}

/// What the threads did.
pub(super) struct Filled {
    pub(super) threads: usize,
    pub(super) reads: Reads,
    /// One for each tensor that has such values, in their order.
    pub(super) found: Vec<Found>,
}

/// Fills the slab.
pub(super) fn fill(
    checkpoint: &Checkpoint,
    plan: &Plan,
    slab: &mut [u8],
    options: &LoadOptions,
    listener: &mut Listener<'_>,
) -> Result<Filled, WeightsError> {
    listener.tell(checkpoint, 0)?;
    let total_bytes = plan.source_bytes;
    // A thread for every piece, so that small files do not start any.
    let pieces = usize::try_from(total_bytes / PIECE_BYTES as u64).unwrap_or(usize::MAX);
    let threads = options.threads.min(pieces.max(1));
    let work = Mutex::new(Work {
        feed: Feed::new(checkpoint.entries(), &plan.places, slab),
        done_bytes: 0,
        failed: None,
        reads: Reads::default(),
        found: Vec::new(),
    });
    let read = |done: &mut dyn FnMut(u64) -> Result<(), WeightsError>| {
        let reader = Reader::new(checkpoint, options.non_finite);
        read_pieces(reader, &work, done);
    };
    let threads = on_threads(
        threads,
        || read(&mut |_| Ok(())),
        || {
            read(&mut |done_bytes| {
                // The end is told below, once, when it is certain.
                match done_bytes < total_bytes {
                    true => listener.tell(checkpoint, done_bytes),
                    false => Ok(()),
                }
            });
        },
    );
    let mut work = work.lock();
    if let Some((_, error)) = work.failed.take() {
        return Err(error);
    }
    listener.tell(checkpoint, total_bytes)?;
    Ok(Filled {
        threads,
        reads: work.reads,
        found: joined(std::mem::take(&mut work.found)),
    })
}

/// One thread: takes pieces until there are none, or until some thread failed.
fn read_pieces(
    mut reader: Reader<'_>,
    work: &Mutex<Work<'_>>,
    done: &mut dyn FnMut(u64) -> Result<(), WeightsError>,
) {
    let failed = loop {
        // The guard goes at the end of this statement, before the read.
        let next = work.lock().next();
        let Some(piece) = next else {
            break reader.close().err();
        };
        let bytes = piece.source_bytes as u64;
        if let Err(error) = reader.read(piece) {
            break Some(error);
        }
        let done_bytes = {
            let mut work = work.lock();
            work.done_bytes += bytes;
            work.done_bytes
        };
        if let Err(enough) = done(done_bytes) {
            // Before whatever fails meanwhile.
            reader.last = 0;
            break Some(enough);
        }
    };
    let mut work = work.lock();
    work.reads.add(reader.reads);
    work.found.append(&mut reader.found);
    if let Some(error) = failed {
        work.fail(reader.last, error);
    }
}

/// What was found in the pieces of one tensor, as one: the same, whoever found it.
fn joined(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_unstable_by_key(|found| (found.place, found.first));
    found.dedup_by(|next, kept| {
        let same = next.place == kept.place;
        if same {
            kept.count += next.count;
        }
        same
    });
    found
}
