//! The operations, and how they are drawn.

use proptest::prelude::*;
use tenslab::kv::Part;

use super::SEQUENCES;

#[derive(Debug, Clone, Copy)]
pub(super) enum Write {
    Native,
    FromF32,
    InPlace,
    Twice,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Commit,
    /// So many of the tokens, if there are so many.
    CommitFirst(usize),
    /// Drop the step, some layers written.
    RollBack,
    /// Drop the step before anything is written.
    Probe,
    /// Commit with one layer missing.
    Missing,
    /// Leak the step.
    Forget,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) prompt: Vec<u32>,
    pub(super) salt: u8,
    pub(super) reserve: usize,
    pub(super) max_hit: Option<usize>,
    pub(super) watermark: usize,
}

/// A sequence is named by a number, of which the rest counts: division by how many there are.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Acquire(Request),
    /// What the prompt of the sequence has that was not found, or one token behind it.
    Prefill {
        sequence: usize,
        piece: usize,
    },
    Append {
        sequence: usize,
        tokens: Vec<u32>,
        write: Write,
        end: End,
    },
    Fork {
        sequence: usize,
    },
    /// Among the lengths that it can have, and one more: the rest of `keep` again.
    Truncate {
        sequence: usize,
        keep: usize,
    },
    Drop {
        sequence: usize,
    },
    Pin {
        prompt: Vec<u32>,
    },
    Unpin,
    Tensor {
        sequence: usize,
        part: Part,
        block: usize,
    },
    DropTensors,
    Reset,
    /// Give the memory of so many blocks back.
    Relieve {
        blocks: usize,
    },
    /// Somebody else takes the memory of so many blocks from the budget, if there is one.
    Charge {
        blocks: usize,
    },
    Uncharge,
}

/// Up to so many tokens, 22 at most, made of one number: many small draws would cost more than
/// the cache does. Mostly one token, so that beginnings meet.
fn prompt(longest: usize) -> impl Strategy<Value = Vec<u32>> {
    const TOKENS: [u32; 7] = [1, 1, 1, 1, 1, 2, 3];
    (0..longest, any::<u64>()).prop_map(|(len, number)| {
        let digits = std::iter::successors(Some(number), |number| Some(number / 7));
        let tokens = digits.map(|number| TOKENS[(number % 7) as usize]);
        tokens.take(len).collect()
    })
}

fn request() -> impl Strategy<Value = Op> {
    let max_hit = prop_oneof![3 => Just(None), 1 => (0..20_usize).prop_map(Some)];
    let prompt = prop_oneof![2 => prompt(8), 1 => prompt(18)];
    (prompt, 0..2_u8, 0..4_usize, max_hit, 0..4_usize).prop_map(
        |(prompt, salt, reserve, max_hit, watermark)| {
            Op::Acquire(Request {
                prompt,
                salt,
                reserve,
                max_hit,
                watermark,
            })
        },
    )
}

fn append() -> impl Strategy<Value = Op> {
    let write = prop_oneof![
        Just(Write::Native),
        Just(Write::FromF32),
        Just(Write::InPlace),
        Just(Write::Twice)
    ];
    let end = prop_oneof![
        6 => Just(End::Commit),
        2 => (0..6_usize).prop_map(End::CommitFirst),
        1 => Just(End::RollBack),
        1 => Just(End::Probe),
        1 => Just(End::Missing),
        1 => Just(End::Forget),
    ];
    (0..SEQUENCES, prompt(8), write, end).prop_map(|(sequence, tokens, write, end)| Op::Append {
        sequence,
        tokens,
        write,
        end,
    })
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let any = 0..SEQUENCES;
    let part = prop_oneof![Just(Part::Keys), Just(Part::Values)];
    prop_oneof![
        8 => request(),
        10 => (any.clone(), 1..12_usize).prop_map(|(sequence, piece)| Op::Prefill { sequence, piece }),
        10 => append(),
        3 => any.clone().prop_map(|sequence| Op::Fork { sequence }),
        3 => (any.clone(), 0..16_usize).prop_map(|(sequence, keep)| Op::Truncate { sequence, keep }),
        3 => any.clone().prop_map(|sequence| Op::Drop { sequence }),
        1 => prompt(12).prop_map(|prompt| Op::Pin { prompt }),
        1 => Just(Op::Unpin),
        2 => (any, part, 0..3_usize)
            .prop_map(|(sequence, part, block)| Op::Tensor { sequence, part, block }),
        1 => Just(Op::DropTensors),
        1 => Just(Op::Reset),
        1 => (0..3_usize).prop_map(|blocks| Op::Relieve { blocks }),
    ]
}
