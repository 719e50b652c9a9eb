//! Four workloads that strand memory in pools which round or cut up badly, as lists of events.
//!
//! ```text
//!   PoolWorkload::Prefill.events()   Take {0, 4210688}  Take {1, 12632064} …  GiveBack {0} …
//!      │
//!      ├──▶ a real allocator, whose pages are counted
//!      └──▶ Addresses::new(Rule::PyTorch), a model that has addresses alone
//! ```
//!
//! They are those of the shared folder's `data/pool_sim/sim.py`, event for event: the same
//! numbers of Python's Mersenne Twister, seeded with 7, drawn in the same order
//! ([`python`]). `scripts/pool_pins.py` prints what is pinned here of that program, and
//! `tests/pool_tightness.rs` compares.
//!
//! The bench of the peers (benches/peers) plays the same lists, and includes this file.

mod python;
mod rules;

use std::collections::VecDeque;

pub(crate) use self::rules::{Addresses, Rule};

use self::python::Random;

const MIB: usize = 1 << 20;

/// One step of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A block goes out. Ids count up from 0.
    Take { id: usize, bytes: usize },
    /// The block of that id comes back, which it does at most once.
    GiveBack { id: usize },
}

/// A seeded workload. What is still out at its end is given back by whoever plays it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolWorkload {
    /// One of 20 slots is filled anew with 5 to 25 MiB, 3,000 times (`w1`; B3).
    Churn,
    /// 20,000 blocks of up to 4 MiB, 73 takes in 100 steps, at most 1 GiB out (`w2`; B2).
    Random,
    /// 600 steps of prefill or decode, and KV chunks that stay for a while (`w3`; B10).
    Prefill,
    /// A batch that grows from 64 to 191, all of its blocks given back after each (`w4`; B10).
    Drift,
}

/// What `sim.py` says of a workload, as `scripts/pool_pins.py` printed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pins {
    /// Steps.
    pub(crate) events: usize,
    /// Of which take a block.
    pub(crate) blocks: usize,
    /// The most that was asked for by blocks that were out at one time.
    pub(crate) peak_live_bytes: usize,
    /// FNV-1a of the events, see [`fingerprint`].
    pub(crate) fingerprint: u64,
    /// What each of [`Rule::ALL`] had reserved at the end.
    pub(crate) reserved_bytes: [usize; Rule::ALL.len()],
}

impl PoolWorkload {
    pub(crate) const ALL: [Self; 4] = [Self::Churn, Self::Random, Self::Prefill, Self::Drift];

    /// One word for tables and messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Churn => "churn",
            Self::Random => "random",
            Self::Prefill => "prefill",
            Self::Drift => "drift",
        }
    }

    /// All steps, in order. Made anew at each call: some milliseconds.
    pub(crate) fn events(self) -> Vec<Event> {
        let mut script = Script::default();
        let mut random = Random::new(7);
        match self {
            Self::Churn => churn(&mut script, &mut random),
            Self::Random => at_random(&mut script, &mut random),
            Self::Prefill => prefill(&mut script, &mut random),
            Self::Drift => drift(&mut script),
        }
        script.events
    }

    pub(crate) fn pins(self) -> Pins {
        match self {
            Self::Churn => Pins {
                events: 5_980,
                blocks: 3_000,
                peak_live_bytes: 397_740_259,
                fingerprint: 0xc4fd_6dd4_8b6f_cd72,
                reserved_bytes: [589_299_712, 1_056_964_608, 480_247_808],
            },
            Self::Random => Pins {
                events: 40_000,
                blocks: 20_000,
                peak_live_bytes: 1_073_741_736,
                fingerprint: 0x584d_e75f_c453_03bc,
                reserved_bytes: [1_272_971_264, 2_145_386_496, 1_199_570_944],
            },
            Self::Prefill => Pins {
                events: 48_560,
                blocks: 24_300,
                peak_live_bytes: 947_166_720,
                fingerprint: 0xa9f6_56c8_27cb_c8f2,
                reserved_bytes: [1_675_624_448, 2_132_803_584, 1_067_450_368],
            },
            Self::Drift => Pins {
                events: 25_600,
                blocks: 12_800,
                peak_live_bytes: 1_910_000_000,
                fingerprint: 0x86ee_f698_877e_4b25,
                reserved_bytes: [9_059_696_640, 2_134_900_736, 1_910_505_472],
            },
        }
    }
}

