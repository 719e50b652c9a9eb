//! `tenslab plan`, as a program.

#![cfg(all(feature = "cli", not(loom)))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

fn tenslab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tenslab"))
}

fn qwen3() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "hidden_size": 1024,
        "max_position_embeddings": 40960, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "torch_dtype": "bfloat16"
    })
}

/// A directory with that `config.json`.
fn place(config: &Value) -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::write(config_in(&place), config.to_string()).unwrap();
    place
}

fn config_in(place: &TempDir) -> PathBuf {
    place.path().join("config.json")
}

/// `arguments` as one would type them.
fn plan(config: &Path, arguments: &str) -> Output {
    tenslab()
        .args(["plan", "--config"])
        .arg(config)
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

fn answer(config: &Path, arguments: &str) -> Value {
    let output = plan(config, &format!("{arguments} --json"));
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn lines(config: &Path, arguments: &str) -> String {
    let output = plan(config, arguments);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The one line on stderr, without the program's name.
fn refusal(config: &Path, arguments: &str) -> String {
    let output = plan(config, arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    text.trim_end().strip_prefix("tenslab: ").unwrap().into()
}

/// lessons/kv.md #26, by the command of the issue.
#[test]
fn four_gib_of_qwen3_are_292_blocks_and_37376_tokens() {
    let place = place(&qwen3());
    let config = config_in(&place);
    let found = answer(&config, "--budget 4GiB --block-tokens 128 --kv-dtype bf16");
    assert_eq!(
        found,
        json!({
            "config": config.to_str().unwrap(),
            "layers": 28, "kv_heads": 8, "key_dim": 128, "value_dim": 128,
            "kv_dtype": "bfloat16", "layout": "block-major-hnd",
            "budget_bytes": 4_294_967_296_u64, "block_tokens": 128,
            "bytes_per_token": 114_688, "block_bytes": 14_680_064,
            "blocks": 292, "tokens": 37_376,
            "region_bytes": 4_286_578_688_u64, "unused_bytes": 8_388_608,
            "context": 40_960, "context_bytes": 4_697_620_480_u64,
            "sequences": 0, "longest_context": 37_376
        })
    );
    // The directory is as good as the file, the dtype is the config's, and 4 GiB is 4 GiB.
    for budget in ["4GiB", "4294967296", "4096MiB", "4.0gib"] {
        let arguments = format!("--budget {budget} --block-tokens 128");
        assert_eq!(answer(place.path(), &arguments), found, "{budget}");
    }
    let smaller = answer(&config, "--budget 4GB --block-tokens 128");
    assert_eq!(smaller["blocks"], 272);
}

#[test]
fn dtype_layout_and_context_are_as_asked() {
    let place = place(&qwen3());
    let config = config_in(&place);
    let found = answer(
        &config,
        "--budget 4GiB --kv-dtype f32 --layout layer-major-nhd --context 1000",
    );
    assert_eq!(found["block_tokens"], 16);
    assert_eq!(found["kv_dtype"], "float32");
    assert_eq!(found["layout"], "layer-major-nhd");
    assert_eq!(found["bytes_per_token"], 2 * 114_688);
    assert_eq!(found["blocks"], 1170);
    assert_eq!(found["context"], 1000);
    // 63 blocks of 16 tokens each.
    assert_eq!(found["context_bytes"], 63 * 16 * 2 * 114_688);
    assert_eq!(found["sequences"], 1170 / 63);
    assert_eq!(found["longest_context"], 1000);
    // Rows of which a layer has less than a cache line: layer-major pads each layer.
    let mut small = qwen3();
    for (field, size) in [("head_dim", 1), ("num_key_value_heads", 1)] {
        small[field] = size.into();
    }
    fs::write(&config, small.to_string()).unwrap();
    let arguments = "--budget 1MiB --block-tokens 1 --layout";
    let block_bytes =
        |layout: &str| answer(&config, &format!("{arguments} {layout}"))["block_bytes"].clone();
    assert_eq!(block_bytes("block-major-hnd"), 128);
    assert_eq!(block_bytes("layer-major-hnd"), 28 * 64);
}

#[test]
fn without_a_context_there_is_nothing_to_say_about_one() {
    let mut config = qwen3();
    config["max_position_embeddings"] = Value::Null;
    let place = place(&config);
    let found = answer(place.path(), "--budget 4GiB");
    for key in ["context", "context_bytes", "sequences", "longest_context"] {
        assert_eq!(found[key], Value::Null, "{key}");
    }
    let text = lines(place.path(), "--budget 4GiB");
    assert!(!text.contains("context"), "{text}");
    // A context beyond all addresses is no crash.
    let found = answer(place.path(), "--budget 4GiB --context 18446744073709551615");
    assert_eq!(found["context_bytes"], Value::Null);
    assert_eq!(found["sequences"], 0);
    assert_eq!(found["longest_context"], found["tokens"]);
}

#[test]
fn the_lines_have_the_numbers_in_80_columns() {
    let place = place(&qwen3());
    let text = lines(place.path(), "--budget 4GiB --block-tokens 128");
    for line in [
        "model      28 layers, 8 kv heads, keys of 128, values of 128",
        "layout     block-major-hnd, bfloat16",
        "token      114688 bytes (112.00 KiB)",
        "block      128 tokens, 14680064 bytes (14.00 MiB)",
        "budget     4294967296 bytes (4.00 GiB)",
        "blocks     292",
        "tokens     37376",
        "unused     8388608 bytes (8.00 MiB)",
        "context    40960 tokens need 4697620480 bytes (4.38 GiB)",
        "sequences  0: a sequence can have 37376 tokens",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let text = lines(
        place.path(),
        "--budget 4GiB --block-tokens 128 --context 4096",
    );
    assert!(text.ends_with("sequences  9 of that length\n"), "{text}");

    // Sizes as large as they get, a path that is long and would drive the terminal.
    let deep = place.path().join(format!("{}\u{1b}[2J", "long".repeat(40)));
    fs::create_dir(&deep).unwrap();
    let mut config = qwen3();
    config["num_key_value_heads"] = 1_000_000.into();
    config["max_position_embeddings"] = 2_147_483_647.into();
    fs::write(deep.join("config.json"), config.to_string()).unwrap();
    let text = lines(&deep, "--budget 18446744073709551615");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn one_component_says_so() {
    let place = place(&json!({
        "num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "torch_dtype": "bfloat16"
    }));
    let found = answer(place.path(), "--budget 1GiB --block-tokens 64");
    assert_eq!(found["bytes_per_token"], 70_272);
    assert_eq!(found["value_dim"], 0);
    let text = lines(place.path(), "--budget 1GiB");
    assert!(
        text.contains("61 layers, 1 kv heads, keys of 576, no values (one component)\n"),
        "{text}"
    );
}

#[test]
fn what_is_wrong_is_one_line_that_says_what_to_do() {
    let good = place(&qwen3());
    for (arguments, part) in [
        (
            "--budget 10MiB --block-tokens 128",
            "a budget of 10485760 bytes holds no kv block, which has 14680064 bytes; give \
             --budget 14680064 or more",
        ),
        (
            "--budget 4GiB --block-tokens 0",
            "give another --block-tokens",
        ),
        ("--budget 4GiB --context 0", "--context must be at least 1"),
        (
            "--budget 4GiB --kv-dtype q8_0",
            "q8_0 yet (it needs scales beside the data), only as float32, float16 or bfloat16; \
             give --kv-dtype f32, f16 or bf16",
        ),
        ("--budget 4GiB --kv-dtype int8", "as int8 yet"),
        ("--budget 4GiB --kv-dtype fp8", "as fp8_e4m3 yet"),
    ] {
        let text = refusal(good.path(), arguments);
        assert!(text.contains(part), "{arguments}: {text}");
    }
    let without = |field: &str, value: Value| {
        let mut config = qwen3();
        config[field] = value;
        let place = place(&config);
        refusal(place.path(), "--budget 4GiB")
    };
    let text = without("num_hidden_layers", Value::Null);
    assert!(
        text.contains("config.json: num_hidden_layers is missing") && text.contains("add it"),
        "{text}"
    );
    let text = without("head_dim", json!("wide\n"));
    assert!(text.contains(r#"head_dim is "wide\n", expected"#), "{text}");
    let text = without("num_hidden_layers", json!(300));
    assert!(text.contains("layers is 300, at most 256"), "{text}");
    for dtype in [Value::Null, json!("auto")] {
        let text = without("torch_dtype", dtype);
        assert!(
            text.ends_with("give one with --kv-dtype f32, f16 or bf16"),
            "{text}"
        );
    }
    let text = refusal(&good.path().join("nowhere"), "--budget 4GiB");
    assert!(
        text.contains("cannot open") && text.contains("--config wants a Hugging Face config.json"),
        "{text}"
    );
    let other = good.path().join("model.safetensors");
    fs::write(&other, [0xff, 0, 1]).unwrap();
    let text = refusal(&other, "--budget 4GiB");
    assert!(text.contains("cannot read"), "{text}");
    fs::write(&other, "[1]").unwrap();
    let text = refusal(&other, "--budget 4GiB");
    assert!(text.contains("expected an object, not an array"), "{text}");
}

/// What clap refuses: more than a line, but with the same code.
#[test]
fn arguments_that_are_none_are_refused_with_what_is_possible() {
    let place = place(&qwen3());
    for (arguments, part) in [
        ("", "--budget <SIZE>"),
        ("--budget 4G", "write GiB or GB"),
        ("--budget -1", "not a size"),
        ("--budget lots", "4GiB, 512MiB, 8GB, or plain bytes"),
        (
            "--budget 4GiB --kv-dtype q5_1",
            "expected one of float32, float16",
        ),
        ("--budget 4GiB --layout nhd", "layer-major-nhd"),
        ("--budget 4GiB --block-tokens some", "invalid digit"),
    ] {
        let output = plan(place.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(part), "{arguments}: {text}");
    }
}

#[test]
fn help_names_every_option() {
    let output = tenslab().args(["plan", "--help"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "--config <PATH>",
        "--budget <SIZE>",
        "4GiB, 512MiB, 8GB, or plain bytes",
        "--block-tokens <N>",
        "[default: 16]",
        "--kv-dtype <DTYPE>",
        "--layout <LAYOUT>",
        "block-major-hnd, block-major-nhd, layer-major-hnd, layer-major-nhd",
        "--context <N>",
        "--json",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let output = tenslab().arg("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.lines().any(|line| line.trim().starts_with("plan ")),
        "{text}"
    );
}
