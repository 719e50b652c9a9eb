use tenslab::memory::{CachingPool, SpanKind};

use super::probe::Dice;
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
    // The sanitizer notes an eighth of all bytes that are nobody's.
    const LARGE: usize = if cfg!(tenslab_asan) {
        256 * MIB
    } else {
        4096 * MIB
    };
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let large = memory.allocate(LARGE, 64).unwrap();
    let small = memory.allocate(40 * KIB, 64).unwrap();
    let behind = memory.allocate(LARGE, 64).unwrap();
    drop((large, behind));
    let drawn = format!("{:32.4}", pool.map());
    let marks = drawn.matches('▄').count();
    assert_eq!(marks, 2, "one on the map, one that explains it:\n{drawn}");
    assert!(drawn.lines().count() <= 4 + 2, "{drawn}");
    drop(small);
}

/// The lines of a drawing that are map, without what stands in front of the marks.
fn lines(drawn: &str) -> Vec<String> {
    let lines: Vec<&str> = drawn.lines().collect();
    let (map, legend) = lines.split_at(lines.len() - 2);
    assert!(legend[0].starts_with("█ used "), "{drawn}");
    map.iter()
        .map(|line| line.chars().skip(16).collect())
        .collect()
}

#[test]
fn a_map_of_hundreds_of_blocks_fits_80_columns_and_says_where_it_ends() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let mut dice = Dice(5);
    let mut blocks: Vec<_> = (0..400)
        .map(|_| memory.allocate(33 * KIB + dice.below(3 * MIB), 64).unwrap())
        .collect();
    blocks.retain(|_| dice.below(3) > 0);
    let map = pool.map();
    let drawn = map.to_string();
    println!("{drawn}");
    for line in drawn.lines() {
        assert!(line.chars().count() <= 80, "{line}");
        assert_eq!(line, line.trim_end(), "nothing that cannot be seen");
    }
    let lines = lines(&drawn);
    let (last, full) = lines.split_last().unwrap();
    assert!(
        full.iter().all(|line| line.chars().count() == 64),
        "{drawn}"
    );
    let end = format!(" {:.1} MiB", map.bytes() as f64 / MIB as f64);
    let marks = last.strip_suffix(&end).unwrap_or(last);
    let cells: usize = full.len() * 64 + marks.chars().count();
    let mark = map.bytes().div_ceil(64 * 16).next_multiple_of(64 * KIB);
    assert_eq!(cells, map.bytes().div_ceil(mark), "{drawn}");
    assert!(
        drawn.contains(&format!("a mark is {} KiB", mark / KIB)),
        "{drawn}"
    );
}

/// Not under the sanitizer, which notes an eighth of all bytes that are nobody's.
#[cfg(not(tenslab_asan))]
#[test]
fn a_map_of_a_hundred_gigabytes_counts_in_gibibytes() {
    let pool = CachingPool::new().unwrap();
    let memory = shared(&pool);
    let mut blocks: Vec<_> = (0..30)
        .map(|_| memory.allocate(4096 * MIB, 64).unwrap())
        .collect();
    drop(blocks.remove(7));
    let drawn = pool.map().to_string();
    println!("{drawn}");
    assert!(drawn.starts_with("      0.00 GiB  █"), "{drawn}");
    assert!(
        drawn.contains("█ used 116.00 GiB  ░ clean 0.00 GiB  ▒ dirty 4.00 GiB"),
        "{drawn}"
    );
    assert!(lines(&drawn).len() <= 16, "{drawn}");
    for line in drawn.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
