use std::ptr::NonNull;

use super::*;
use crate::kv::{KvDims, KvSpec};
use crate::types::DType;

/// Six blocks of four tokens, three slots: [0, 1] with 4 + 2 tokens, and [2] reserved.
fn two_sequences() -> (Ledger, TableRows) {
    let dims = KvDims {
        layers: 1,
        kv_heads: 1,
        key_dim: 1,
        value_dim: 1,
        block_tokens: 4,
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    // SAFETY: no block is marked where the sanitizer is not, and where it is this is a place
    // that nobody uses.
    let shadow = unsafe { Shadow::new(NonNull::dangling(), spec.region(6).unwrap()) };
    let rows = TableRows::new(3, 4).unwrap();
    let mut ledger = Ledger::new(6, 3, spec.tokens(), &KvOptions::default(), shadow).unwrap();
    open(&mut ledger, &rows, &[1, 2, 3, 4, 5, 6]);
    let mut grown = Grown::default();
    (ledger.grow(0, &[1, 2, 3, 4, 5, 6], 2, &rows, &mut grown)).unwrap();
    assert!(grown.copy.is_none());
    ledger.commit(0, 6, &rows);
    open(&mut ledger, &rows, &[9]);
    ledger.check(&rows).unwrap();
    (ledger, rows)
}

fn open(ledger: &mut Ledger, rows: &TableRows, tokens: &[u32]) -> Opened {
    let ask = Ask {
        tokens,
        namespace: &Namespace::default(),
        blocks: u32::try_from(tokens.len().div_ceil(4)).unwrap(),
        max_hit: tokens.len(),
    };
    let mut opened = Opened::default();
    ledger.open(&ask, rows, &mut opened).unwrap();
    opened
}

#[track_caller]
fn assert_found(ledger: &Ledger, rows: &TableRows, what: &str) {
    let error = ledger.check(rows).unwrap_err().to_string();
    assert!(error.contains(what), "{error}");
}

/// Damages a fresh ledger and wants the damage found.
#[track_caller]
fn damage(what: &str, damage: impl FnOnce(&mut Ledger, &TableRows)) {
    let (mut ledger, rows) = two_sequences();
    damage(&mut ledger, &rows);
    assert_found(&ledger, &rows, what);
}

#[test]
#[cfg(not(tenslab_asan))]
fn check_sees_every_kind_of_damage() {
    damage("in use and free", |ledger, _| ledger.blocks.give_back(0));
    damage("free twice", |ledger, _| {
        ledger.blocks.record_mut(5).newer = 3;
    });
    damage("another length", |ledger, _| ledger.blocks.free.len -= 1);
    damage("wrong order", |ledger, _| {
        ledger.blocks.record_mut(3).cold = true
    });
    damage("fewer uses", |_, rows| rows.set(1, 0, 1));
    damage("not registered", |_, rows| rows.set(0, 0, 2));
    damage("own block is registered", |_, rows| rows.set(1, 0, 0));
    damage("not of this cache", |_, rows| rows.set(1, 0, 77));
    damage("do not add up", |ledger, _| {
        ledger.blocks.record_mut(0).uses += 1
    });
    damage("fewer uses than users", |ledger, rows| {
        rows.set(2, 0, 5);
        ledger.slots[2].held = 1;
        ledger.slots[2].shared = 0;
        ledger.free_slots.take();
    });
    damage("slot is free twice", |ledger, _| {
        ledger.free_slots.give_back(2)
    });
    damage("tokens without blocks", |ledger, _| {
        ledger.slots[1].tokens = 5
    });
    damage("token counts", |ledger, _| ledger.total_tokens = 1);
    damage("were taken", |ledger, _| ledger.counters.taken_blocks = 2);
    damage("empty slots", |ledger, _| ledger.empty_slots += 1);
    damage("full block is not registered", |ledger, _| {
        ledger.slots[0].shared = 0
    });
    damage("not its chain's", |ledger, _| {
        ledger.blocks.record_mut(0).hash ^= 1
    });
    damage("not its chain's", |ledger, _| {
        ledger.blocks.tokens_mut(0)[3] = 7
    });
    damage("index counts other", |ledger, _| {
        ledger.blocks.index.len += 1
    });
    damage("is not found", |ledger, _| {
        ledger.blocks.index.buckets.fill(NONE)
    });
    damage("idle order", |ledger, _| ledger.blocks.idle.len += 1);
    damage("lost a child", |ledger, _| {
        ledger.blocks.index.youngest_root = NONE
    });
}

#[test]
#[cfg(not(tenslab_asan))]
fn check_sees_damage_among_idle_blocks() {
    let idle = || {
        let (mut ledger, rows) = two_sequences();
        ledger.close(0, &rows);
        ledger.check(&rows).unwrap();
        // The tail, then its parent.
        assert_eq!(
            (ledger.blocks.idle.oldest, ledger.blocks.idle.newest),
            (1, 0)
        );
        (ledger, rows)
    };
    let (mut ledger, rows) = idle();
    ledger.blocks.leave_idle(1);
    assert_found(&ledger, &rows, "not idle");

    let (mut ledger, rows) = idle();
    ledger.blocks.record_mut(0).older = NONE;
    assert_found(&ledger, &rows, "torn");

    let (mut ledger, rows) = idle();
    ledger.blocks.record_mut(1).parent = 3;
    assert_found(&ledger, &rows, "");

    let (mut ledger, rows) = idle();
    ledger.blocks.record_mut(0).child = NONE;
    assert_found(&ledger, &rows, "lost a child");

    let (mut ledger, rows) = idle();
    ledger.blocks.leave_idle(1);
    ledger.blocks.unregister(1);
    assert_found(&ledger, &rows, "nowhere");
}

#[test]
#[cfg(not(tenslab_asan))]
fn own_blocks_come_back_in_front_last_one_first() {
    let (mut ledger, rows) = two_sequences();
    open(&mut ledger, &rows, &[7; 9]); // blocks 3, 4, 5
    ledger.close(2, &rows);
    ledger.close(1, &rows); // block 2
    let opened = open(&mut ledger, &rows, &[8; 16]);
    let taken: Vec<_> = (0..4).map(|index| rows.get(opened.slot, index)).collect();
    assert_eq!(taken, [2, 3, 4, 5]);
    ledger.check(&rows).unwrap();
}

/// A block that is moving is not there yet: the source of a copy must not be kept from
/// eviction if the whole table needs it meanwhile.
#[test]
#[cfg(not(tenslab_asan))]
fn a_beginning_is_not_copied_where_only_moving_blocks_would_make_room() {
    let (mut ledger, rows) = two_sequences();
    ledger.close(0, &rows); // [1 2 3 4] and [5 6] are idle
    ledger.close(1, &rows);
    let mut out = [0; 2];
    assert_eq!(ledger.take_out(&mut out), (2, 0));
    // Of four blocks two are free and one of the idle ones is shared: three are needed.
    let ask = Ask {
        tokens: &[1, 2, 3, 4, 5, 6, 7, 8, 9],
        namespace: &Namespace::default(),
        blocks: 4,
        max_hit: 8,
    };
    let mut opened = Opened::default();
    let result = ledger.open(&ask, &rows, &mut opened);
    assert_eq!((result, opened.hit_tokens), (Ok(()), 4));
    for block in out {
        ledger.put_back(block, false);
    }
    ledger.check(&rows).unwrap();
}

#[test]
fn tables_that_cannot_be_allocated_are_an_error() {
    assert!(matches!(
        TableRows::new(u32::MAX, u32::MAX),
        Err(KvError::TablesTooLarge { .. })
    ));
}

#[test]
fn hits_are_counted_over_the_last_requests() {
    // lessons/kv.md scenario 18: a window of 5 requests.
    let mut window = HitWindow::new(5).unwrap();
    window.add(20, 9);
    assert_eq!(window.sums(), (20, 9));
    for _ in 0..4 {
        window.add(20, 4);
    }
    assert_eq!(window.sums(), (100, 25));
    window.add(10, 2);
    assert_eq!(window.sums(), (90, 18));
    window.forget();
    assert_eq!(window.sums(), (0, 0));
}
