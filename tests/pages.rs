//! What the kernel refuses is an error or a leak of addresses, never a panic.
//!
//! A process of its own with one test: it uses up all mappings that a process may have.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]
#![cfg(all(target_os = "linux", not(tenslab_portable), not(tenslab_asan)))]

use tenslab::memory::{AllocError, OsPages, PageSource, Region};

/// Bytes of resident memory.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * OsPages::new().page_bytes()
}

/// Commits every second page until the kernel has no mapping left, and returns the error.
fn exhaust(region: &Region) -> AllocError {
    let page = OsPages::new().page_bytes();
    (0..region.bytes())
        .step_by(2 * page)
        // SAFETY: the region came from this source and is not given back.
        .find_map(|at| unsafe { OsPages::new().commit(region, at..at + page) }.err())
        .expect("a process may have so many mappings")
}

#[test]
fn a_process_without_mappings_left_gets_errors_and_its_pages_go_back() {
    let page = OsPages::new().page_bytes();
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    if most > 1 << 20 {
        println!("skipped: {most} mappings are too many to use up");
        return;
    }
    // Neighbours of one protection, which the kernel joins to one mapping: to give back
    // one that lies between others it has to be split.
    let bytes = 16 << 20;
    let mut joined: Vec<_> = (0..9)
        .map(|_| {
            let region = OsPages::new().reserve(bytes, page).unwrap();
            // SAFETY: reserved just now.
            unsafe { OsPages::new().commit(&region, 0..bytes) }.unwrap();
            // SAFETY: committed, so all its bytes are writable.
            unsafe { region.base().write_bytes(1, bytes) };
            region
        })
        .collect();
    joined.sort_by_key(Region::base);
    let middle = joined.remove(4);
    let around = [joined[3].base(), joined[4].base()].map(|base| base.addr().get());
    let neighbours = around[1] - around[0] == 2 * bytes;

    let wide = OsPages::new().reserve(2 * page * most, page).unwrap();
    assert_eq!(exhaust(&wide), AllocError::OutOfMemory { bytes: page });

    let before = resident_bytes();
    // SAFETY: from this source, once, and nobody uses it.
    unsafe { OsPages::new().release(middle) };
    let given = before.saturating_sub(resident_bytes());
    if !neighbours {
        println!("the kernel put the regions apart, so nothing had to be split");
    }
    assert!(given > bytes / 2, "{given} of {bytes} bytes went back");

    for region in joined.into_iter().chain([wide]) {
        // SAFETY: as for `middle`.
        unsafe { OsPages::new().release(region) };
    }
}
