//! How much memory a policy holds for what is out, on four workloads that strand memory.
//!
//! The workloads are the shared folder's `data/pool_sim/sim.py`, and so are the numbers of
//! the rules that they are measured against: `scripts/pool_pins.py` prints them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod pool_workloads;

#[cfg(not(tenslab_portable))]
use tenslab::memory::{Buffer, CachingPool, SharedAllocator};

use pool_workloads::{Addresses, Event, Pins, PoolWorkload, Rule, fingerprint, peak_live_bytes};

#[test]
fn the_workloads_are_those_of_the_simulator_event_for_event() {
    for workload in PoolWorkload::ALL {
        let events = workload.events();
        let takes = |event: &&Event| matches!(event, Event::Take { .. });
        let found = Pins {
            events: events.len(),
            blocks: events.iter().filter(takes).count(),
            peak_live_bytes: peak_live_bytes(&events),
            fingerprint: fingerprint(&events),
            reserved_bytes: Rule::ALL.map(|rule| reserved_bytes(rule, &events)),
        };
        assert_eq!(found, workload.pins(), "{}", workload.name());
    }
}

/// What a rule has reserved at the end. No two blocks overlap meanwhile.
fn reserved_bytes(rule: Rule, events: &[Event]) -> usize {
    let mut addresses = Addresses::new(rule);
    let mut out = std::collections::BTreeMap::new();
    let mut places = Vec::new();
    for event in events {
        match *event {
            Event::Take { bytes, .. } => {
                let start = addresses.take(bytes);
                let below = out.range(..start + bytes).next_back();
                let apart = below.is_none_or(|(_, end)| *end <= start);
                assert!(apart, "{}: {bytes} bytes at {start} overlap", rule.name());
                out.insert(start, start + bytes);
                places.push(start);
            }
            Event::GiveBack { id } => {
                out.remove(&places[id]);
                addresses.give_back(places[id]);
            }
        }
    }
    addresses.reserved_bytes()
}

/// The most that the pool had committed, as a multiple of the most that was live, in thousandths.
#[cfg(not(tenslab_portable))]
fn pool_ratio(workload: PoolWorkload) -> usize {
    let pool = CachingPool::new().unwrap();
    let memory = SharedAllocator::new(pool.clone());
    let events = workload.events();
    let mut out: Vec<Option<Buffer>> = Vec::new();
    for event in &events {
        match *event {
            Event::Take { id, bytes } => {
                assert_eq!(id, out.len());
                out.push(Some(memory.allocate(bytes, 64).unwrap()));
            }
            Event::GiveBack { id } => out[id] = None,
        }
    }
    let report = pool.report();
    assert_eq!(
        report.rungs.trimmed + report.rungs.refused,
        0,
        "without trimming"
    );
    report.peak_committed_bytes * 1000 / peak_live_bytes(&events)
}

/// SpecForge #739, fastsafetensors #104; ort #25800: batches of varying length strand nothing.
// Where the heap stands in for pages, addresses are memory, and are not reserved by the gigabyte.
#[cfg(not(tenslab_portable))]
#[test]
fn the_pool_holds_hardly_more_than_what_is_out() {
    for (workload, bound) in [
        (PoolWorkload::Churn, 1250),
        (PoolWorkload::Random, 1150),
        (PoolWorkload::Prefill, 1150),
        (PoolWorkload::Drift, 1020),
    ] {
        let ratio = pool_ratio(workload);
        println!("{}: {ratio} of 1000 (at most {bound})", workload.name());
        assert!(ratio <= bound, "{}: {ratio} > {bound}", workload.name());
    }
}
