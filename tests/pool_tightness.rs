//! How much memory a policy holds for what is out, on four workloads that strand memory.
//!
//! The workloads are the shared folder's `data/pool_sim/sim.py`, and so are the numbers of
//! the rules that they are measured against: `scripts/pool_pins.py` prints them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod pool_workloads;

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
