//! Sharded checkpoints: what index and shards must agree on.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::fs;
use std::path::Path;

use checkpoint_files::{file, packed, write};
use tenslab::weights::{Checkpoint, FormatFault, WeightsError};

/// A directory with these shards (name, tensors of one byte) and this weight_map.
fn directory(shards: &[(&str, &[&str])], map: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (shard, tensors) in shards {
        let tensors: Vec<_> = tensors
            .iter()
            .map(|&name| (name, "U8", &[1_u64][..], 1))
            .collect();
        let (json, bytes) = packed(&tensors);
        write(directory.path(), shard, &file(&json, bytes));
    }
    let map: Vec<_> = map
        .iter()
        .map(|(tensor, shard)| format!("{tensor:?}:{shard:?}"))
        .collect();
    let index = format!(
        r#"{{"metadata":{{"total_size":2}},"weight_map":{{{}}}}}"#,
        map.join(",")
    );
    write(
        directory.path(),
        "model.safetensors.index.json",
        index.as_bytes(),
    );
    directory
}

fn error(path: &Path) -> WeightsError {
    let error = Checkpoint::open(path).expect_err("an error");
    let message = error.to_string();
    assert!(message.contains(&path.display().to_string()), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    error
}

const TWO: [(&str, &[&str]); 2] = [("1.safetensors", &["a"]), ("2.safetensors", &["b"])];

#[test]
fn a_directory_and_its_index_open_as_one_checkpoint() {
    let both = directory(&TWO, &[("b", "2.safetensors"), ("a", "1.safetensors")]);
    let index = both.path().join("model.safetensors.index.json");
    for path in [both.path(), &index] {
        let checkpoint = Checkpoint::open(path).unwrap();
        let names: Vec<_> = checkpoint
            .entries()
            .iter()
            .map(|e| (e.name(), e.file()))
            .collect();
        assert_eq!(names, [("a", 0), ("b", 1)]);
        assert_eq!(checkpoint.entry("b").unwrap().file(), 1);
        assert!(checkpoint.entry("c").is_none());
    }
}

#[test]
fn one_whole_file_is_taken_before_an_index() {
    let both = directory(&TWO, &[("a", "nowhere"), ("b", "2.safetensors")]);
    let (json, bytes) = packed(&[("whole", "U8", &[1], 1)]);
    write(both.path(), "model.safetensors", &file(&json, bytes));
    assert_eq!(
        Checkpoint::open(both.path()).unwrap().entries()[0].name(),
        "whole"
    );
}

#[test]
fn every_missing_shard_is_named() {
    let some = directory(
        &TWO,
        &[
            ("a", "1.safetensors"),
            ("b", "2.safetensors"),
            ("c", "4.safetensors"),
            ("d", "3.safetensors"),
            ("e", "1.safetensors/x"),
        ],
    );
    let WeightsError::MissingShards {
        shards, missing, ..
    } = error(some.path())
    else {
        panic!("another error");
    };
    assert_eq!(shards, 5);
    assert_eq!(
        missing,
        ["1.safetensors/x", "3.safetensors", "4.safetensors"]
    );
}

#[test]
fn a_tensor_in_two_shards_is_an_error() {
    let shards: [(&str, &[&str]); 2] = [("1.safetensors", &["a", "b"]), ("2.safetensors", &["b"])];
    for home in ["1.safetensors", "2.safetensors"] {
        // `c` is nowhere, but two contents for one name are worse.
        let map = [("a", "1.safetensors"), ("b", home), ("c", "2.safetensors")];
        let seen = directory(&shards, &map);
        let WeightsError::DuplicateAcrossShards {
            tensor,
            first,
            second,
            ..
        } = error(seen.path())
        else {
            panic!("another error");
        };
        assert_eq!(tensor, "b");
        assert!(first.ends_with("1.safetensors") && second.ends_with("2.safetensors"));
    }
}

#[test]
fn a_shard_outside_the_directory_is_refused_before_it_is_opened() {
    for shard in [
        "../1.safetensors",
        "/etc/passwd",
        "",
        ".",
        "sub/../../x",
        "./1.safetensors",
    ] {
        let outside = directory(&TWO, &[("a", "1.safetensors"), ("b", shard)]);
        let WeightsError::ShardOutside {
            tensor,
            shard: said,
            ..
        } = error(outside.path())
        else {
            panic!("another error");
        };
        assert_eq!((tensor.as_str(), said.as_str()), ("b", shard));
    }
    let below = directory(
        &TWO[..1],
        &[("a", "1.safetensors"), ("b", "sub/2.safetensors")],
    );
    fs::create_dir(below.path().join("sub")).unwrap();
    let (json, bytes) = packed(&[("b", "U8", &[1], 1)]);
    write(below.path(), "sub/2.safetensors", &file(&json, bytes));
    assert_eq!(Checkpoint::open(below.path()).unwrap().files().len(), 2);
}

#[test]
fn index_and_shards_must_agree_both_ways() {
    let swapped = directory(&TWO, &[("a", "2.safetensors"), ("b", "1.safetensors")]);
    let WeightsError::NotInShard {
        tensor,
        shard,
        count,
        ..
    } = error(swapped.path())
    else {
        panic!("another error");
    };
    assert_eq!((tensor.as_str(), count), ("a", 2));
    assert!(shard.ends_with("2.safetensors"));

    let absent = directory(
        &TWO,
        &[
            ("a", "1.safetensors"),
            ("b", "2.safetensors"),
            ("c", "2.safetensors"),
        ],
    );
    assert!(matches!(
        error(absent.path()),
        WeightsError::NotInShard { tensor, count: 1, .. } if tensor == "c"
    ));

    let shards: [(&str, &[&str]); 1] = [("1.safetensors", &["a", "x", "y"])];
    let extra = directory(&shards, &[("a", "1.safetensors")]);
    assert!(matches!(
        error(extra.path()),
        WeightsError::NotInIndex { tensor, count: 2, .. } if tensor == "x"
    ));
}

#[test]
fn a_fault_in_a_shard_names_the_shard() {
    let cut = directory(&TWO, &[("a", "1.safetensors"), ("b", "2.safetensors")]);
    let shard = cut.path().join("2.safetensors");
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..whole.len() - 1]).unwrap();
    let error = Checkpoint::open(cut.path()).unwrap_err();
    let WeightsError::Format { path, fault } = error else {
        panic!("another error");
    };
    assert_eq!(path, shard);
    assert!(matches!(*fault, FormatFault::Truncated { .. }));
}