/// The most that was asked for by blocks that were out at one time.
pub(crate) fn peak_live_bytes(events: &[Event]) -> usize {
    let mut sizes = Vec::new();
    let (mut live, mut peak) = (0, 0);
    for event in events {
        match *event {
            Event::Take { id, bytes } => {
                assert_eq!(id, sizes.len(), "ids count up");
                sizes.push(bytes);
                live += bytes;
                peak = peak.max(live);
            }
            Event::GiveBack { id } => live -= std::mem::take(&mut sizes[id]),
        }
    }
    peak
}

/// FNV-1a over one 64-bit word an event: the bytes that are taken, or the id that comes
/// back with the highest bit set.
pub(crate) fn fingerprint(events: &[Event]) -> u64 {
    let word = |event: &Event| match *event {
        Event::Take { bytes, .. } => bytes as u64,
        Event::GiveBack { id } => 1 << 63 | id as u64,
    };
    (events.iter().map(word)).fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        (hash ^ word).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The events so far.
#[derive(Default)]
struct Script {
    events: Vec<Event>,
    blocks: usize,
}

impl Script {
    fn take(&mut self, bytes: usize) -> usize {
        let id = self.blocks;
        self.blocks += 1;
        self.events.push(Event::Take { id, bytes });
        id
    }

    fn give_back(&mut self, id: usize) {
        self.events.push(Event::GiveBack { id });
    }
}

fn churn(script: &mut Script, random: &mut Random) {
    let mut slots = [None; 20];
    for _ in 0..3000 {
        let slot = &mut slots[random.below(20)];
        if let Some(id) = slot.take() {
            script.give_back(id);
        }
        *slot = Some(script.take(random.between(5 * MIB, 25 * MIB)));
    }
}

fn at_random(script: &mut Script, random: &mut Random) {
    const BLOCKS: usize = 20_000;
    let mut out: Vec<(usize, usize)> = Vec::new();
    let mut live = 0;
    for _ in 0..2 * BLOCKS {
        let bytes = random.between(1, 4 * MIB);
        // The order of the draws: no dice are thrown while nothing is out.
        let takes = out.is_empty()
            || (random.below(100) < 73 && script.blocks < BLOCKS && live + bytes < 1024 * MIB);
        if !takes {
            let (id, bytes) = out.swap_remove(random.below(out.len()));
            script.give_back(id);
            live -= bytes;
        } else if script.blocks < BLOCKS {
            out.push((script.take(bytes), bytes));
            live += bytes;
        }
    }
}

fn prefill(script: &mut Script, random: &mut Random) {
    // Queries, keys and values together, two of the feed-forward's, and the output: f16.
    const TOKEN_BYTES: [usize; 5] = [4096 * 2, 4096 * 6, 11008 * 2, 11008 * 2, 4096 * 2];
    let mut chunks = Vec::new();
    for step in 0..600 {
        let prompt = random.between(8, 2049);
        let tokens = [1, 1, 1, prompt][random.below(4)];
        let mut scratch = VecDeque::new();
        for _layer in 0..8 {
            for bytes in TOKEN_BYTES {
                scratch.push_back(script.take(tokens * bytes));
            }
            while scratch.len() > 12
                && let Some(oldest) = scratch.pop_front()
            {
                script.give_back(oldest);
            }
        }
        if step % 2 == 0 {
            chunks.push(script.take(random.between(1, 17) * MIB));
        }
        if chunks.len() > 40 {
            script.give_back(chunks.remove(random.below(chunks.len())));
        }
        scratch.into_iter().for_each(|id| script.give_back(id));
    }
}

fn drift(script: &mut Script) {
    for batch in 64..192 {
        let mut blocks = Vec::new();
        for _layer in 0..50 {
            for bytes in [40_000, 160_000] {
                blocks.push(script.take(batch * bytes));
            }
        }
        blocks.into_iter().rev().for_each(|id| script.give_back(id));
    }
}
