//! Loads that cannot succeed: files that change on the way, and callers who have enough. What
//! the file is changed by runs in the progress callback, so it is always the same moment.

#![cfg(all(unix, not(loom)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use checkpoint_files::{file, packed, write};
use tenslab::memory::SharedAllocator;
use tenslab::weights::{
    Checkpoint, HeaderLimits, LoadOptions, LoadProgress, Weights, WeightsError,
};
use tenslab::{CpuAllocator, DType};

/// Tensors of several pieces, and small ones.
fn awkward(directory: &Path) -> PathBuf {
    let (json, bytes) = packed(&[
        ("first", "BF16", &[4_700_001], 9_400_002),
        ("small", "F32", &[5], 20),
        ("integers", "I64", &[700_000], 5_600_000),
        ("last", "F64", &[], 8),
    ]);
    write(directory, "model.safetensors", &file(&json, bytes))
}

fn options(threads: usize, dtype: Option<DType>) -> LoadOptions {
    LoadOptions {
        threads,
        dtype,
        ..LoadOptions::default()
    }
}

#[test]
fn a_file_that_changed_since_it_was_opened_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let allocator = SharedAllocator::new(CpuAllocator::new());
    let refused = |checkpoint: &Checkpoint| {
        let options = LoadOptions {
            allocator: allocator.clone(),
            threads: 2,
            ..LoadOptions::default()
        };
        let error = Weights::load_checkpoint(checkpoint.clone(), &options, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap_err();
        let WeightsError::FileChanged { what, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(allocator.outstanding(), 0);
        what
    };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let length = fs::metadata(&path).unwrap().len();

    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(length - 1000).unwrap();
    assert_eq!(
        refused(&checkpoint),
        format!("it had {length} bytes and has {}", length - 1000)
    );

    file.set_len(length).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(60))
        .unwrap();
    assert!(refused(&checkpoint).starts_with("it was modified at "));

    let copy = place.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    fs::rename(&copy, &path).unwrap();
    assert_eq!(refused(&checkpoint), "another file has its name");

    fs::remove_file(&path).unwrap();
    let error = Weights::load_checkpoint(checkpoint, &options(1, None), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap_err();
    assert!(
        matches!(error, WeightsError::Io { action: "open", .. }),
        "{error}"
    );
}

/// Loads with one thread and does something to the file after the first piece.
fn meddle(path: &Path, deed: impl Fn(&File)) -> WeightsError {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600))
        .unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut first = true;
    Weights::load_checkpoint(checkpoint, &options(1, None), &mut |p| {
        // Called before anything is read, and after the first piece.
        if p.done_bytes > 0 && std::mem::take(&mut first) {
            deed(&file);
        }
        ControlFlow::Continue(())
    })
    .unwrap_err()
}

#[test]
fn a_file_that_is_cut_during_the_load_is_an_error_with_numbers() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let cut_at = Checkpoint::open(&path)
        .unwrap()
        .entry("integers")
        .unwrap()
        .offset()
        + 1_234_567;
    let error = meddle(&path, |file| file.set_len(cut_at).unwrap());
    let message = error.to_string();
    let WeightsError::ShortRead {
        tensor,
        at,
        begin,
        end,
        ..
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((tensor.as_str(), at), ("integers", cut_at));
    assert!(begin <= at && at < end);
    assert!(
        message.contains(&cut_at.to_string()) && message.lines().count() == 1,
        "{message}"
    );
}

#[test]
fn a_file_that_is_written_to_during_the_load_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let length = fs::metadata(&path).unwrap().len();
    let error = meddle(&path, |file| file.write_all_at(&[0], length - 1).unwrap());
    assert!(matches!(error, WeightsError::FileChanged { .. }), "{error}");
}

/// Length and modification time are as they were: only the time of the last change tells.
#[test]
fn a_writer_that_sets_the_time_back_is_found() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let length = fs::metadata(&path).unwrap().len();
    let error = meddle(&path, |file| {
        let before = file.metadata().unwrap();
        let modified = before.modified().unwrap();
        // The clock of the file system may be as coarse as a tick.
        let ticked = || {
            file.write_all_at(&[0], length - 1).unwrap();
            file.set_modified(modified).unwrap();
            let now = file.metadata().unwrap();
            (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec())
        };
        while !ticked() {}
    });
    let WeightsError::FileChanged { what, .. } = &error else {
        panic!("{error}");
    };
    assert!(what.contains("its name or its mode was changed"), "{what}");
}

/// What was read is one file, the one that was opened. But losing its name counts as a change
/// of it, and whoever loads the name wants the other one.
#[test]
fn a_file_that_is_replaced_during_the_load_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let other = place.path().join("other");
    fs::copy(&path, &other).unwrap();
    let error = meddle(&path, |_| fs::rename(&other, &path).unwrap());
    assert!(matches!(error, WeightsError::FileChanged { .. }), "{error}");
}

#[test]
fn a_shard_that_is_replaced_before_its_turn_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (json, bytes) = packed(&[("a", "U8", &[3_000_000], 3_000_000)]);
    let first = write(place.path(), "1", &file(&json, bytes));
    let json = json.replace("\"a\"", "\"b\"");
    let second = write(place.path(), "2", &file(&json, bytes));
    let other = write(place.path(), "other", &file(&json, bytes));
    let checkpoint = Checkpoint::open_files(&[&first, &second], &HeaderLimits::default()).unwrap();
    let error = Weights::load_checkpoint(checkpoint, &options(1, None), &mut |at| {
        if at.done_bytes > 0 && other.exists() {
            fs::rename(&other, &second).unwrap();
        }
        ControlFlow::Continue(())
    })
    .unwrap_err();
    let WeightsError::FileChanged { path, what } = error else {
        panic!("{error}");
    };
    assert_eq!((path, what.as_str()), (second, "another file has its name"));
}

#[test]
fn whoever_has_enough_gets_the_memory_back() {
    let place = tempfile::tempdir().unwrap();
    let path = awkward(place.path());
    let allocator = SharedAllocator::new(CpuAllocator::new());
    for threads in [1, 4] {
        for dtype in [None, Some(DType::F32)] {
            // At the first call nothing has been read, at the last all of it.
            for enough_at in [0, 3_000_000, 15_000_030] {
                let options = LoadOptions {
                    allocator: allocator.clone(),
                    ..options(threads, dtype)
                };
                let mut calls: Vec<LoadProgress> = Vec::new();
                let checkpoint = Checkpoint::open(&path).unwrap();
                let error = Weights::load_checkpoint(checkpoint, &options, &mut |at| {
                    calls.push(at);
                    match at.done_bytes >= enough_at {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                })
                .unwrap_err();
                let last = calls.pop().unwrap();
                let WeightsError::Cancelled {
                    done_bytes,
                    total_bytes,
                    ..
                } = error
                else {
                    panic!("{error}");
                };
                assert_eq!((done_bytes, total_bytes), (last.done_bytes, 15_000_030));
                assert!(calls.iter().all(|at| at.done_bytes < enough_at));
                assert_eq!(allocator.outstanding(), 0);
            }
        }
    }
}
