//! `tenslab load`, as a program: every mode says what it took, finds what is wrong, and refuses
//! what it would ignore.

#![cfg(all(feature = "cli", target_os = "linux", not(loom), not(tenslab_portable)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use checkpoint_files::shared;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tenslab::weights::{SaveEntry, SaveOptions, save, save_with};
use tenslab::{DType, Tensor, memory, ops};

fn run(path: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenslab"))
        .arg("load")
        .arg(path)
        .args(flags)
        .output()
        .unwrap()
}

fn page(path: &Path, flags: &[&str]) -> String {
    let output = run(path, flags);
    assert!(output.status.success(), "{output:?}");
    assert!(
        output.stderr.is_empty(),
        "stderr is no terminal: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn answer(path: &Path, flags: &[&str]) -> Value {
    serde_json::from_str(&page(path, &[flags, &["--json"]].concat())).unwrap()
}

/// The one line on stderr, without the program's name.
fn refusal(path: &Path, flags: &[&str]) -> String {
    let output = run(path, flags);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    text.trim_end().strip_prefix("tenslab: ").unwrap().into()
}

/// 1 MiB of f32, 100 bytes that push what follows off its alignment, and a norm with a NaN and an
/// infinity.
fn model(directory: &Path) -> PathBuf {
    let path = directory.join("model.safetensors");
    let table = ops::arange(0, 1 << 18, 1, DType::F32, memory::cpu()).unwrap();
    let norm = Tensor::zeros([8], DType::BF16, memory::cpu()).unwrap();
    {
        let mut values = norm.write::<tenslab::bf16>().unwrap();
        (values[3], values[5]) = (tenslab::bf16::NAN, tenslab::bf16::INFINITY);
    }
    let entries = [
        SaveEntry::tensor("layers.0.table", &table),
        SaveEntry::tensor("norm", &norm),
        SaveEntry::raw("codes", "F8_E4M3", &[100], &[7; 100]),
    ];
    save_with(&path, &entries, &SaveOptions::default(), &mut |_| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    path
}

const TABLE: u64 = 1 << 20;
const ALL: u64 = TABLE + 16 + 100;

#[test]
fn every_mode_says_what_it_took() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    for (flags, mode, copied, mapped) in [
        (&[][..], "slab", ALL, 0),
        (&["--mode", "slab", "--threads", "2"], "slab", ALL, 0),
        (
            &["--mode", "slab", "--dtype", "f16"],
            "slab",
            TABLE / 2 + 116,
            0,
        ),
        (&["--mode", "map", "--advice", "populate"], "map", 0, ALL),
        (&["--mode", "sealed"], "sealed", ALL, ALL),
        (&["--only", "layers.*", "--protect"], "slab", TABLE, 0),
    ] {
        let said = answer(&path, flags);
        assert_eq!(said["mode"], mode, "{said}");
        assert_eq!(said["total_bytes"], ALL, "{said}");
        assert_eq!(said["copied_bytes"], copied, "{said}");
        assert_eq!(said["realigned_bytes"], 0, "{said}");
        // Sealed memory also has an index, and room between the tensors.
        let more = said["mapped_bytes"].as_u64().unwrap() - mapped;
        assert!(more == 0 || (mode == "sealed" && more < 4096), "{said}");
        let only = flags.contains(&"--only");
        assert_eq!(said["tensors"], if only { 1 } else { 3 }, "{said}");
        assert_eq!(said["left_out"], if only { 2 } else { 0 }, "{said}");
        let protected = said["protected_bytes"].as_u64().unwrap();
        assert_eq!(protected > 0, only, "{said}");
        assert_eq!(said["verified"], Value::Null);
        for number in ["seconds", "gb_per_s", "peak_rss_bytes"] {
            assert!(said[number].as_f64().unwrap() > 0.0, "{said}");
        }
    }
}

#[test]
fn what_is_not_aligned_is_counted_or_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("odd.safetensors");
    let text = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}"#;
    let text = format!(
        "{text:<width$}",
        width = (text.len() + 8).next_multiple_of(64) - 8
    );
    fs::write(&path, checkpoint_files::file(&text, 9)).unwrap();
    let map = ["--mode", "map"];
    let said = answer(&path, &map);
    assert_eq!(
        (&said["realigned_bytes"], &said["mapped_bytes"]),
        (&json!(8), &json!(9))
    );
    let said = answer(
        &path,
        &[&map[..], &["--misaligned", "bytes-only", "--verify"]].concat(),
    );
    assert_eq!(said["realigned_bytes"], 0);
    let line = refusal(&path, &[&map[..], &["--misaligned", "error"]].concat());
    assert!(
        line.contains("odd.safetensors") && line.contains("\"b\""),
        "{line}"
    );
}

