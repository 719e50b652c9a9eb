//! Random calls against a map of who has which byte.

use proptest::prelude::*;
use tenslab::memory::{AllocError, Buffer, PoolOptions, TrimPolicy};

use super::{KIB, MIB, check, shared};

#[derive(Debug, Clone)]
enum Op {
    Take {
        bytes: usize,
        align_log2: u32,
        zeroed: bool,
    },
    TakeLocal(usize),
    GiveBack(usize),
    Grow {
        which: usize,
        bytes: usize,
    },
    Decommit {
        which: usize,
        from: usize,
        bytes: usize,
    },
    Trim,
    TrimBytes(usize),
    Flush,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0_usize..40_000,
        3 => 32 * KIB..600 * KIB,
        1 => MIB..5 * MIB,
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (size(), prop_oneof![4 => Just(6), 1 => 0_u32..22], any::<bool>()).prop_map(
            |(bytes, align_log2, zeroed)| Op::Take { bytes, align_log2, zeroed }
        ),
        2 => size().prop_map(Op::TakeLocal),
        8 => any::<usize>().prop_map(Op::GiveBack),
        1 => (any::<usize>(), 0..400 * KIB).prop_map(|(which, bytes)| Op::Grow { which, bytes }),
        1 => (any::<usize>(), 0..MIB, 0..MIB).prop_map(|(which, from, bytes)| Op::Decommit {
            which,
            from,
            bytes
        }),
        1 => Just(Op::Trim),
        1 => (0..2 * MIB).prop_map(Op::TrimBytes),
        1 => Just(Op::Flush),
    ]
}

struct Out {
    buffer: Buffer,
    seed: u8,
    /// Bytes that may be anything now.
    holes: Vec<std::ops::Range<usize>>,
}

impl Out {
    fn places(len: usize) -> impl Iterator<Item = usize> {
        (0..len).step_by(1021).chain(len.checked_sub(1))
    }

    fn new(mut buffer: Buffer, seed: u8) -> Self {
        let len = buffer.len();
        for at in Self::places(len) {
            buffer.as_mut_slice()[at] = seed ^ at.to_le_bytes()[1];
        }
        Self {
            buffer,
            seed,
            holes: Vec::new(),
        }
    }

    fn check(&self) {
        let bytes = self.buffer.as_slice();
        for at in Self::places(bytes.len()) {
            if !self.holes.iter().any(|hole| hole.contains(&at)) {
                assert_eq!(bytes[at], self.seed ^ at.to_le_bytes()[1], "byte {at}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_is_anybody_elses(
        ops in proptest::collection::vec(op(), 1..150),
        cap_mib in prop_oneof![Just(usize::MAX >> 20), 2_usize..24],
        keep_mib in prop_oneof![Just(usize::MAX >> 20), 0_usize..6],
    ) {
        let policy = TrimPolicy::new().keep_bytes(keep_mib << 20).idle_calls(64);
        let pool = PoolOptions::new().cap_bytes(cap_mib << 20).trim(policy).build().unwrap();
        let memory = shared(&pool);
        let worker = tenslab::SharedAllocator::new(pool.local_cache(4 * MIB));
        let mut out: Vec<Out> = Vec::new();
        let mut seed = 0_u8;
        for op in ops {
            seed = seed.wrapping_add(37);
            let taken = match op {
                Op::Take { bytes, align_log2, zeroed } => {
                    let align = 1_usize << align_log2;
                    let buffer = if zeroed {
                        memory.allocate_zeroed(bytes, align)
                    } else {
                        memory.allocate(bytes, align)
                    };
                    if let Ok(buffer) = &buffer {
                        prop_assert!(buffer.as_ptr().addr().is_multiple_of(align));
                        prop_assert!(!zeroed || buffer.as_slice().iter().all(|&byte| byte == 0));
                    }
                    Some(buffer)
                }
                Op::TakeLocal(bytes) => Some(worker.allocate(bytes, 64)),
                Op::GiveBack(which) => {
                    if let Some(which) = which.checked_rem(out.len()) {
                        let gone = out.swap_remove(which);
                        gone.check();
                    }
                    None
                }
                Op::Grow { which, bytes } => {
                    if let Some(which) = which.checked_rem(out.len()) {
                        let Out { mut buffer, seed, holes } = out.swap_remove(which);
                        let before = buffer.len();
                        let result = buffer.try_grow(before + bytes);
                        let grown = Out { buffer, seed, holes };
                        match result {
                            Ok(()) => {
                                // What was there is; what is new is written now.
                                let mut holes = grown.holes.clone();
                                holes.push(before.saturating_sub(1)..before + bytes);
                                let grown = Out { holes, ..grown };
                                grown.check();
                                let holes = grown.holes[..grown.holes.len() - 1].to_vec();
                                let rewritten = Out::new(grown.buffer, grown.seed);
                                out.push(Out { holes, ..rewritten });
                            }
                            Err(_) => {
                                prop_assert_eq!(grown.buffer.len(), before);
                                out.push(grown);
                            }
                        }
                    }
                    None
                }
                Op::Decommit { which, from, bytes } => {
                    if let Some(which) = which.checked_rem(out.len()) {
                        let one = &mut out[which];
                        let from = from.min(one.buffer.len());
                        let to = (from + bytes).min(one.buffer.len());
                        one.buffer.decommit(from..to);
                        one.holes.push(from..to);
                    }
                    None
                }
                Op::Trim => {
                    memory.trim();
                    None
                }
                Op::TrimBytes(bytes) => {
                    let most = pool.trim_bytes(bytes);
                    prop_assert!(most <= bytes.next_multiple_of(4096));
                    None
                }
                Op::Flush => {
                    pool.flush();
                    None
                }
            };
            match taken {
                Some(Ok(buffer)) => {
                    let start = buffer.as_ptr().addr();
                    let end = start + buffer.len();
                    for other in out.iter().filter(|other| !other.buffer.is_empty()) {
                        let from = other.buffer.as_ptr().addr();
                        let apart = end <= from || from + other.buffer.len() <= start;
                        prop_assert!(apart || buffer.is_empty());
                    }
                    out.push(Out::new(buffer, seed));
                }
                Some(Err(AllocError::PoolExhausted { largest_free_bytes, requested_bytes, .. })) => {
                    prop_assert!(cap_mib < usize::MAX >> 20);
                    if largest_free_bytes > 0 {
                        prop_assert!(memory.allocate(largest_free_bytes, 64).is_ok());
                    }
                    prop_assert!(largest_free_bytes < requested_bytes.next_multiple_of(4096) + (4 << 20));
                }
                Some(Err(error)) => return Err(TestCaseError::fail(error.to_string())),
                None => {}
            }
            let stats = check(&pool);
            prop_assert!(pool.report().committed_bytes <= cap_mib << 20);
            let requested: usize = out.iter().map(|one| one.buffer.len()).sum();
            prop_assert_eq!(stats.requested_bytes, requested);
        }
        for one in &out {
            one.check();
        }
        drop(out);
        prop_assert_eq!(check(&pool).live_bytes, 0);
    }
}
