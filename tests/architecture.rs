//! Layers go one way: `types <- memory <- tensor <- {weights, kv} <- cli`.
//!
//! Reads `src/` and fails where a layer names one above it or beside it, goes around the
//! layers through the root's re-exports, or takes a lock or an atomic from anywhere but
//! `src/sync.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

/// Each layer with the layers that it may name.
const LAYERS: [(&str, &[&str]); 6] = [
    ("types", &["types"]),
    ("memory", &["memory", "types"]),
    ("tensor", &["tensor", "memory", "types"]),
    ("weights", &["weights", "tensor", "memory", "types"]),
    ("kv", &["kv", "tensor", "memory", "types"]),
    (
        "cli",
        &["cli", "weights", "kv", "tensor", "memory", "types", "error"],
    ),
];

/// Rooms that every layer may name: the door to concurrency, and the wrong lines of the
/// loom lane.
const FOR_ALL: [&str; 2] = ["sync", "mutant"];

/// What only `src/sync.rs` may name.
const BEHIND_THE_DOOR: [&str; 8] = [
    "parking_lot",
    "crossbeam",
    "loom::",
    "std::sync::atomic",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::Arc",
    "std::sync::OnceLock",
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The lines of code, without comments, each with its number.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line.split("//").next().unwrap_or("")))
}

/// The names that follow `crate::` in a line.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").map(|(at, crate_)| {
        let rest = &line[at + crate_.len()..];
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        &rest[..end]
    })
}

/// What a file of a layer breaks, a line each.
fn broken(layer: &str, allowed: &[&str], text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for (number, line) in code(text) {
        for name in named(line) {
            if !allowed.contains(&name) && !FOR_ALL.contains(&name) {
                let name = if name.is_empty() { "{…}" } else { name };
                broken.push(format!("line {number}: {layer} names crate::{name}"));
            }
        }
        for door in BEHIND_THE_DOOR {
            if line.contains(door) {
                broken.push(format!(
                    "line {number}: {layer} names {door} and not crate::sync"
                ));
            }
        }
    }
    broken
}

#[test]
fn imports_point_down() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut problems = Vec::new();
    for (layer, allowed) in LAYERS {
        let files = sources(&src.join(layer));
        assert!(!files.is_empty(), "no source in src/{layer}");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            for problem in broken(layer, allowed, &text) {
                problems.push(format!("{}, {problem}", file.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_folder_of_src_is_a_layer() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(
            path.is_file()
                || FOR_ALL.contains(&name.as_str())
                || LAYERS.iter().any(|(layer, _)| *layer == name),
            "src/{name} is no layer of the house"
        );
    }
}

/// Lessons rows 56 and 57: under loom a `try_lock` is a false deadlock, and to sanitizers
/// a pointer that was made of a number belongs to nothing.
const NOWHERE: [&str; 5] = [
    "try_lock",
    "try_read(",
    "try_write(",
    "with_exposed_provenance",
    "from_exposed_addr",
];

/// Is a number made a pointer in this line, by a cast that says so?
fn casts_to_a_pointer(line: &str) -> bool {
    let number = |word: &str| word.ends_with("usize") || word.ends_with("u64");
    line.match_indices(" as *")
        .any(|(at, _)| number(line[..at].trim_end()))
}

#[test]
fn no_lock_is_tried_and_no_number_is_made_a_pointer() {
    let files = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let mut problems = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for (number, line) in code(&text) {
            let named = NOWHERE.into_iter().filter(|name| line.contains(name));
            let cast = casts_to_a_pointer(line).then_some("a number as a pointer");
            for what in named.chain(cast) {
                problems.push(format!("{}, line {number}: {what}", file.display()));
            }
        }
    }
    assert!(files.len() > 50 && problems.is_empty(), "{problems:?}");
    assert!(casts_to_a_pointer(
        "let p = (base + 8_usize) as usize as *mut u8;"
    ));
    assert!(!casts_to_a_pointer("let p = place as *mut u8;"));
}

/// Lessons row 33 of weights: the format is little-endian, and bytes are not swapped.
#[test]
fn a_big_endian_machine_is_refused_when_the_crate_is_built() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/weights/mod.rs");
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let refused = lines.any(|line| line == "#[cfg(target_endian = \"big\")]");
    assert!(
        refused
            && lines
                .next()
                .is_some_and(|line| line.starts_with("compile_error!"))
    );
}

/// The test itself can fail.
#[test]
fn a_name_above_is_seen() {
    let allowed = LAYERS[1].1;
    let see = |line: &str| broken("memory", allowed, line).len();
    assert_eq!(see("use crate::types::DType; // crate::kv"), 0);
    assert_eq!(see("use crate::sync::Mutex;"), 0);
    assert_eq!(see("use crate::tensor::Tensor;"), 1);
    assert_eq!(see("let x = crate::Tensor::empty();"), 1);
    assert_eq!(see("use crate::{kv, types};"), 1);
    assert_eq!(see("use std::sync::Mutex;"), 1);
    assert_eq!(see("static X: parking_lot::Mutex<()> = todo;"), 1);
}
