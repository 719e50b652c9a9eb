//! `recorded`, `replay`: a recording, through CSV, played into everybody.
//!
//! ```text
//!   tensors ─▶ Trace ─▶ CSV ─▶ Recording ─┬─▶ events: a timed cell, and the memory held
//!                   (or --trace FILE)     ├─▶ replay(&allocator): the real upstreams
//!                                         └─▶ simulate(&Simulated): addresses alone
//! ```
//!
//! What is recorded is the scratch and the KV cache of a model of SmolLM2's shape (30
//! layers, hidden 576, 1,536 in the middle, 49,152 words) that serves 24 requests, four
//! at a time, with nothing computed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tenslab::memory::{
    CachingPool, CpuAllocator, EventKind, Meter, PoolOptions, Recording, ReplayReport, Simulated,
    Tag, Trace, TraceLimits,
};
use tenslab::{DType, SharedAllocator, Tensor};

use crate::pool_workloads::Event;
use crate::solo::{Figures, Line};

/// Tokens of the prompts.
const PROMPTS: [usize; 24] = [
    37, 512, 8, 1_430, 96, 210, 1_024, 15, 61, 333, 780, 19, 128, 45, 1_900, 256, 72, 11, 640, 150,
    29, 405, 88, 1_150,
];

/// Requests at a time, and tokens that each of them generates.
const SEATS: usize = 4;
const GENERATED: usize = 12;

/// Tokens of a chunk of keys and values, of all layers.
const CHUNK: usize = 256;

/// As CSV: what the model took and gave back.
pub fn record() -> Vec<u8> {
    let limits = TraceLimits {
        events: 1 << 17,
        live_blocks: 1 << 12,
    };
    let trace = Arc::new(Trace::with_limits(CpuAllocator::new(), limits));
    let all = SharedAllocator::new(Arc::clone(&trace));
    let (scratch, kv) = (all.with_tag(Tag::Scratch), all.with_tag(Tag::Kv));
    let mut waiting = VecDeque::from(PROMPTS);
    let mut served: Vec<Request> = Vec::new();
    loop {
        while served.len() < SEATS
            && let Some(prompt) = waiting.pop_front()
        {
            let mut request = Request::default();
            request.append(prompt, &kv);
            pass(prompt, prompt, &scratch);
            served.push(request);
        }
        if served.is_empty() {
            break;
        }
        let longest = served.iter().map(|request| request.tokens).max();
        pass(served.len(), longest.unwrap_or(1), &scratch);
        for request in &mut served {
            request.append(1, &kv);
            request.generated += 1;
        }
        served.retain(|request| request.generated < GENERATED);
    }
    let recording = trace.snapshot();
    assert_eq!(recording.header().dropped_events, 0, "all of it is there");
    let mut csv = Vec::new();
    recording.write_csv(&mut csv).expect("writing to memory");
    csv
}

/// Keys and values of a request.
#[derive(Default)]
struct Request {
    tokens: usize,
    generated: usize,
    chunks: Vec<Tensor>,
}

impl Request {
    fn append(&mut self, tokens: usize, kv: &SharedAllocator) {
        self.tokens += tokens;
        while self.chunks.len() * CHUNK < self.tokens {
            self.chunks.push(empty([30 * 2 * 3, CHUNK, 64], kv));
        }
    }
}

/// One pass through the model: `tokens` at once, over at most `context`.
fn pass(tokens: usize, context: usize, scratch: &SharedAllocator) {
    let hidden = empty([1, tokens, 576], scratch);
    for _layer in 0..30 {
        let normed = empty([1, tokens, 576], scratch);
        let fused = empty([1, tokens, 960], scratch);
        let scores = empty([9, tokens.min(64), context], scratch);
        let attended = empty([1, tokens, 576], scratch);
        drop((scores, fused, normed, attended));
        let (gate, up) = (
            empty([1, tokens, 1536], scratch),
            empty([1, tokens, 1536], scratch),
        );
        let down = empty([1, tokens, 576], scratch);
        drop((gate, up, down));
    }
    let logits = empty([1, tokens.min(SEATS), 49_152], scratch);
    drop((hidden, logits));
}

fn empty(shape: [usize; 3], allocator: &SharedAllocator) -> Tensor {
    Tensor::empty(shape, DType::F16, allocator).expect("memory for the recording")
}

