use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use super::event::{Event, EventKind, LiveBlock};
use super::row::{Line, TraceError, TraceProblem as Problem};
use super::{Simulated, TraceHeader, replay};
use crate::memory::Allocator;

/// What a [`Trace`](super::Trace) had seen at one moment: a plain value, to be written,
/// read and played again.
///
/// ```
/// use tenslab::memory::{CpuAllocator, Recording, SharedAllocator, Trace};
///
/// let trace = std::sync::Arc::new(Trace::new(CpuAllocator::new()));
/// let _out = SharedAllocator::new(std::sync::Arc::clone(&trace)).allocate(100, 64)?;
/// let recording = trace.snapshot();
///
/// let mut csv = Vec::new();
/// recording.write_csv(&mut csv)?;
/// assert_eq!(Recording::from_csv(&csv)?, recording);
/// let error = Recording::from_csv(b"# tenslab-trace,1\n# history,perhaps\n").unwrap_err();
/// assert_eq!(error.to_string(), "line 2 of the trace: expected `history,on` or `off`");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recording {
    header: TraceHeader,
    events: Vec<Event>,
    live: Vec<LiveBlock>,
}

impl Recording {
    pub(super) fn new(header: TraceHeader, events: Vec<Event>, live: Vec<LiveBlock>) -> Self {
        Self {
            header,
            events,
            live,
        }
    }

    /// Whether history was kept, and how much was seen and dropped.
    #[must_use]
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The events that were kept, in their order. Empty in a
    /// [`live_snapshot`](super::Trace::live_snapshot).
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The blocks that were out, in the order of their allocation.
    #[must_use]
    pub fn live(&self) -> &[LiveBlock] {
        &self.live
    }

    /// Does it all again with another allocator, on this thread and in the recorded
    /// order, and gives everything back at the end. No byte of a block is touched (but
    /// where the allocator clears what has to be zero).
    ///
    /// The same recording through an allocator in the same state gives the same
    /// [layout](replay::ReplayReport::layout), unless that allocator is not deterministic.
    pub fn replay<A: Allocator + ?Sized>(&self, allocator: &A) -> super::ReplayReport {
        replay::run(&self.events, allocator)
    }

