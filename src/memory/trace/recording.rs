use std::collections::{HashMap, HashSet};

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

    /// Does it all again with something that is like an allocator.
    pub(in crate::memory) fn replay_into(
        &self,
        target: &impl replay::Target,
    ) -> super::ReplayReport {
        replay::run(&self.events, target)
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