/// Its blocks, as everybody can play them. A block that grew is a new one, and what it was
/// before comes back.
pub fn events(recording: &Recording) -> Vec<Event> {
    let mut events = Vec::new();
    let mut out = HashMap::new();
    let mut ids = 0;
    for event in recording.events() {
        let (taken, back) = match event.kind {
            EventKind::Allocate(made) => (Some((made.address, made.request.bytes())), None),
            EventKind::Grow { address, bytes, .. } => (Some((address, bytes)), Some(address)),
            EventKind::Release { address, .. } => (None, Some(address)),
            EventKind::Refuse(_) | EventKind::Mark(_) => (None, None),
        };
        let old = back.and_then(|address| out.remove(&address));
        if let Some((address, bytes)) = taken.filter(|(_, bytes)| *bytes > 0) {
            out.insert(address, ids);
            events.push(Event::Take { id: ids, bytes });
            ids += 1;
        }
        events.extend(old.map(|id| Event::GiveBack { id }));
    }
    events
}

/// What replaying into each upstream costs and comes to, in turns.
pub fn replay(recording: &Recording, rounds: u32) -> Vec<Line> {
    let cpu = CpuAllocator::new();
    let metered = Meter::new(CpuAllocator::new());
    let pebibyte = Simulated::new(1 << 50);
    let pool = CachingPool::new().expect("a pool for the recording");
    let dry_run = || {
        let need = PoolOptions::new().dry_run(recording);
        need.expect("a pool for the recording").replay
    };
    let upstreams: [(&str, &dyn Fn() -> ReplayReport); 5] = [
        ("pool", &|| recording.replay(&pool)),
        ("cpu", &|| recording.replay(&cpu)),
        ("metered cpu", &|| recording.replay(&metered)),
        ("(pool, dry run)", &dry_run),
        ("(Simulated)", &|| recording.simulate(&pebibyte)),
    ];
    let mut reports = upstreams.map(|(_, replay)| replay());
    let mut best = upstreams.map(|_| f64::INFINITY);
    for _ in 0..rounds {
        for ((_, replay), (best, report)) in upstreams.iter().zip(best.iter_mut().zip(&mut reports))
        {
            let began = Instant::now();
            *report = replay();
            let ns = began.elapsed().as_nanos() as f64;
            *best = best.min(ns / report.operations as f64);
        }
    }
    let line = |((name, _), (best, report)): ((&str, _), (f64, ReplayReport))| Line {
        cell: "replay".to_owned(),
        contender: name.to_owned(),
        figures: figures(best, &report),
    };
    let measured = best.into_iter().zip(reports);
    upstreams.into_iter().zip(measured).map(line).collect()
}

fn figures(min_ns: f64, report: &ReplayReport) -> Figures {
    let mut figures = Figures::from([
        ("min_ns".to_owned(), min_ns),
        ("operations".to_owned(), report.operations as f64),
        ("mismatches".to_owned(), report.mismatches() as f64),
        (
            "peak_live_bytes".to_owned(),
            report.peak_requested_bytes as f64,
        ),
    ]);
    // 0 where the upstream does not count.
    if report.peak_reserved_bytes > 0 {
        let reserved = report.peak_reserved_bytes as f64;
        figures.insert("held_bytes".to_owned(), reserved);
        let ratio = reserved / report.peak_requested_bytes as f64;
        figures.insert("held_ratio".to_owned(), ratio);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool_workloads::peak_live_bytes;

    #[test]
    fn two_recordings_have_the_same_events_and_each_replays_without_a_mismatch() {
        let recordings = [record(), record()].map(|csv| Recording::from_csv(&csv).unwrap());
        let [one, other] = recordings.each_ref().map(events);
        assert_eq!(one, other);
        let lines = replay(&recordings[0], 1);
        assert_eq!(lines.len(), 5);
        for line in lines {
            assert_eq!(line.figures["mismatches"], 0.0, "{line:?}");
            assert_eq!(line.figures["operations"], one.len() as f64, "{line:?}");
            let peak = peak_live_bytes(&one) as f64;
            assert_eq!(line.figures["peak_live_bytes"], peak, "{line:?}");
        }
    }
}
