//! What is found, kept and evicted: the cases of lessons/kv.md, most of them from the unit
//! tests of other engines. Block numbers there begin at 1, here at 0.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tenslab::kv::{KvError, KvOptions, Namespace, PrefixHash};

use super::{assert_computed, cache_with, compute, ids, join, prefill, range};

/// Whole blocks only, as the engines do that the scenarios come from.
pub(super) fn whole_blocks() -> KvOptions {
    KvOptions::default().with_partial_hits(false)
}

/// Scenario 1 (vLLM, test_prefill).
#[test]
fn prompts_with_one_beginning_share_its_blocks() {
    let cache = cache_with(&whole_blocks(), 16, 10, 4);
    let shared = range(0, 48);
    let a = prefill(&cache, &join(&shared, &range(100, 7)), None).unwrap();
    assert_eq!(ids(&a), [0, 1, 2, 3]);
    assert_eq!(cache.stats().blocks_registered, 3);

    let b = prefill(&cache, &join(&shared, &range(200, 5)), None).unwrap();
    assert_eq!((b.hit_tokens(), ids(&b)), (48, vec![0, 1, 2, 4]));
    assert_eq!(cache.stats().blocks_free, 5);

    // The shared blocks are used until both are gone.
    drop(a);
    assert_eq!(
        (cache.stats().blocks_free, cache.stats().blocks_idle),
        (6, 0)
    );
    drop(b);
    assert_eq!(
        (cache.stats().blocks_free, cache.stats().blocks_idle),
        (7, 3)
    );

    let c = prefill(&cache, &join(&shared, &range(300, 6)), None).unwrap();
    assert_eq!((c.hit_tokens(), ids(&c)), (48, vec![0, 1, 2, 4]));
    assert_eq!(cache.stats().blocks_free, 6);
    drop(c);

    // Own blocks in front, the last one first; then those that were never used; then the
    // shared ones from the tail on.
    let d = prefill(&cache, &range(1000, 160), None).unwrap();
    assert_eq!(ids(&d), [4, 3, 5, 6, 7, 8, 9, 2, 1, 0]);
    let stats = cache.stats();
    assert_eq!((stats.blocks_free, stats.blocks_idle), (0, 0));
    assert_eq!(cache.counters().evicted_for_space, 3);
}

/// Scenario 3 (vLLM, test_hash_block_correct_reuse).
#[test]
fn a_block_that_is_reused_has_lost_its_key() {
    let cache = cache_with(&whole_blocks(), 16, 1, 1);
    drop(prefill(&cache, &range(0, 16), None).unwrap());
    assert_eq!(cache.stats().blocks_registered, 1);

    let other = prefill(&cache, &range(100, 15), None).unwrap();
    assert_eq!((ids(&other), cache.stats().blocks_registered), (vec![0], 0));
    drop(other);
    let again = cache.acquire(&range(0, 16), &Namespace::default(), 0, Some(16));
    assert_eq!(again.unwrap().hit_tokens(), 0);
}

/// Scenario 4 (vLLM, test_computed_blocks_not_evicted).
#[test]
fn what_a_request_shares_is_not_evicted_for_the_rest_of_it() {
    let cache = cache_with(&whole_blocks(), 16, 2, 2);
    let (a, b) = (range(0, 16), range(100, 16));
    drop(prefill(&cache, &a, None).unwrap());
    drop(prefill(&cache, &b, None).unwrap());
    // `a` is the older one, and would be the next to go.
    let c = prefill(&cache, &join(&a, &range(200, 16)), None).unwrap();
    assert_eq!((c.hit_tokens(), ids(&c)), (16, vec![0, 1]));
}

