//! Sharded checkpoints: what index and shards must agree on.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::fs;
use std::path::Path;

use checkpoint_files::{file, packed, write};
use tenslab::weights::{
    Checkpoint, FormatFault, HeaderLimits, SetFault, TensorAt, TensorTwice, WeightsError,
};

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

/// What is wrong with a set; its message names each of `names`, if there are no more than 8.
fn fault(path: &Path, names: &[&str]) -> SetFault {
    let error = error(path);
    let message = error.to_string();
    for name in names.iter().take(8) {
        assert!(message.contains(name), "{name}: {message}");
    }
    match error {
        WeightsError::Set { fault, .. } => *fault,
        other => panic!("{other:?}"),
    }
}

/// The tensors, and the last part of where they are.
fn places(tensors: &[TensorAt]) -> Vec<(&str, &str)> {
    (tensors.iter())
        .map(|at| {
            (
                at.tensor.as_str(),
                at.file.file_name().unwrap().to_str().unwrap(),
            )
        })
        .collect()
}

const TWO: [(&str, &[&str]); 2] = [("1.safetensors", &["a"]), ("2.safetensors", &["b"])];

#[test]
fn a_directory_and_its_index_open_as_one_checkpoint() {
    let both = directory(&TWO, &[("b", "2.safetensors"), ("a", "1.safetensors")]);
    let index = both.path().join("model.safetensors.index.json");
    for path in [both.path(), &index] {
        let checkpoint = Checkpoint::open(path).unwrap();
        let names: Vec<_> = checkpoint.entries().map(|e| (e.name(), e.file())).collect();
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
        Checkpoint::open(both.path())
            .unwrap()
            .entries()
            .get(0)
            .unwrap()
            .name(),
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
    let names = ["1.safetensors/x", "3.safetensors", "4.safetensors"];
    let missing = names.map(str::to_owned).to_vec();
    assert_eq!(
        fault(some.path(), &names),
        SetFault::MissingFiles { files: 5, missing }
    );
}

#[test]
fn every_tensor_in_two_shards_is_named() {
    let shards: [(&str, &[&str]); 3] = [
        ("1.safetensors", &["a", "b"]),
        ("2.safetensors", &["b", "d"]),
        ("3.safetensors", &["b", "d"]),
    ];
    for home in ["1.safetensors", "2.safetensors"] {
        // `c` is nowhere, but two contents for one name are worse.
        let map = [
            ("a", "1.safetensors"),
            ("b", home),
            ("c", "2.safetensors"),
            ("d", "3.safetensors"),
        ];
        let seen = directory(&shards, &map);
        let twice = |tensor: &str, first, second| TensorTwice {
            tensor: tensor.into(),
            first: seen.path().join(first),
            second: seen.path().join(second),
        };
        let tensors = vec![
            twice("b", "1.safetensors", "2.safetensors"),
            twice("b", "2.safetensors", "3.safetensors"),
            twice("d", "2.safetensors", "3.safetensors"),
        ];
        let names = [
            "3 tensors are",
            "\"b\" in",
            "\"d\" in",
            "1.safetensors",
            "3.safetensors",
        ];
        assert_eq!(
            fault(seen.path(), &names),
            SetFault::Duplicates { tensors, count: 3 }
        );
    }
}

#[test]
fn every_shard_outside_is_named_before_one_is_opened() {
    let bad = [
        "../1.safetensors",
        "/etc/passwd",
        "",
        ".",
        "sub/../../x",
        "./1.safetensors",
    ];
    for shard in bad {
        let outside = directory(&TWO, &[("a", "1.safetensors"), ("b", shard)]);
        let tensors = vec![TensorAt {
            tensor: "b".into(),
            file: shard.into(),
        }];
        assert_eq!(
            fault(outside.path(), &["\"b\""]),
            SetFault::Outside { tensors, count: 1 }
        );
    }
    let names: Vec<String> = (0..12).map(|number| format!("t{number:02}")).collect();
    let map: Vec<_> = names
        .iter()
        .zip(bad.iter().cycle())
        .map(|(n, s)| (n.as_str(), *s))
        .collect();
    let all = directory(&TWO, &map);
    let SetFault::Outside { tensors, .. } =
        fault(all.path(), &["12 tensors are", "t00", "t07", "4 more"])
    else {
        panic!("another fault");
    };
    assert!(tensors.iter().map(|at| &at.tensor).eq(&names));
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
    let SetFault::NotInFile { tensors, .. } = fault(swapped.path(), &["\"a\"", "\"b\""]) else {
        panic!("another fault");
    };
    assert_eq!(
        places(&tensors),
        [("a", "2.safetensors"), ("b", "1.safetensors")]
    );

    let absent = directory(
        &TWO,
        &[
            ("a", "1.safetensors"),
            ("b", "2.safetensors"),
            ("c", "2.safetensors"),
        ],
    );
    let SetFault::NotInFile { tensors, .. } = fault(absent.path(), &["1 tensor is", "\"c\""])
    else {
        panic!("another fault");
    };
    assert_eq!(places(&tensors), [("c", "2.safetensors")]);

    let shards: [(&str, &[&str]); 1] = [("1.safetensors", &["y", "a", "x"])];
    let extra = directory(&shards, &[("a", "1.safetensors")]);
    let SetFault::NotInIndex { tensors, .. } = fault(extra.path(), &["\"x\"", "\"y\""]) else {
        panic!("another fault");
    };
    assert_eq!(
        places(&tensors),
        [("x", "1.safetensors"), ("y", "1.safetensors")]
    );
}

/// A list is as long as it helps, and no longer: a path may be long, and tensors many.
#[test]
fn a_fault_counts_all_tensors_and_names_ten_thousand() {
    let names: Vec<String> = (0..10_001).map(|number| format!("t{number:05}")).collect();
    let map: Vec<_> = names.iter().map(|name| (name.as_str(), "/x")).collect();
    let all = directory(&TWO, &map);
    let words = ["10001 tensors are", "t00007", " and 9993 more"];
    let SetFault::Outside { tensors, count } = fault(all.path(), &words) else {
        panic!("another fault");
    };
    assert_eq!((tensors.len(), count), (10_000, 10_001));
}

#[test]
fn an_index_of_too_many_tensors_or_bytes_is_refused() {
    let both = directory(&TWO, &[("a", "1.safetensors"), ("b", "2.safetensors")]);
    let open = |limits: HeaderLimits| Checkpoint::open_with(both.path(), &limits);
    let limits = HeaderLimits {
        max_tensors: 2,
        ..HeaderLimits::default()
    };
    assert!(open(limits).is_ok());
    let limits = HeaderLimits {
        max_tensors: 1,
        ..HeaderLimits::default()
    };
    let Err(WeightsError::Set { fault, .. }) = open(limits) else {
        panic!("another error");
    };
    assert_eq!(*fault, SetFault::TooManyTensors { max_tensors: 1 });
    let limits = HeaderLimits {
        max_header_bytes: 80,
        ..HeaderLimits::default()
    };
    let Err(WeightsError::Set { fault, .. }) = open(limits) else {
        panic!("another error");
    };
    assert!(matches!(*fault, SetFault::BadIndex { reason } if reason.contains("the limit is 80")));
}

#[test]
fn an_explicit_list_opens_in_its_order_and_refuses_duplicates() {
    let shards: [(&str, &[&str]); 3] = [
        ("1.safetensors", &["a"]),
        ("2.safetensors", &["b"]),
        ("3.safetensors", &["c", "b"]),
    ];
    let place = directory(&shards, &[]);
    let path = |name: &str| place.path().join(name);
    let open = |names: &[&str]| {
        let files: Vec<_> = names.iter().map(|name| path(name)).collect();
        Checkpoint::open_files(&files, &HeaderLimits::default())
    };
    let checkpoint = open(&["2.safetensors", "1.safetensors"]).unwrap();
    let names: Vec<_> = checkpoint.entries().map(|e| (e.name(), e.file())).collect();
    assert_eq!(names, [("b", 0), ("a", 1)]);
    assert_eq!(checkpoint.path(), path("2.safetensors"));

    let fault = |names: &[&str]| match open(names) {
        Err(WeightsError::Set { fault, .. }) => *fault,
        other => panic!("{other:?}"),
    };
    assert!(matches!(open(&[]), Err(WeightsError::NoFiles)));
    let SetFault::Duplicates { tensors, .. } =
        fault(&["3.safetensors", "1.safetensors", "2.safetensors"])
    else {
        panic!("another fault");
    };
    assert_eq!(tensors.len(), 1);
    assert_eq!(
        (tensors[0].tensor.as_str(), &tensors[0].first),
        ("b", &path("3.safetensors"))
    );

    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("1.safetensors", path("link")).unwrap();
        let twice = SetFault::FileTwice {
            first: path("1.safetensors"),
            second: path("link"),
        };
        assert_eq!(fault(&["1.safetensors", "2.safetensors", "link"]), twice);
    }
    assert!(matches!(
        open(&["1.safetensors", "gone"]),
        Err(WeightsError::Io { .. })
    ));
}

#[test]
fn files_together_have_no_more_tensors_than_the_limit() {
    let place = directory(&TWO, &[]);
    let files = ["1.safetensors", "2.safetensors"].map(|name| place.path().join(name));
    let open = |max_tensors| {
        let limits = HeaderLimits {
            max_tensors,
            ..HeaderLimits::default()
        };
        Checkpoint::open_files(&files, &limits)
    };
    assert_eq!(open(2).unwrap().entries().len(), 2);
    let Err(WeightsError::Set { path, fault }) = open(1) else {
        panic!("another error");
    };
    assert_eq!(path, files[0]);
    assert_eq!(*fault, SetFault::TooManyTensors { max_tensors: 1 });
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
        let fault = fault(&path, &[word]);
        assert!(
            matches!(fault, SetFault::BadIndex { .. }),
            "{text}: {fault:?}"
        );
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
