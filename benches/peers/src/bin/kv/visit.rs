//! The Mooncake trace, one request at a time.

use std::time::Instant;

use tenslab::kv::KvLimits;

use crate::keeper::Keeper;
use crate::ours::Ours;
use crate::pool::Pool;
use crate::race::{Cell, Claim, Contender};
use crate::trace::BLOCK_TOKENS;

/// All prompts that fit. Returns blocks that were visited, and found.
fn replay(keeper: &impl Keeper, prompts: &[Vec<u32>], blocks: usize) -> (usize, usize) {
    let (mut visited, mut hits) = (0, 0);
    for (number, tokens) in prompts.iter().enumerate() {
        let length = tokens.len() / BLOCK_TOKENS;
        if length <= blocks {
            visited += length;
            hits += keeper.visit(number, tokens);
        }
    }
    (visited, hits)
}

/// One operation is the whole trace, from empty books on.
fn contender<'a>(
    name: &'static str,
    keeper: impl Keeper + 'a,
    prompts: &'a [Vec<u32>],
    blocks: usize,
    facts: &mut Vec<(String, f64)>,
) -> Contender<'a> {
    let (visited, hits) = replay(&keeper, prompts, blocks);
    facts.push((format!("{name}: hits"), hits as f64));
    Contender::timed(name, visited, move || {
        keeper.forget();
        let began = Instant::now();
        let counted = replay(&keeper, prompts, blocks);
        let took = began.elapsed();
        assert_eq!(counted, (visited, hits), "{name}: each time the same");
        took
    })
}

/// `hits` is how many blocks of the trace there are to be found.
pub fn race(prompts: &[Vec<u32>], blocks: usize, hits: usize) -> Cell<'_> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) / BLOCK_TOKENS;
    let ours = Ours::new(KvLimits {
        blocks,
        max_sequences: 1,
        max_blocks_per_sequence: longest.min(blocks),
    });
    let mut facts = Vec::new();
    let mut contenders = vec![contender("ours", ours, prompts, blocks, &mut facts)];
    assert_eq!(facts[0].1, hits as f64, "the trace's own number");
    contenders.push(contender(
        "pool by hand",
        Pool::new(blocks),
        prompts,
        blocks,
        &mut facts,
    ));
    #[cfg(feature = "kvbm")]
    {
        use crate::kvbm::{Kvbm, LINEAGE, LRU};
        for (name, keeper) in [
            ("kvbm lru", Kvbm::new(blocks, LRU)),
            ("kvbm lineage", Kvbm::new(blocks, LINEAGE)),
            (
                "kvbm lru, hashed",
                Kvbm::new(blocks, LRU).with_hashes_of(prompts),
            ),
        ] {
            contenders.push(contender(name, keeper, prompts, blocks, &mut facts));
        }
    }
    let claim = |ns, of| Claim {
        who: "ours",
        ns,
        of,
    };
    Cell {
        unit: "block",
        claims: vec![
            claim(150.0, None),
            claim(0.0, Some((0.1, "kvbm lru"))),
            claim(0.0, Some((0.1, "kvbm lineage"))),
        ],
        contenders,
        facts,
    }
}