/// lessons/kv.md #3: nothing is taken, freed or held by who is refused.
#[test]
fn who_is_refused_leaves_uses_and_bytes_as_they_were() {
    let cache = cache_with(&whole_blocks(), 4, 4, 3);
    let prompt = range(0, 8);
    let a = prefill(&cache, &prompt, None).unwrap();
    let before = (cache.stats(), cache.counters());

    let longer = join(&prompt, &range(100, 12));
    let refused = cache.acquire(&longer, &Namespace::default(), 0, None);
    let expected = KvError::OutOfBlocks {
        need: 3,
        free: 2,
        evictable: 0,
        total: 4,
    };
    assert!(longer.len() > 4 * 4, "longer than a table");
    assert!(matches!(refused, Err(KvError::SequenceTooLong { .. })));
    let wide = super::limits(4, 3, 8);
    drop(refused);
    let spec = *cache.spec();
    let cache = {
        drop(a);
        tenslab::kv::KvCache::with_options(spec, wide, &whole_blocks(), tenslab::memory::cpu())
            .unwrap()
    };
    let a = prefill(&cache, &prompt, None).unwrap();
    let counted = (cache.stats(), cache.counters());
    assert_eq!(counted.0, before.0);
    let refused = cache.acquire(&longer, &Namespace::default(), 0, None);
    assert_eq!(refused.unwrap_err(), expected);
    cache.check().unwrap();
    assert_eq!(cache.stats(), counted.0);
    assert_computed(&a, &prompt);

    // Had the refused one kept its use, the blocks would not be idle now.
    drop(a);
    assert_eq!(
        (cache.stats().blocks_idle, cache.stats().blocks_used),
        (2, 0)
    );
}

/// lessons/kv.md #6: a hash that always says the same costs time, and no wrong hit.
#[test]
fn blocks_whose_hashes_collide_are_told_apart() {
    let collide = whole_blocks().with_hash(PrefixHash::custom(|_, _| 7));
    let cache = cache_with(&collide, 4, 16, 4);
    let first = prefill(&cache, &range(0, 8), None).unwrap();
    let second = prefill(&cache, &range(100, 8), Some(8)).unwrap();
    assert_eq!(second.hit_tokens(), 0);
    // The same tokens behind another parent are another block.
    let swapped = join(&range(4, 4), &range(0, 4));
    assert_eq!(prefill(&cache, &swapped, Some(8)).unwrap().hit_tokens(), 0);
    // And what is there is found among them.
    let again = prefill(&cache, &range(0, 8), Some(8)).unwrap();
    assert_eq!((again.hit_tokens(), ids(&again)), (8, ids(&first)));
    drop((first, second, again));
    cache.check().unwrap();
    assert_eq!(cache.reset().unwrap(), 6);
}

/// lessons/kv.md #5: prompts that differ in the last token of a block.
#[test]
fn every_token_of_a_block_counts() {
    for place in 0..8 {
        let cache = cache_with(&whole_blocks(), 4, 8, 2);
        let prompt = range(0, 8);
        let first = prefill(&cache, &prompt, None).unwrap();
        let mut other = prompt.clone();
        other[place] = 77;
        let second = prefill(&cache, &other, Some(8)).unwrap();
        assert_eq!(second.hit_tokens(), place / 4 * 4, "{place}");
        assert_computed(&first, &prompt);
    }
}

/// lessons/kv.md #9: adapters and salts of one name are different things.
#[test]
fn namespaces_never_share() {
    let cache = cache_with(&KvOptions::default(), 4, 16, 8);
    let prompt = range(0, 10);
    let base = Namespace::default();
    let all = [
        base,
        base.with_adapter(7),
        base.with_salt(7),
        base.with_model(7),
        base.with_adapter(7).with_salt(7),
        base.with_adapter(7 << 64),
        base.with_salt(1 << 127),
    ];
    for (index, namespace) in all.iter().enumerate() {
        for (other, earlier) in all[..index].iter().enumerate() {
            assert_ne!(namespace, earlier, "{index} {other}");
        }
        let mut sequence = cache.acquire(&prompt, namespace, 0, None).unwrap();
        assert_eq!(sequence.hit_tokens(), 0, "{index}");
        compute(&mut sequence, &prompt);
        drop(sequence);
        let again = cache.acquire(&prompt, namespace, 0, None).unwrap();
        // Two blocks, and of the third the token that need not be computed.
        assert_eq!(again.hit_tokens(), 9, "{index}");
        drop(again);
        cache.check().unwrap();
        if index % 3 == 2 {
            cache.reset().unwrap();
        }
    }
}

