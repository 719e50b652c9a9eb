//! Block tables as kernels take them: padded rows, slots, compressed rows.

use tenslab::kv::{
    BlockTable, KvCache, KvError, KvOptions, Namespace, PageCsr, Sequence, Step, padded_rows,
    slot_mapping,
};

use super::{DIMS, cache_with, compute, ids, join, prefill, range};

fn cache() -> KvCache {
    cache_with(&KvOptions::default().with_partial_hits(false), 4, 16, 6)
}

fn blocks(table: BlockTable<'_>) -> Vec<u32> {
    table.blocks().map(|id| id.get()).collect()
}

/// Writes nothing that anybody looks at, into every layer.
fn write(step: &mut Step<'_>) {
    for layer in 0..DIMS.layers {
        let runs = step.layer_mut(layer).unwrap().runs::<f32>().unwrap();
        runs.for_each(drop);
    }
}

/// Two that share a block: A of 6 tokens, B of 5, with their own second blocks.
fn two_that_share(cache: &KvCache) -> [Sequence; 2] {
    let a = prefill(cache, &range(0, 6), None).unwrap();
    let b = prefill(cache, &join(&range(0, 4), &[70]), None).unwrap();
    assert_eq!((ids(&a), ids(&b)), (vec![0, 1], vec![0, 2]));
    [a, b]
}

#[test]
fn committed_tokens_have_rows_slots_and_pages() {
    let cache = cache();
    let [a, b] = two_that_share(&cache);
    let mut rows = vec![9; 100];
    assert_eq!(padded_rows([&a, &b], None, -1, &mut rows), Ok(2));
    assert_eq!(rows, [0, 1, 0, 2]);
    // Wider, as a buffer of the engine is.
    assert_eq!(padded_rows([&b, &a], Some(4), 0, &mut rows), Ok(4));
    assert_eq!(rows, [0, 2, 0, 0, 0, 1, 0, 0]);

    let mut pages = PageCsr::default();
    pages.fill([&a, &b]).unwrap();
    assert_eq!(pages.indptr, [0, 2, 4]);
    assert_eq!(pages.indices, [0, 1, 0, 2]);
    assert_eq!(pages.last_page_len, [2, 1]);

    let table = b.block_table();
    let slots: Vec<_> = (0..6).map(|position| table.slot(position)).collect();
    let expected = [Some(0), Some(1), Some(2), Some(3), Some(8), None];
    assert_eq!(slots, expected);
    assert_eq!(table.slot(usize::MAX), None);
}

/// The picture of the module: steps that cross blocks, together with one that does not.
#[test]
fn a_step_that_crosses_blocks_has_a_slot_for_each_new_token() {
    let cache = cache();
    let [mut a, mut b] = two_that_share(&cache);
    let steps = [
        a.append(&range(6, 7)).unwrap(),
        b.append(&range(80, 1)).unwrap(),
    ];
    let mut slots = vec![5; 3];
    slot_mapping(&steps, &mut slots).unwrap();
    // A: positions 6..13 in blocks 1, 3 and 4; B: position 5 in block 2.
    assert_eq!(slots, [6, 7, 12, 13, 14, 15, 16, 9]);

    let mut rows = Vec::new();
    assert_eq!(padded_rows(&steps, None, -7, &mut rows), Ok(4));
    assert_eq!(rows, [0, 1, 3, 4, 0, 2, -7, -7]);
    let mut pages = PageCsr::default();
    pages.fill(&steps).unwrap();
    assert_eq!(pages.indptr, [0, 4, 6]);
    assert_eq!(pages.indices, [0, 1, 3, 4, 0, 2]);
    assert_eq!(pages.last_page_len, [1, 2]);

    // Without the new tokens, from inside of the steps.
    let committed = steps.iter().map(Step::committed);
    assert_eq!(padded_rows(committed, None, -7, &mut rows), Ok(2));
    assert_eq!(rows, [0, 1, 0, 2]);
    drop(steps);
    assert_eq!((blocks(a.block_table()), a.len()), (vec![0, 1], 6));
}

/// A slot is where the bytes of its token are: in the layout that has a block in one piece
/// and a head's tokens in a row.
#[test]
fn a_slot_says_where_the_token_lies() {
    let cache = cache();
    let mut a = prefill(&cache, &range(0, 6), None).unwrap();
    let other = prefill(&cache, &range(50, 9), None).unwrap();
    compute(&mut a, &range(0, 11));
    let region = cache.region().start as usize;
    let (block_bytes, row_bytes) = (cache.spec().block_bytes(), DIMS.key_dim * size_of::<f32>());
    for sequence in [&a, &other] {
        for position in 0..sequence.len() {
            let keys = sequence.keys::<f32>(0, position / 4).unwrap();
            let row = keys.row(0, position % 4).unwrap().as_ptr() as usize;
            let slot = usize::try_from(sequence.block_table().slot(position).unwrap()).unwrap();
            let expected = region + slot / 4 * block_bytes + slot % 4 * row_bytes;
            assert_eq!(row, expected, "position {position}");
        }
    }
}