#[test]
fn an_index_that_is_none_says_what_is_wrong() {
    let place = tempfile::tempdir().unwrap();
    for (text, word) in [
        ("", "EOF"),
        ("[]", "weight_map"),
        ("{}", "weight_map"),
        (r#"{"weight_map":null}"#, "weight_map"),
        (r#"{"weight_map":{"a":1}}"#, "string"),
        (r#"{"weight_map":{},"weight_map":{}}"#, "twice"),
        (
            r#"{"weight_map":{"a":"1","a":"2"}}"#,
            "\"a\" is listed twice",
        ),
        (r#"{"weight_map":{}} x"#, "trailing"),
        ("\u{1}", "expected"),
    ] {
        let path = write(
            place.path(),
            "model.safetensors.index.json",
            text.as_bytes(),
        );
        let error = error(&path);
        assert!(matches!(error, WeightsError::BadIndex { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{text}: {error}");
    }
    let path = write(
        place.path(),
        "model.safetensors.index.json",
        b"{\"a\xff\":1}",
    );
    assert!(error(&path).to_string().contains("UTF-8"));
}

#[test]
fn what_is_no_checkpoint_says_what_is_there() {
    let place = tempfile::tempdir().unwrap();
    let nowhere = place.path().join("nowhere");
    assert!(matches!(
        error(&nowhere),
        WeightsError::Io { action: "open", .. }
    ));

    assert!(matches!(
        error(place.path()),
        WeightsError::NoCheckpoint { .. }
    ));
    let (json, bytes) = packed(&[("a", "U8", &[1], 1)]);
    write(place.path(), "other.safetensors", &file(&json, bytes));
    write(place.path(), "config.json", b"{}");
    let WeightsError::NoCheckpoint { others, .. } = error(place.path()) else {
        panic!("another error");
    };
    assert_eq!(others, ["other.safetensors"]);
    assert!(Checkpoint::open(place.path().join("other.safetensors")).is_ok());

    #[cfg(unix)]
    {
        let link = place.path().join("model.safetensors");
        std::os::unix::fs::symlink("blobs/gone", &link).unwrap();
        let WeightsError::Io { path, .. } = error(place.path()) else {
            panic!("another error");
        };
        assert_eq!(path, link, "the link that leads nowhere is named");
        fs::remove_file(&link).unwrap();
        let line_end = write(place.path(), "a\nb.safetensors", b"");
        let message = Checkpoint::open(&line_end).unwrap_err().to_string();
        assert!(
            message.contains(r"a\nb.safetensors: the file is empty"),
            "{message}"
        );
    }
    if cfg!(target_os = "linux") {
        // A device is not opened: reading this one would never end.
        assert!(matches!(
            error(Path::new("/dev/zero")),
            WeightsError::NotAFile { .. }
        ));
    }
}
