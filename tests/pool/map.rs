use tenslab::memory::{CachingPool, SpanKind};

use super::{KIB, MIB, shared};

#[test]
fn a_map_shows_what_is_used_clean_dirty_and_absent() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    assert_eq!(pool.map().spans, []);
    let first = memory.allocate(3 * MIB, 64).unwrap();
    let second = memory.allocate(5 * MIB, 64).unwrap();
    let third = memory.allocate(4 * MIB, 64).unwrap();
    let small = memory.allocate(4 * KIB, 64).unwrap();
    drop(second);
    pool.trim_bytes(2 * MIB);
    let map = pool.map();
    let spans: Vec<_> = map
        .spans
        .iter()
        .map(|span| (span.offset_bytes / MIB, span.bytes / MIB, span.kind))
        .collect();
    use SpanKind::{Absent, Dirty, Used};
    assert_eq!(
        spans[..4],
        [(0, 3, Used), (3, 3, Dirty), (6, 2, Absent), (8, 4, Used)]
    );
    assert_eq!(map.bytes_of(Used), 7 * MIB);
    assert_eq!(map.small_live_bytes, 4 * KIB);
    let drawn = format!("{map:16}");
    println!("{drawn}");
    assert!(drawn.contains("█"), "{drawn}");
    assert!(drawn.contains("▒ dirty 3.0 MiB"), "{drawn}");
    assert!(
        drawn
            .lines()
            .next()
            .unwrap()
            .starts_with("       0.0 MiB  █"),
        "{drawn}"
    );
    let json = serde_json::to_value(&map).unwrap();
    assert_eq!(json["spans"][1]["kind"], "dirty");
    drop((first, third, small));
}

#[test]
fn something_small_that_is_used_is_never_hidden() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let large = memory.allocate(4096 * MIB, 64).unwrap();
    let small = memory.allocate(40 * KIB, 64).unwrap();
    let behind = memory.allocate(4096 * MIB, 64).unwrap();
    drop((large, behind));
    let drawn = format!("{:32.4}", pool.map());
    let marks = drawn.matches('▄').count();
    assert_eq!(marks, 2, "one on the map, one that explains it:\n{drawn}");
    assert!(drawn.lines().count() <= 5, "{drawn}");
    drop(small);
}