/// Scenario 6 (vLLM, test_decode).
#[test]
fn decoding_registers_what_becomes_full() {
    let cache = cache_with(&whole_blocks(), 16, 8, 1);
    let all = range(0, 78);
    let mut sequence = prefill(&cache, &all[..55], None).unwrap();
    assert_eq!(
        (ids(&sequence).len(), cache.stats().blocks_registered),
        (4, 3)
    );
    compute(&mut sequence, &all[..59]);
    assert_eq!(
        (ids(&sequence).len(), cache.stats().blocks_registered),
        (4, 3)
    );
    compute(&mut sequence, &all);
    assert_eq!(
        (ids(&sequence).len(), cache.stats().blocks_registered),
        (5, 4)
    );
    assert_computed(&sequence, &all);
    cache.check().unwrap();
}

/// Scenario 9 (vLLM, test_reset_prefix_cache).
#[test]
fn a_reset_waits_until_nobody_uses_a_block() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 4);
    let a = prefill(&cache, &range(0, 10), None).unwrap();
    let b = prefill(&cache, &range(0, 11), None).unwrap();
    assert_eq!(cache.reset(), Err(KvError::InUse { blocks: 4 }));
    drop(a);
    assert!(cache.reset().is_err());
    drop(b);
    // Two whole blocks, and one partly filled one of each.
    let idle = cache.stats().blocks_idle;
    assert_eq!(cache.reset(), Ok(idle));
    let stats = cache.stats();
    assert_eq!((stats.blocks_registered, stats.blocks_free), (0, 8));
    cache.check().unwrap();
    assert_eq!(
        prefill(&cache, &range(0, 10), None).unwrap().hit_tokens(),
        0
    );
    assert_eq!(cache.counters().evicted_by_reset, idle as u64);
}

/// Scenario 12 (vLLM, the free queue): what is taken next.
#[test]
fn free_blocks_go_first_and_idle_ones_by_age() {
    let cache = cache_with(&whole_blocks(), 4, 5, 5);
    let kept: Vec<_> = [0, 100, 200]
        .map(|from| prefill(&cache, &range(from, 4), None).unwrap())
        .into_iter()
        .collect();
    drop(kept); // idle: 0, 1, 2
    drop(prefill(&cache, &range(100, 5), None).unwrap()); // 1 is the newest now
    let taken = cache.acquire(&[], &Namespace::default(), 20, None).unwrap();
    assert_eq!(ids(&taken), [3, 4, 0, 2, 1]);
    let refused = cache
        .acquire(&[], &Namespace::default(), 1, None)
        .unwrap_err();
    let expected = KvError::OutOfBlocks {
        need: 1,
        free: 0,
        evictable: 0,
        total: 5,
    };
    assert_eq!(refused, expected);
}

/// Scenario 15 (vLLM, get_num_blocks_to_allocate, evictable_not_double_allocated,
/// predictor_matches_allocator).
#[test]
fn what_an_admission_predicts_is_what_is_taken() {
    let cache = cache_with(&whole_blocks(), 2, 40, 4);
    // Ten idle blocks, none of them of use: 20 needed are 20.
    drop(prefill(&cache, &range(1000, 20), None).unwrap());
    let predict = |tokens: &[u32]| {
        let admission = cache.admission(tokens, &Namespace::default(), 0, None);
        admission.unwrap()
    };
    assert_eq!(predict(&range(0, 40)).need, 20);
    assert_eq!(predict(&range(0, 40)).evictable, 10);

    // An idle block that is shared is not to be evicted as well.
    let longer = join(&range(1000, 20), &range(0, 20));
    let admission = predict(&longer);
    assert_eq!((admission.hit_tokens, admission.need), (20, 10));
    assert_eq!((admission.free, admission.evictable), (30, 0));

    for tokens in [4, 8, 12, 16] {
        let prompt = range(2000, tokens);
        let admission = predict(&prompt);
        let before = cache.counters().taken_blocks;
        let sequence = prefill(&cache, &prompt, None).unwrap();
        let taken = cache.counters().taken_blocks - before;
        assert_eq!(admission.need as u64, taken, "{tokens}");
        assert_eq!(admission.hit_tokens, sequence.hit_tokens());
    }
}

/// lessons/kv.md #24: some blocks stay for who runs, and the first one is never kept out.
#[test]
fn a_watermark_keeps_blocks_for_who_runs() {
    let cache = cache_with(&whole_blocks(), 4, 10, 4);
    let admits = |tokens: u32, watermark| {
        cache.can_admit(&range(0, tokens), &Namespace::default(), 0, None, watermark)
    };
    assert!(admits(40, 3), "nobody runs");
    assert!(!admits(41, 0), "it never fits");
    let running = prefill(&cache, &range(500, 8), None).unwrap();
    assert!(admits(20, 3));
    assert!(!admits(21, 3));
    assert!(admits(21, 2));
    drop(running);
    assert!(admits(40, 10));
}

