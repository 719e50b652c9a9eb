//! Playing a recording into pools.

use std::fmt;
use std::ops::ControlFlow;

use serde::Serialize;
use tenslab::memory::{
    AllocError, CachingPool, DryRun, Event, EventKind, PoolMap, PoolOptions, PoolReport, Recording,
    ReplayReport, Request, Tag,
};

use crate::cli::progress::Progress;

/// Points of the series at most.
pub(super) const POINTS: usize = 400;

/// Refusals that are kept; the others are counted.
pub(super) const REFUSALS: usize = 100;

/// The most of each in some events that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Point {
    /// The first of them.
    pub(super) event: u64,
    pub(super) requested_bytes: usize,
    pub(super) live_bytes: usize,
    pub(super) committed_bytes: usize,
}

/// A request that had been served when it was recorded, or growth, and was refused here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Refusal {
    pub(super) event: u64,
    pub(super) bytes: usize,
    pub(super) tag: Tag,
    #[serde(serialize_with = "as_text")]
    pub(super) error: AllocError,
}

fn as_text<S: serde::Serializer>(error: &AllocError, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(error)
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) replay: ReplayReport,
    /// After the last event, before what was left over went back.
    pub(super) pool: PoolReport,
    pub(super) series: Vec<Point>,
    /// The first event after which as much was committed as never before or after.
    pub(super) peak: Point,
    pub(super) refusals: Vec<Refusal>,
    pub(super) need: DryRun,
    /// After which event the map is.
    pub(super) at: u64,
    pub(super) map: PoolMap,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum Trouble {
    Pool(AllocError),
    NoSuchEvent { at: u64, first: u64, last: u64 },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(error) => write!(
                f,
                "cannot make a pool to replay it into: {error}; let the process have more \
                 addresses (ulimit -v)"
            ),
            Self::NoSuchEvent { at, first, last } => write!(
                f,
                "there is no event {at} to show a map after: give --at {first} to {last}"
            ),
        }
    }
}

impl From<AllocError> for Trouble {
    fn from(error: AllocError) -> Self {
        Self::Pool(error)
    }
}

/// What is noted while the recording is played.
struct Notes {
    events: usize,
    /// Events so far.
    through: usize,
    series: Vec<Point>,
    peak: Option<Point>,
    refusals: Vec<Refusal>,
}

impl Notes {
    fn new(events: usize) -> Self {
        Self {
            events,
            through: 0,
            series: Vec::with_capacity(events.min(POINTS)),
            peak: None,
            refusals: Vec::new(),
        }
    }

    fn note(&mut self, now: Point) {
        if self
            .peak
            .is_none_or(|peak| now.committed_bytes > peak.committed_bytes)
        {
            self.peak = Some(now);
        }
        let points = self.events.min(POINTS);
        let point = self.through * points / self.events;
        self.through += 1;
        match self.series.get_mut(point) {
            None => self.series.push(now),
            Some(most) => {
                most.requested_bytes = most.requested_bytes.max(now.requested_bytes);
                most.live_bytes = most.live_bytes.max(now.live_bytes);
                most.committed_bytes = most.committed_bytes.max(now.committed_bytes);
            }
        }
    }

    fn refuse(&mut self, event: &Event, error: AllocError) {
        let (bytes, tag) = match &event.kind {
            EventKind::Allocate(allocation) => of(&allocation.request),
            &EventKind::Grow { bytes, tag, .. } => (bytes, tag),
            // As it was recorded.
            _ => return,
        };
        if self.refusals.len() < REFUSALS {
            self.refusals.push(Refusal {
                event: event.number,
                bytes,
                tag,
                error,
            });
        }
    }
}

fn of(request: &Request) -> (usize, Tag) {
    (request.bytes(), request.tag())
}

/// Plays the events, of which there is at least one.
pub(super) fn run(
    recording: &Recording,
    options: &PoolOptions,
    at: Option<u64>,
) -> Result<Outcome, Trouble> {
    let events = recording.events();
    let number = |event: Option<&Event>| event.map_or(0, |event| event.number);
    let (first, last) = (number(events.first()), number(events.last()));
    if let Some(at) = at
        && !(first..=last).contains(&at)
    {
        return Err(Trouble::NoSuchEvent { at, first, last });
    }
    let pool = options.build()?;
    let mut report = None;
    let mut notes = Notes::new(events.len());
    let progress = Progress::new(events.len(), "events");
    let replay = recording.replay_with(&pool, |step| {
        let event = step.event;
        notes.note(Point {
            event: event.number,
            requested_bytes: step.requested_bytes,
            live_bytes: step.live_bytes,
            committed_bytes: pool.committed_bytes(),
        });
        if let Some(error) = step.refused {
            notes.refuse(event, error);
        }
        if event.number == last {
            report = Some(pool.report());
        }
        progress.at(notes.through);
        ControlFlow::Continue(())
    });
    drop(progress);
    let peak = notes.peak.unwrap_or(Point {
        event: first,
        requested_bytes: 0,
        live_bytes: 0,
        committed_bytes: 0,
    });
    let report = report.unwrap_or_else(|| pool.report());
    // Its pages and records go before the next pool has its own.
    drop(pool);
    let at = at.unwrap_or(peak.event);
    let map = map_after(recording, &options.build()?, at);
    Ok(Outcome {
        replay,
        pool: report,
        series: notes.series,
        peak,
        refusals: notes.refusals,
        need: options.dry_run(recording)?,
        at,
        map,
    })
}

/// The map of a new pool after an event.
fn map_after(recording: &Recording, pool: &CachingPool, at: u64) -> PoolMap {
    let mut map = None;
    recording.replay_with(pool, |step| {
        if step.event.number < at {
            return ControlFlow::Continue(());
        }
        map = Some(pool.map());
        ControlFlow::Break(())
    });
    map.unwrap_or_else(|| pool.map())
}
