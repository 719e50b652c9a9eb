//! Every cell of the table. A new one is a line here.

use tenslab::memory::Recording;

use crate::held::{self, Held, Load};
use crate::pool_workloads::{Event, PoolWorkload};
use crate::recorded;
use crate::report::{KIB, MIB};
use crate::roster::Group;
use crate::run::{Options, Run};
use crate::spike::Spike;
use crate::stall::Stall;
use crate::workloads::{
    Larson, Mleak, Mstress, Pair, Part, Play, Rptest, Scratch, Script, Step, Steps, Xmalloc,
};

/// All of them, in the order of the table.
pub fn all(run: &mut Run) {
    pairs(run);
    threads(run);
    plays(run);
    steps(run);
    held(run);
    whole_processes(run);
}

/// B1.
fn pairs(run: &mut Run) {
    let sizes = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB];
    let sizes = match run.options {
        Options { quick: true, .. } => &sizes[..4],
        Options { long: true, .. } => &sizes[..],
        _ => &sizes[..5],
    };
    for &bytes in sizes {
        for touched in [false, true] {
            for threads in [1, 2] {
                let pair = Pair {
                    bytes,
                    touched,
                    threads,
                };
                run.race(&pair, &[&[Group::Heights], one_size(bytes)].concat());
            }
        }
    }
    // Between them, one thread alone.
    for bytes in [16, 32, 128, 256, 512, 4096].map(|kib| kib * KIB) {
        for touched in [false, true] {
            let pair = Pair {
                bytes,
                touched,
                threads: 1,
            };
            run.race(&pair, one_size(bytes));
        }
    }
}

/// Who competes where all blocks are so large.
fn one_size(bytes: usize) -> &'static [Group] {
    match bytes {
        MIB.. => &[Group::OneSize, Group::FreshPages],
        _ => &[Group::OneSize],
    }
}

/// B4 to B9.
fn threads(run: &mut Run) {
    for threads in [1, 2] {
        run.race(&Scratch { bytes: 8, threads }, &[Group::OneSize]);
    }
    for bytes in [4 * KIB, 64 * KIB] {
        for threads in [1, 2] {
            run.race(&Larson { bytes, threads }, &[Group::OneSize]);
        }
        for threads in [1, 2] {
            run.race(&Xmalloc { bytes, threads }, &[Group::OneSize]);
        }
        run.race(&Rptest { bytes }, &[Group::OneSize]);
        for threads in [1, 2] {
            run.race(&Mstress { bytes, threads }, &[Group::OneSize]);
        }
        run.race(&Mleak { bytes }, &[Group::OneSize]);
    }
}

/// B2, B3, B10 and B12, timed. Touched they are played in small and not to their ends: where
/// every block's pages are fresh, the whole would take minutes.
fn plays(run: &mut Run) {
    for (workload, small, scale) in [
        (PoolWorkload::Random, 4_000, 64),
        (PoolWorkload::Churn, 200, 16),
        (PoolWorkload::Prefill, 810, 16),
        (PoolWorkload::Drift, 800, 64),
    ] {
        let events = workload.events();
        play(run, workload.name(), &events, events.len(), 1);
        play(run, workload.name(), &events, small, scale);
    }
    let recording = recording(run);
    let events = recorded::events(&recording);
    play(run, "recorded", &events, events.len(), 1);
    play(run, "recorded", &events, events.len(), 16);
    run.lines("replay", |settings| {
        recorded::replay(&recording, settings.rounds)
    });
}

/// The first `count` events: as they are and untouched, or in small and touched.
fn play(run: &mut Run, name: &'static str, events: &[Event], count: usize, scale: usize) {
    let count = if run.options.quick {
        count.min(1_000)
    } else {
        count
    };
    let play = Play {
        name,
        script: Script::new(&events[..count], scale),
        // Of all of them, so that a quick run has the same names.
        bytes: Script::new(events, scale).roughly(),
        touched: scale > 1,
    };
    run.race(&play, &[Group::AnySize]);
}

fn recording(run: &Run) -> Recording {
    let csv = match &run.options.trace {
        None => recorded::record(),
        Some(path) => {
            std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        }
    };
    Recording::from_csv(&csv).unwrap_or_else(|error| panic!("{error}"))
}

/// B13, timed.
fn steps(run: &mut Run) {
    for touched in [false, true] {
        run.race(&Steps::new(500, touched), &[Group::AnySize, Group::Arenas]);
    }
    for part in [Part::Take, Part::End] {
        for blocks in [10, 1_000, 100_000] {
            // Where nothing is taken back at once, a step has no end.
            let groups: &[Group] = match part {
                Part::Take => &[Group::Arenas, Group::Keepers],
                Part::End => &[Group::Arenas],
            };
            run.race(&Step { blocks, part }, groups);
        }
    }
}

/// B2, B3, B10, B12 and B13 again: the memory that they hold.
fn held(run: &mut Run) {
    let part = if run.options.quick { 40 } else { 1 };
    for workload in PoolWorkload::ALL {
        let events = workload.events();
        let events = &events[..events.len() / part];
        let held = Held {
            name: workload.name(),
            load: Load::Script(Script::new(events, 1)),
        };
        run.solo(&held, &[Group::Keepers], || {
            if part == 1 {
                held::check(workload, events);
            }
            held::simulated(held.name, events)
        });
    }
    let recording = recording(run);
    let events = recorded::events(&recording);
    let held = Held {
        name: "recorded",
        load: Load::Script(Script::new(&events, 1)),
    };
    run.solo(&held, &[Group::Keepers], || {
        held::simulated(held.name, &events)
    });
    let held = Held {
        name: "steps",
        load: Load::Steps(10_000 / part),
    };
    run.solo(&held, &[Group::Keepers, Group::Arenas], Vec::new);
}

/// What is left of a spike, and who waits for a trim.
fn whole_processes(run: &mut Run) {
    let quick = run.options.quick;
    let gibibyte = if quick { 256 * MIB } else { 1024 * MIB };
    for bytes in [16 * MIB, 16 * KIB] {
        let spike = Spike {
            bytes,
            spike_bytes: gibibyte,
        };
        run.solo(&spike, &[Group::Keepers], Vec::new);
    }
    for bytes in [64 * KIB, 4 * MIB] {
        let stall = Stall {
            bytes,
            dirty_bytes: gibibyte,
            rounds: if quick { 1 } else { 8 },
            cores: run.settings.cores.clone(),
        };
        run.solo(&stall, &[Group::Keepers], Vec::new);
    }
}