#[test]
fn verified_files_have_digests_and_odd_values_are_counted() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let digest = Sha256::digest(fs::read(&path).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let sums = place.path().join("SHA256SUMS");
    fs::write(&sums, format!("{digest}  somewhere/model.safetensors\n\n")).unwrap();
    for mode in ["slab", "map", "sealed"] {
        for flags in [&["--verify"][..], &["--sha256", sums.to_str().unwrap()]] {
            let said = answer(&path, &[&["--mode", mode], flags].concat());
            let files = json!([{ "path": path.to_str().unwrap(), "sha256": digest }]);
            assert_eq!(said["verified"]["files"], files, "{said}");
            let odd = json!([{ "name": "norm", "count": 2, "first": 3 }]);
            assert_eq!(said["verified"]["non_finite"], odd, "{said}");
        }
    }
    let text = page(&path, &["--verify"]);
    assert!(
        text.contains(&digest) && text.contains("norm: 2, the first is number 3"),
        "{text}"
    );

    // lessons/weights.md #34: one flipped byte.
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    for mode in ["slab", "map", "sealed"] {
        let line = refusal(&path, &["--mode", mode, "--sha256", sums.to_str().unwrap()]);
        assert!(
            line.contains("model.safetensors") && line.contains(&digest),
            "{line}"
        );
    }
}

#[test]
fn lists_of_digests_are_checked() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    let sums = place.path().join("sums");
    let flags = ["--sha256", sums.to_str().unwrap()];
    assert!(refusal(&path, &flags).contains("cannot read"));
    let digest = "0".repeat(64);
    for (text, what) in [
        ("no digest", "line 1 is not a SHA-256"),
        (&format!("{digest}  a\n{digest}"), "line 2 is not a SHA-256"),
        (&format!("{digest}  other.safetensors"), "0 of the 1 files"),
        ("", "0 of the 1 files"),
        (
            &format!(
                "{digest} *model.safetensors\n{}  model.safetensors",
                "1".repeat(64)
            ),
            "two different",
        ),
    ] {
        fs::write(&sums, text).unwrap();
        let line = refusal(&path, &flags);
        assert!(line.contains(what) && line.contains("sums"), "{line}");
    }
}

#[test]
fn what_a_mode_would_ignore_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = model(place.path());
    for flags in [
        &["--mode", "map", "--dtype", "f32"][..],
        &["--mode", "map", "--threads", "2"],
        &["--mode", "map", "--only", "*"],
        &["--mode", "map", "--drop-page-cache"],
        &["--mode", "map", "--protect"],
        &["--mode", "sealed", "--protect"],
        &["--advice", "random"],
        &["--mode", "sealed", "--misaligned", "error"],
    ] {
        let line = refusal(&path, flags);
        let flag = flags
            .iter()
            .rev()
            .find(|flag| flag.starts_with("--"))
            .unwrap();
        assert!(
            line.contains(flag) && line.contains("--mode"),
            "{flags:?}: {line}"
        );
    }
    let line = refusal(&path, &["--threads", "0"]);
    assert!(line.contains("0 threads"), "{line}");
    let line = refusal(&path, &["--only", "layer.*"]);
    assert!(line.contains("layer.*"), "{line}");
    assert!(refusal(&place.path().join("none"), &[]).contains("none"));
}

#[test]
fn the_page_fits_80_columns_and_real_models_load_in_every_mode() {
    let place = tempfile::tempdir().unwrap();
    let long = place
        .path()
        .join(format!("{}.safetensors", "x".repeat(200)));
    let name = "n".repeat(300);
    let norm = ops::full([4], f64::INFINITY, DType::F32, memory::cpu()).unwrap();
    save(&long, &[(name.as_str(), norm)], &BTreeMap::new()).unwrap();
    let mut paths = vec![long];
    paths.extend(shared("models/tiny-llama/bf16-2shard"));
    for path in paths {
        for mode in ["slab", "map", "sealed"] {
            let text = page(&path, &["--mode", mode, "--verify"]);
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
            assert!(text.contains("peak memory"), "{text}");
        }
    }
}