/// Scenario 24 (TensorRT-LLM, BlockManagerReuseTest), with what is committed in the place of
/// what that engine stores.
#[test]
fn what_was_not_committed_is_not_found() {
    let cache = cache_with(&whole_blocks(), 4, 8, 2);
    let prompt = range(0, 9);
    let mut sequence = prefill(&cache, &prompt, None).unwrap();
    // Two tokens are appended and rolled back.
    drop(sequence.append(&[9, 10]).unwrap());
    assert_eq!(ids(&sequence), [0, 1, 2]);
    drop(sequence);
    let again = prefill(&cache, &range(0, 11), None).unwrap();
    assert_eq!((again.hit_tokens(), ids(&again)), (8, vec![0, 1, 2]));
}

/// Scenario 26 (TGI, allocator_collects_older).
#[test]
fn the_older_prefix_goes_first() {
    let cache = cache_with(&whole_blocks(), 4, 6, 4);
    drop(prefill(&cache, &range(0, 16), None).unwrap());
    drop(prefill(&cache, &range(100, 8), None).unwrap());
    let new = prefill(&cache, &range(200, 16), None).unwrap();
    let mut blocks = ids(&new);
    blocks.sort_unstable();
    assert_eq!(blocks, [0, 1, 2, 3]);
    let kept = prefill(&cache, &range(100, 8), Some(8)).unwrap();
    assert_eq!(kept.hit_tokens(), 8);
}

/// What is evicted next has no child: of a chain the tail goes first, and what is left of it
/// is found.
#[test]
fn the_tail_of_a_chain_goes_before_its_head() {
    let cache = cache_with(&whole_blocks(), 4, 3, 4);
    let chain = range(0, 12);
    drop(prefill(&cache, &chain, None).unwrap());
    let mut running = Vec::new();
    for (from, kept) in [(100, 8), (200, 4), (300, 0)] {
        running.push(prefill(&cache, &range(from, 4), None).unwrap());
        let found = cache.admission(&chain, &Namespace::default(), 0, Some(12));
        assert_eq!(found.unwrap().hit_tokens, kept);
    }
}

/// Scenario 26 (TGI, frees_fully_overlapping): of two that compute the same the first one's
/// blocks stay.
#[test]
fn two_that_compute_the_same_keep_one_copy() {
    let cache = cache_with(&whole_blocks(), 4, 9, 4);
    let prompt = range(0, 16);
    let acquire = || {
        cache
            .acquire(&prompt, &Namespace::default(), 0, None)
            .unwrap()
    };
    let (mut a, mut b) = (acquire(), acquire());
    assert_eq!(cache.stats().blocks_free, 1);
    compute(&mut a, &prompt);
    compute(&mut b, &prompt);
    cache.check().unwrap();
    assert_eq!(ids(&a), ids(&b));
    assert_eq!(cache.stats().blocks_free, 5);
    assert_eq!(cache.counters().duplicate_blocks, 4);
    drop(a);
    assert_computed(&b, &prompt);
    drop(b);
    let stats = cache.stats();
    assert_eq!((stats.blocks_free, stats.blocks_idle), (5, 4));
}

/// Half of the blocks are there already: those are kept, and the rest follows them.
#[test]
fn a_chain_goes_on_from_the_first_copy() {
    let cache = cache_with(&whole_blocks(), 4, 12, 4);
    let (short, long) = (range(0, 8), range(0, 16));
    let mut late = cache
        .acquire(&long, &Namespace::default(), 0, None)
        .unwrap();
    drop(prefill(&cache, &short, None).unwrap());
    compute(&mut late, &long);
    cache.check().unwrap();
    assert_eq!(cache.counters().duplicate_blocks, 2);
    assert_computed(&late, &long);
    drop(late);
    let again = prefill(&cache, &long, Some(16)).unwrap();
    assert_eq!(again.hit_tokens(), 16);
}

