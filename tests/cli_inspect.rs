//! `tenslab inspect`, as a program.

#![cfg(all(feature = "cli", not(loom)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod checkpoint_files;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use checkpoint_files::{entry, file, object, packed, shared, write};
use serde_json::Value;

fn tenslab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tenslab"))
}

fn inspect(path: &Path, flags: &[&str]) -> Output {
    tenslab()
        .arg("inspect")
        .arg(path)
        .args(flags)
        .output()
        .unwrap()
}

fn table(path: &Path) -> String {
    let output = inspect(path, &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(path: &Path) -> Value {
    let output = inspect(path, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The one line on stderr, without the program's name.
fn refusal(path: &Path) -> String {
    let output = inspect(path, &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    text.trim_end().strip_prefix("tenslab: ").unwrap().into()
}

#[test]
fn the_table_has_a_row_for_each_tensor_and_totals() {
    let place = tempfile::tempdir().unwrap();
    let (header, bytes) = packed(&[
        ("embed", "F32", &[4, 8], 128),
        ("norm", "BF16", &[8], 16),
        ("scalar", "BF16", &[], 2),
        ("odd", "F128", &[1], 3),
    ]);
    let header = header.replacen('{', r#"{"__metadata__":{"format":"pt"},"#, 1);
    // 8 bytes of length and the header end at a multiple of 64.
    let header = format!(
        "{header:<width$}",
        width = (header.len() + 8).next_multiple_of(64) - 8
    );
    let path = write(place.path(), "model.safetensors", &file(&header, bytes));
    let start = header.len() + 8;
    let text = table(&path);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    let has = |row: &str| {
        let row: Vec<_> = row.split(' ').collect();
        assert!(rows.contains(&row), "no {row:?} in\n{text}");
    };
    has("name dtype shape bytes offset align");
    let row = |text: &str, offset: usize| {
        let align = offset & offset.wrapping_neg();
        has(&format!("{text} {offset} {}", align.min(4096)));
    };
    row("embed F32 4x8 128", start);
    row("norm BF16 8 16", start + 128);
    row("scalar BF16 scalar 2", start + 144);
    row("odd F128 1 3", start + 146);
    assert_eq!(start % 64, 0);
    has("BF16 2 18 18 B");
    has("F32 1 128 128 B");
    has("total 4 149 149 B");
    has("format: pt");
}

/// Ten behind nine, by the first part of a name that is a number and nothing else; what has
/// none, or one too large for a layer, is of no layer.
#[test]
fn totals_by_layer_are_in_the_order_of_the_layers() {
    let place = tempfile::tempdir().unwrap();
    let names = [
        "model.layers.10.norm",
        "model.layers.9.norm",
        "model.layers.9.q.0.weight",
        "decoder.9.norm",
        "7",
        "embed",
        "layers.+1.norm",
        "layers.99999999999.norm",
        "layers..norm",
    ];
    let (header, bytes) = packed(&names.map(|name| (name, "F32", &[4][..], 16)));
    let path = write(place.path(), "model.safetensors", &file(&header, bytes));

    let text = table(&path);
    let lines: Vec<Vec<&str>> = (text.lines().map(|line| line.split_whitespace().collect()))
        .skip_while(|row: &Vec<&str>| row.first() != Some(&"layer"))
        .collect();
    let rows = [
        "layer tensors bytes",
        "7 1 16 16 B",
        "decoder.9 1 16 16 B",
        "model.layers.9 2 32 32 B",
        "model.layers.10 1 16 16 B",
        "(none) 4 64 64 B",
    ];
    let rows = rows.map(|row| row.split(' ').collect::<Vec<_>>());
    assert_eq!(lines, rows, "{text}");

    let layers = json(&path)["layers"].clone();
    let layer = |name: Value, tensors: usize| serde_json::json!({"layer": name, "tensors": tensors, "nbytes": 16 * tensors});
    let expected = [
        layer("7".into(), 1),
        layer("decoder.9".into(), 1),
        layer("model.layers.9".into(), 2),
        layer("model.layers.10".into(), 1),
        layer(Value::Null, 4),
    ];
    assert_eq!(layers, Value::from(expected.to_vec()));

    // A file without layers has no table of them.
    let (header, bytes) = packed(&[("embed", "F32", &[4], 16)]);
    let path = write(place.path(), "other.safetensors", &file(&header, bytes));
    assert!(!table(&path).contains("layer"));
}

#[test]
fn json_says_what_the_header_says() {
    let place = tempfile::tempdir().unwrap();
    let text = object(&[
        entry("b", "U8", &[3], 8, 11),
        entry("a\u{1b}\"", "F64", &[], 0, 8),
    ]);
    let text = text.replacen('{', r#"{"__metadata__":{"k":"v\n"},"#, 1);
    let path = write(place.path(), "model.safetensors", &file(&text, 11));
    let start = text.len() + 8;
    let value = json(place.path());
    assert_eq!(value["total_bytes"], 11);
    assert_eq!(value["metadata"], serde_json::json!({"k": "v\n"}));
    assert_eq!(
        value["totals"]["F64"],
        serde_json::json!({"tensors": 1, "nbytes": 8})
    );
    assert_eq!(value["files"][0]["path"], path.to_str().unwrap());
    let tensors = value["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 2);
    let fields = |at: usize| {
        let t = &tensors[at];
        serde_json::json!([
            t["name"],
            t["dtype"],
            t["shape"],
            t["nbytes"],
            t["offset"],
            t["data_offsets"]
        ])
    };
    assert_eq!(
        fields(0),
        serde_json::json!(["a\u{1b}\"", "F64", [], 8, start, [0, 8]])
    );
    assert_eq!(
        fields(1),
        serde_json::json!(["b", "U8", [3], 3, start + 8, [8, 11]])
    );
}

#[test]
fn shared_files_fit_80_columns_and_lose_nothing() {
    for path in [
        "weights/all_dtypes.safetensors",
        "models/tiny-llama/bf16-2shard",
    ] {
        let Some(path) = shared(path) else {
            return;
        };
        let text = table(&path);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        // Joined, the lines hold every name: a long one is broken, not cut.
        let joined = text.replace('\n', "");
        let value = json(&path);
        for tensor in value["tensors"].as_array().unwrap() {
            let name = tensor["name"].as_str().unwrap();
            assert!(joined.contains(name), "{name}");
        }
        let files = value["files"].as_array().unwrap().len();
        assert_eq!(text.matches("data from byte").count(), files);
    }
}

#[test]
fn names_cannot_drive_the_terminal_or_forge_rows() {
    let place = tempfile::tempdir().unwrap();
    let name = "evil\u{1b}[2J\r\nrow F32\u{202e}\0";
    let (text, bytes) = packed(&[(name, "U8", &[1], 1), ("x", "\\u001b[31m", &[1], 1)]);
    let text = text.replacen('{', r#"{"__metadata__":{"\u001b":"\n\u0007"},"#, 1);
    let path = write(place.path(), "x.safetensors", &file(&text, bytes));
    let shown = table(&path);
    assert!(
        shown
            .chars()
            .all(|letter| letter == '\n' || !letter.is_control()),
        "{shown:?}"
    );
    assert!(!shown.contains('\u{202e}'));
    assert!(
        shown.contains(r"evil\u{1b}[2J\r\nrow F32\u{202e}\u{0}"),
        "{shown}"
    );
}

#[test]
fn ten_thousand_tensors_and_a_reader_that_goes_away() {
    let place = tempfile::tempdir().unwrap();
    let entries: Vec<_> = (0..10_000)
        .map(|at| {
            entry(
                &format!("model.layers.{at}.self_attn.q_proj.weight"),
                "BF16",
                &[2, 4],
                at * 16,
                at * 16 + 16,
            )
        })
        .collect();
    let path = write(
        place.path(),
        "many.safetensors",
        &file(&object(&entries), 160_000),
    );
    let text = table(&path);
    assert!(text.lines().count() > 10_000);
    assert_eq!(json(&path)["tensors"].as_array().unwrap().len(), 10_000);

    for flags in [&[][..], &["--json"]] {
        let mut child = tenslab()
            .arg("inspect")
            .arg(&path)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        let mut out = BufReader::with_capacity(10, child.stdout.take().unwrap());
        std::io::Read::read_exact(&mut out, &mut first).unwrap();
        drop(out);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        eprintln!("skipped: there is no /dev/full");
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let path = write(place.path(), "x.safetensors", &file("{}", 0));
    let output = tenslab()
        .arg("inspect")
        .arg(&path)
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.starts_with("tenslab: cannot write the answer: "),
        "{text}"
    );
}

#[test]
fn what_is_wrong_is_one_line_and_exit_code_2() {
    let place = tempfile::tempdir().unwrap();
    let in_place = |name: &str| place.path().join(name);

    let text = refusal(&in_place("nowhere"));
    assert!(
        text.ends_with("nowhere: cannot open: No such file or directory (os error 2)"),
        "{text}"
    );

    let text = refusal(place.path());
    assert!(
        text.contains("no model.safetensors and no model.safetensors.index.json"),
        "{text}"
    );

    let (header, bytes) = packed(&[("x", "F32", &[2], 8)]);
    let whole = file(&header, bytes);
    let path = write(place.path(), "cut\n.safetensors", &whole[..whole.len() - 3]);
    let text = refusal(&path);
    assert!(
        text.contains(r"cut\n.safetensors: truncated: tensor") && text.contains("3 are missing"),
        "{text}"
    );

    write(
        place.path(),
        "model.safetensors.index.json",
        br#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#,
    );
    let text = refusal(place.path());
    assert!(
        text.contains("2 of 2 files are missing: 1.safetensors, 2.safetensors; download"),
        "{text}"
    );

    for arguments in [
        &[][..],
        &["inspect"],
        &["frobnicate"],
        &["inspect", "a", "--yaml"],
    ] {
        let output = tenslab().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
    let help = tenslab().arg("--help").output().unwrap();
    assert!(help.status.success());
    assert!(
        BufReader::new(&help.stdout[..])
            .lines()
            .any(|line| line.unwrap().contains("inspect"))
    );
}