/// lessons/kv.md #36: idle and running sequences beside it change nothing.
#[test]
fn a_table_depends_on_its_own_sequence_only() {
    let cache = cache();
    let a = prefill(&cache, &range(0, 10), None).unwrap();
    let table = blocks(a.block_table());
    assert_eq!(table.len(), 3);
    let mut pages = PageCsr::default();
    pages.fill([&a]).unwrap();
    let alone = pages.clone();

    drop(prefill(&cache, &range(100, 20), None).unwrap());
    let others: Vec<_> = (0..3)
        .map(|index| prefill(&cache, &join(&range(0, 8), &[200 + index]), None).unwrap())
        .collect();
    let reserved = cache.acquire(&[], &Namespace::default(), 20, None).unwrap();
    assert_eq!(blocks(a.block_table()), table);
    pages.fill([&a]).unwrap();
    assert_eq!(pages, alone);
    // Reserved blocks are nobody's tokens.
    assert_eq!(reserved.block_table().block_count(), 0);
    drop((others, reserved));
    assert_eq!(blocks(a.block_table()), table);
}

#[test]
fn forks_have_the_same_table_until_one_goes_on() {
    let cache = cache();
    let mut a = prefill(&cache, &range(0, 6), None).unwrap();
    let b = a.fork().unwrap();
    let mut rows = Vec::new();
    padded_rows([&a, &b], None, -1, &mut rows).unwrap();
    assert_eq!(rows, [0, 1, 0, 1]);

    // The step's table has the copy, in which its slots are.
    let mut step = a.append(&[6]).unwrap();
    let mut slots = Vec::new();
    slot_mapping([&step], &mut slots).unwrap();
    assert_eq!(
        (blocks(step.block_table()), &slots[..]),
        (vec![0, 2], &[10][..])
    );
    write(&mut step);
    step.commit().unwrap();
    padded_rows([&a, &b], None, -1, &mut rows).unwrap();
    assert_eq!(rows, [0, 2, 0, 1]);
}

#[test]
fn a_truncated_sequence_has_a_shorter_table() {
    let cache = cache();
    let mut a = prefill(&cache, &range(0, 14), None).unwrap();
    let mut pages = PageCsr::default();
    for (len, table, last) in [
        (14, vec![0, 1, 2, 3], 2),
        (12, vec![0, 1, 2], 4),
        (9, vec![0, 1, 2], 1),
        (4, vec![0], 4),
    ] {
        a.truncate(len).unwrap();
        assert_eq!(blocks(a.block_table()), table);
        assert_eq!(a.block_table().slot(len), None);
        pages.fill([&a]).unwrap();
        assert_eq!(pages.last_page_len, [last]);
        assert_eq!(pages.indptr, [0, i32::try_from(table.len()).unwrap()]);
    }
}

#[test]
fn no_sequence_and_no_token() {
    let cache = cache();
    let mut pages = PageCsr::default();
    let (mut rows, mut slots) = (vec![1], vec![1]);
    pages.fill::<[&Sequence; 0]>([]).unwrap();
    assert_eq!((&pages.indptr[..], pages.indices.len()), (&[0][..], 0));
    assert_eq!(padded_rows::<[&Sequence; 0]>([], None, 0, &mut rows), Ok(0));
    slot_mapping([], &mut slots).unwrap();
    assert!(rows.is_empty() && slots.is_empty());

    // A row of padding; but a page without a token there is not.
    let a = prefill(&cache, &range(0, 3), None).unwrap();
    let empty = cache.acquire(&[], &Namespace::default(), 8, None).unwrap();
    assert_eq!(padded_rows([&empty, &a], None, -1, &mut rows), Ok(1));
    assert_eq!(rows, [-1, 0]);
    assert_eq!(empty.block_table().last_block_tokens(), 0);
    pages.fill([&a]).unwrap();
    let refused = pages.fill([&a, &empty]);
    assert_eq!(refused, Err(KvError::NoTokens { index: 1 }));
    assert_eq!(pages, PageCsr::default());
}

/// A block's number means nothing in another cache, also in one of the same sizes.
#[test]
fn tables_of_different_caches_are_refused() {
    let (cache, other) = (cache(), cache());
    let mut a = prefill(&cache, &range(0, 6), None).unwrap();
    let b = prefill(&cache.clone(), &range(0, 6), None).unwrap();
    let mut c = prefill(&other, &range(0, 6), None).unwrap();
    let refused = KvError::OtherCache { index: 2 };
    let (mut rows, mut slots, mut pages) = (vec![1], vec![1], PageCsr::default());
    pages.fill([&a, &b]).unwrap();
    assert_eq!(padded_rows([&a, &b, &c], None, 0, &mut rows), Err(refused));
    assert_eq!(pages.fill([&a, &b, &c]), Err(refused));
    assert_eq!((rows.len(), pages), (0, PageCsr::default()));

    let steps = [a.append(&[1]).unwrap(), c.append(&[1]).unwrap()];
    let refused = KvError::OtherCache { index: 1 };
    assert_eq!(slot_mapping(&steps, &mut slots), Err(refused));
    assert!(slots.is_empty());
    assert_eq!(
        refused.to_string(),
        "entry 1 of the batch is of another kv cache than those before it"
    );
}

#[test]
fn a_table_that_does_not_fit_its_row_is_refused() {
    let cache = cache();
    let a = prefill(&cache, &range(0, 9), None).unwrap();
    let mut rows = vec![1];
    let refused = KvError::TooLarge {
        what: "a row of the block table",
        value: 3,
        max: 2,
    };
    assert_eq!(padded_rows([&a], Some(2), 0, &mut rows), Err(refused));
    assert!(rows.is_empty());
    let endless = padded_rows([&a, &a], Some(usize::MAX), 0, &mut rows);
    assert!(
        matches!(endless, Err(KvError::Overflow { .. })),
        "{endless:?}"
    );
    let large = padded_rows([&a], Some(usize::MAX), 0, &mut rows);
    assert!(
        matches!(large, Err(KvError::TablesTooLarge { .. })),
        "{large:?}"
    );
}