/// Scenario 21 (vLLM, partial hits): the beginning of a block is reused by a copy of it.
#[test]
fn a_beginning_is_copied_and_its_source_stays_findable() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 4);
    drop(prefill(&cache, &range(0, 6), None).unwrap());
    assert_eq!(cache.stats().blocks_idle, 2);

    let longer = range(0, 8);
    let b = prefill(&cache, &longer, None).unwrap();
    assert_eq!((b.hit_tokens(), ids(&b)), (6, vec![0, 2]));
    assert_eq!(cache.counters().copied_blocks, 1);
    // The source is idle again, and somebody else finds it.
    assert_eq!(cache.stats().blocks_idle, 1);
    let c = prefill(&cache, &join(&range(0, 6), &[70]), None).unwrap();
    assert_eq!(c.hit_tokens(), 6);
    assert_computed(&b, &longer);
}

/// The beginning of a full block is one too, and the last token is always computed.
#[test]
fn of_a_prompt_that_is_all_there_one_token_is_left() {
    let cache = cache_with(&KvOptions::default(), 4, 8, 4);
    let prompt = range(0, 8);
    drop(prefill(&cache, &prompt, None).unwrap());
    let again = cache
        .acquire(&prompt, &Namespace::default(), 0, None)
        .unwrap();
    assert_eq!(again.hit_tokens(), 7);
    assert_computed(&again, &prompt[..7]);
    drop(again);
    for (max_hit, hit) in [(8, 8), (6, 6), (4, 4), (3, 3), (0, 0), (100, 8)] {
        let again = (cache.acquire(&prompt, &Namespace::default(), 0, Some(max_hit))).unwrap();
        assert_eq!(again.hit_tokens(), hit);
        assert_computed(&again, &prompt[..hit]);
        drop(again);
        cache.check().unwrap();
    }
}

/// A conversation: each turn begins with all earlier ones. The tail that the turn before left
/// is not kept beside the longer one.
#[test]
fn a_longer_tail_takes_the_place_of_its_beginning() {
    let cache = cache_with(&KvOptions::default(), 8, 4, 1);
    let all = range(0, 7);
    for tokens in 1..=7 {
        let turn = prefill(&cache, &all[..tokens], None).unwrap();
        assert_eq!(turn.hit_tokens(), tokens - 1);
        drop(turn);
        cache.check().unwrap();
        assert_eq!(cache.stats().blocks_idle, 1, "{tokens}");
    }
    assert_eq!(cache.counters().superseded_blocks, 6);
    // A shorter one brings nothing new.
    drop(prefill(&cache, &all[..3], None).unwrap());
    assert_eq!(cache.stats().blocks_idle, 1);
}

/// A copy is not worth evicting its source for, and cannot be made then.
#[test]
fn a_beginning_is_forgone_where_its_source_is_the_last_block() {
    let cache = cache_with(&KvOptions::default(), 4, 1, 2);
    drop(prefill(&cache, &range(0, 4), None).unwrap());
    let other = prefill(&cache, &join(&range(0, 2), &[9]), None).unwrap();
    assert_eq!((other.hit_tokens(), ids(&other)), (0, vec![0]));
}

/// A commit whose second block has no number keeps neither block nor token.
#[test]
fn a_hash_that_panics_commits_nothing() {
    let fragile = PrefixHash::custom(|parent, tokens| {
        assert_ne!(tokens[0], 13, "the hash");
        tokens.iter().fold(parent, |hash, &token| {
            hash.wrapping_mul(31) + u64::from(token)
        })
    });
    let cache = cache_with(&whole_blocks().with_hash(fragile), 4, 8, 4);
    let mut sequence = cache.acquire(&[], &Namespace::default(), 0, None).unwrap();
    let unlucky = [1, 2, 3, 4, 13, 14, 15, 16, 17];
    let result = catch_unwind(AssertUnwindSafe(|| compute(&mut sequence, &unlucky)));
    assert!(result.is_err());
    cache.check().unwrap();
    assert_eq!((sequence.len(), sequence.reserved_tokens()), (0, 0));
    let stats = cache.stats();
    assert_eq!((stats.blocks_free, stats.blocks_registered), (8, 0));
    compute(&mut sequence, &range(0, 9));
    assert_computed(&sequence, &range(0, 9));
    cache.check().unwrap();
}