    /// As [`replay`](Self::replay), with a look at each event and without a byte that is touched:
    /// no request asks for zeroed memory. So a recording of more memory than there is can be
    /// played into an allocator that takes pages when they are touched.
    ///
    /// `each` is called after each event, and ends the replay where it breaks off. What is out
    /// then is given back, as at the end of the recording. It may look at the allocator; what it
    /// changes there (a trim) changes what comes.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use tenslab::memory::{CachingPool, PoolOptions, SharedAllocator, Trace};
    ///
    /// let trace = std::sync::Arc::new(Trace::new(CachingPool::new()?));
    /// let memory = SharedAllocator::new(std::sync::Arc::clone(&trace));
    /// let kept = memory.allocate_zeroed(3 << 20, 64)?;
    /// drop(memory.allocate(6 << 20, 64)?);
    ///
    /// let pool = PoolOptions::new().cap_bytes(8 << 20).build()?;
    /// let mut refused = Vec::new();
    /// let report = trace.snapshot().replay_with(&pool, |step| {
    ///     assert_eq!((step.live_bytes, pool.committed_bytes()), (3 << 20, 3 << 20));
    ///     refused.extend(step.refused.map(|error| (step.event.number, error)));
    ///     ControlFlow::Continue(())
    /// });
    /// assert_eq!((refused.len(), report.refused_here), (1, 1));
    /// assert!(refused[0].1.to_string().contains("6291456 bytes"));
    /// # drop(kept);
    /// # Ok::<(), tenslab::memory::AllocError>(())
    /// ```
    ///
    /// Cost: that of the calls, and about 100 bytes of heap for each block that is out and 16
    /// for each request. The allocator's [`stats`](Allocator::stats) are asked once, at the end,
    /// and not at each event: [`peak_reserved_bytes`](super::ReplayReport::peak_reserved_bytes)
    /// is what it had reserved then.
    pub fn replay_with<A: Allocator + ?Sized>(
        &self,
        allocator: &A,
        each: impl FnMut(&super::ReplayStep<'_>) -> ControlFlow<()>,
    ) -> super::ReplayReport {
        replay::run_untouched(&self.events, allocator, each)
    }

    /// Does it all again with addresses alone: no memory is taken, however large the
    /// blocks of the recording are.
    #[must_use]
    pub fn simulate(&self, simulated: &Simulated) -> super::ReplayReport {
        replay::run(&self.events, simulated)
    }
}

/// Puts the lines of a file together, and refuses what no trace could have written.
#[derive(Debug, Default)]
pub(super) struct Builder {
    recording: Recording,
    /// Can blocks grow in a file of this version?
    growth: bool,
    /// Addresses that are out according to the events so far, and their bytes.
    out: HashMap<usize, usize>,
    /// Addresses that are listed as live.
    listed: HashSet<usize>,
}

impl Builder {
    pub(super) fn new(header: TraceHeader, growth: bool) -> Self {
        Self {
            growth,
            recording: Recording {
                header,
                ..Recording::default()
            },
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, line: Line) -> Result<(), Problem> {
        match line {
            Line::Event(event) => self.event(event),
            Line::Live(block) => self.live(block),
        }
    }

    fn event(&mut self, event: Event) -> Result<(), Problem> {
        if !self.recording.live.is_empty() {
            return Err(Problem::Expected { expected: "live" });
        }
        let header = &self.recording.header;
        let expected = match self.recording.events.last() {
            // Below `seen_events`, so it does not overflow.
            Some(last) => last.number + 1,
            None => header.dropped_events,
        };
        if event.number != expected || event.number >= header.seen_events {
            return Err(Problem::Number {
                expected,
                found: event.number,
            });
        }
        match event.kind {
            EventKind::Allocate(allocation) if allocation.request.bytes() > 0 => {
                let address = allocation.address;
                let bytes = allocation.request.bytes();
                if self.out.insert(address, bytes).is_some() {
                    return Err(Problem::AlreadyOut { address });
                }
            }
            EventKind::Grow { address, bytes, .. } => {
                if !self.growth {
                    return Err(Problem::Value { column: "event" });
                }
                // Not there where its allocation was dropped.
                let before = self.out.get(&address).copied().unwrap_or(0);
                if bytes < before {
                    return Err(Problem::Shrank { before, bytes });
                }
                self.out.insert(address, bytes);
            }
            EventKind::Release { address, bytes, .. } if bytes > 0 => {
                // Not there where its allocation was dropped.
                self.out.remove(&address);
            }
            _ => {}
        }
        self.recording.events.push(event);
        Ok(())
    }

    fn live(&mut self, block: LiveBlock) -> Result<(), Problem> {
        let address = block.allocation.address;
        if !self.listed.insert(address) {
            return Err(Problem::AlreadyOut { address });
        }
        let next = self.recording.live.last().map_or(0, |last| last.number + 1);
        let seen = self.recording.header.seen_events;
        if block.number < next || block.number >= seen {
            return Err(Problem::Number {
                expected: next,
                found: block.number,
            });
        }
        self.recording.live.push(block);
        Ok(())
    }

    /// The whole, if nothing is missing. `line`: where the file ends.
    pub(super) fn finish(self, line: usize) -> Result<Recording, TraceError> {
        let Recording {
            header,
            events,
            live,
        } = &self.recording;
        for (expected, found) in [
            (header.events, events.len()),
            (header.live_blocks, live.len()),
        ] {
            let found = found as u64;
            if expected != found {
                let problem = Problem::Lines { expected, found };
                return Err(TraceError { line, problem });
            }
        }
        Ok(self.recording)
    }
}
