//! The tensors of a checkpoint as a list: by position, from both ends, by file.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use checkpoint_files::{file, packed, write};
use tenslab::weights::{Checkpoint, HeaderLimits};

#[test]
fn tensors_are_known_by_position_from_both_ends_and_by_file() {
    let shards: [(&str, &[&str]); 5] = [
        ("1", &[]),
        ("2", &["c", "d"]),
        ("3", &[]),
        ("4", &["b", "a", "e"]),
        ("5", &[]),
    ];
    let place = tempfile::tempdir().unwrap();
    let files = shards.map(|(name, tensors)| {
        let tensors: Vec<_> = tensors
            .iter()
            .map(|&name| (name, "U8", &[1_u64][..], 1))
            .collect();
        let (json, bytes) = packed(&tensors);
        write(place.path(), name, &file(&json, bytes))
    });
    let checkpoint = Checkpoint::open_files(&files, &HeaderLimits::default()).unwrap();
    let all = [
        ("c", 1, 0),
        ("d", 1, 1),
        ("b", 3, 0),
        ("a", 3, 1),
        ("e", 3, 2),
    ];

    let mut entries = checkpoint.entries();
    for (position, expected) in all.into_iter().enumerate() {
        let entry = entries.get(position).unwrap();
        let begin = entry.offset() - checkpoint.files()[entry.file()].data_start();
        assert_eq!((entry.name(), entry.file(), begin), expected);
        assert_eq!(checkpoint.entry(expected.0), Some(entry));
    }
    assert_eq!(entries.get(all.len()), None);
    assert!(
        entries
            .clone()
            .rev()
            .map(|entry| entry.name())
            .eq(["e", "a", "b", "d", "c"])
    );
    assert_eq!(entries.nth(1).unwrap().name(), "d");
    assert_eq!(entries.next_back().unwrap().name(), "e");
    assert_eq!((entries.len(), entries.get(0).unwrap().name()), (2, "b"));
    assert_eq!((entries.get(2), entries.get(usize::MAX)), (None, None));

    for (file, (_, names)) in shards.into_iter().enumerate() {
        let of_file = checkpoint.entries_of(file);
        assert_eq!(of_file.is_empty(), names.is_empty());
        assert!(of_file.map(|entry| entry.name()).eq(names.iter().copied()));
        let tensors = checkpoint.files()[file].header().tensors();
        assert!(
            tensors
                .clone()
                .rev()
                .map(|t| t.name())
                .eq(names.iter().rev().copied())
        );
        assert_eq!(tensors.get(names.len()), None);
    }
}
