//! What goes wrong around the `generate` example: one line that says what and what to
//! do, exit code 2, nothing left behind; and Ctrl-C and a closed pipe, which are no errors.

#![cfg(not(any(loom, tenslab_asan)))]
#![allow(
    clippy::unwrap_used,
    reason = "a folder that cannot be set up fails the test, as it should"
)]

mod support;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::example::{Example, assert_empty, binary, json};
use support::shared;
use tempfile::TempDir;

/// One line on standard error with these parts, nothing on standard output, exit code 2.
fn assert_refused(what: &str, output: &Output, parts: &[&str]) {
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(2),
        "{what}: {:?}: {line}",
        output.status
    );
    assert_eq!(line.lines().count(), 1, "{what}: {line}");
    assert!(line.starts_with("error: "), "{what}: {line}");
    assert!(
        output.stdout.is_empty(),
        "{what}: {:?}",
        String::from_utf8_lossy(&output.stdout)
    );
    for part in parts {
        assert!(line.contains(part), "{what}: {part:?} is not in: {line}");
    }
}

/// A copy of a tiny checkpoint, to be damaged.
fn copy(variant: &str) -> Option<(TempDir, String)> {
    let source = shared(&format!("models/tiny-llama/{variant}"))?;
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        // Bytes only: the source may be read-only.
        fs::write(
            directory.path().join(entry.file_name()),
            fs::read(entry.path()).unwrap(),
        )
        .unwrap();
    }
    let path = directory.path().to_str().unwrap().to_owned();
    Some((directory, path))
}

fn on_ids(model: &str) -> Output {
    Example::new(&[
        "--model",
        model,
        "--prompt-ids",
        "1,2,3",
        "--max-tokens",
        "2",
    ])
    .output()
}

fn change_config(directory: &Path, key: &str, value: Value) {
    let path = directory.join("config.json");
    let mut config = json(&path);
    config[key] = value;
    fs::write(path, config.to_string()).unwrap();
}

#[test]
fn the_copies_run_before_they_are_damaged() {
    let Some((_directory, model)) = copy("bf16-2shard") else {
        return;
    };
    assert!(on_ids(&model).status.success());
}

#[test]
fn a_truncated_checkpoint_is_refused() {
    let Some((directory, model)) = copy("f32") else {
        return;
    };
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for length in [bytes.len() - 1, bytes.len() / 2, 100, 7, 0] {
        fs::write(&path, &bytes[..length]).unwrap();
        assert_refused(
            &format!("{length} bytes"),
            &on_ids(&model),
            &["model.safetensors"],
        );
    }
}

#[test]
fn a_missing_shard_or_index_or_checkpoint_is_refused() {
    let Some((directory, model)) = copy("bf16-2shard") else {
        return;
    };
    let shard = "model-00002-of-00002.safetensors";
    fs::remove_file(directory.path().join(shard)).unwrap();
    assert_refused("a shard", &on_ids(&model), &[shard]);
    fs::remove_file(directory.path().join("model.safetensors.index.json")).unwrap();
    assert_refused("an index", &on_ids(&model), &[&model]);
    fs::remove_file(directory.path().join("config.json")).unwrap();
    assert_refused(
        "a config",
        &on_ids(&model),
        &["config.json", "Hugging Face directory"],
    );
    assert_refused("a directory", &on_ids(&format!("{model}/none")), &["none"]);
}

#[test]
fn a_config_that_disagrees_with_the_tensors_is_refused() {
    for (key, value, parts) in [
        ("hidden_size", 32, ["[32]", "[64]"]),
        ("vocab_size", 300, ["[300, 64]", "[256, 64]"]),
        ("intermediate_size", 177, ["[177, 64]", "[176, 64]"]),
        ("head_dim", 8, ["[32, 64]", "[64, 64]"]),
        ("num_key_value_heads", 4, ["k_proj", "[32, 64]"]),
        ("num_hidden_layers", 2, ["2 layers", "model.layers.2."]),
        ("num_hidden_layers", 4, ["config.json", "model.layers.3."]),
    ] {
        let Some((directory, model)) = copy("f16") else {
            return;
        };
        change_config(directory.path(), key, value.into());
        assert_refused(&format!("{key} {value}"), &on_ids(&model), &parts);
    }
}

#[test]
fn a_model_that_the_example_does_not_run_is_refused() {
    for (key, value, part) in [
        (
            "architectures",
            serde_json::json!(["MambaForCausalLM"]),
            "MambaForCausalLM",
        ),
        ("model_type", "mixtral".into(), "mixtral"),
        (
            "rope_scaling",
            serde_json::json!({"rope_type": "yarn", "factor": 2.0}),
            "yarn",
        ),
        ("hidden_act", "relu".into(), "relu"),
        ("rms_norm_eps", "small".into(), "config.json"),
    ] {
        let Some((directory, model)) = copy("f32") else {
            return;
        };
        change_config(directory.path(), key, value);
        assert_refused(key, &on_ids(&model), &[part]);
    }
}

#[test]
fn numbers_and_prompts_that_mean_nothing_are_refused() {
    let Some((_directory, model)) = copy("f32") else {
        return;
    };
    let tiny = |more: &[&str]| Example::new(&[&["--model", &model], more].concat()).output();
    assert_refused(
        "a text without a tokenizer",
        &tiny(&["--prompt", "hello"]),
        &["tokenizer.json", "--prompt-ids"],
    );
    assert_refused(
        "an id",
        &tiny(&["--prompt-ids", "1,256"]),
        &["256", "0 to 255"],
    );
    assert_refused(
        "a fed id",
        &tiny(&["--prompt-ids", "1", "--force-ids", "999"]),
        &["999"],
    );
    let long = (0..600).map(|_| "1").collect::<Vec<_>>().join(",");
    assert_refused(
        "a long prompt",
        &tiny(&["--prompt-ids", &long]),
        &["600 tokens", "512"],
    );
    assert_refused(
        "a short cache",
        &tiny(&["--prompt-ids", "1,2,3,4", "--context", "3"]),
        &["4 tokens", "room for 3", "--context"],
    );
    assert_refused(
        "a long context",
        &tiny(&["--prompt-ids", "1", "--context", "513"]),
        &["513", "512"],
    );

    let embedded = |more: &[&str]| Example::new(more).output();
    assert_refused(
        "no thread",
        &embedded(&["--threads", "0"]),
        &["--threads", "at least 1"],
    );
    assert_refused(
        "no token",
        &embedded(&["--max-tokens", "0"]),
        &["--max-tokens"],
    );
    for (what, args, parts) in [
        ("no text", &["--n", "0"][..], &["--n", "at least 1"][..]),
        (
            "texts that are all the same",
            &["--n", "2"],
            &["--n is 2", "--temperature"],
        ),
        (
            "one empty prompt of two",
            &["--prompt", "a", "--prompt", ""],
            &["prompt 2 of 2 is empty"],
        ),
        (
            "one long prompt of two",
            &["--prompt", "abc", "--prompt", "a", "--context", "2"],
            &["prompt 1 of 2 has 3 tokens", "room for 2"],
        ),
        (
            "an id of the second prompt",
            &["--prompt-ids", "1", "--prompt-ids", "2,256"],
            &["256", "0 to 255"],
        ),
        (
            "a system text before ids",
            &["--prompt-ids", "1", "--system", "x"],
            &["--prompt-ids", "--system"],
        ),
    ] {
        assert_refused(what, &embedded(args), parts);
    }
    assert_refused(
        "a cast of mapped weights",
        &embedded(&["--weights", "map", "--dtype", "f16"]),
        &["--dtype float16", "--weights load"],
    );
    assert_refused("no chunk", &embedded(&["--chunk", "0"]), &["--chunk"]);
    assert_refused(
        "an empty prompt",
        &embedded(&["--prompt", ""]),
        &["prompt is empty"],
    );
    assert_refused(
        "a negative number",
        &embedded(&["--threads=-1"]),
        &["--threads"],
    );
    assert_refused(
        "a dtype",
        &embedded(&["--kv-dtype", "int8"]),
        &["int8", "f32, f16, bf16"],
    );
    assert_refused(
        "no number",
        &embedded(&["--prompt-ids", "1,x"]),
        &["--prompt-ids", "x"],
    );
    assert_refused(
        "an unknown flag",
        &embedded(&["--modle", "x"]),
        &["--modle", "--help"],
    );
    assert_refused(
        "a cold sampler",
        &embedded(&["--temperature=-1"]),
        &["--temperature"],
    );
    assert_refused(
        "no share",
        &embedded(&["--temperature", "1", "--top-p", "0"]),
        &["--top-p"],
    );
}

#[test]
fn a_tokenizer_that_is_none_is_refused() {
    let Some((directory, model)) = copy("f32") else {
        return;
    };
    fs::write(directory.path().join("tokenizer.json"), "{}").unwrap();
    assert_refused("a tokenizer", &on_ids(&model), &["tokenizer.json"]);
}

#[test]
fn damaged_weights_are_refused_before_a_token_is_printed() {
    let Some((directory, model)) = copy("f32") else {
        return;
    };
    let path = directory.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    // The last tensor is the final norm: NaN in every element.
    bytes[end - 64 * 4..].fill(0xff);
    fs::write(&path, bytes).unwrap();
    assert_refused("NaN", &on_ids(&model), &["not finite"]);
}

/// A file system of 64 KiB is too small for the embedded model.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_refused_and_left_empty() {
    let mount = tempfile::tempdir().unwrap();
    // In a mount namespace of its own: nobody else sees the file system, and it goes with the shell.
    let script = r#"mount -t tmpfs -o size=64k tmpfs "$1" || exit 77; TMPDIR="$1" "$2"; code=$?; ls -A "$1"; exit $code"#;
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(mount.path())
        .arg(binary());
    let output = match command.output() {
        Ok(output) if !matches!(output.status.code(), Some(1 | 77)) => output,
        other => {
            eprintln!("skipped: no namespace with a small tmpfs can be had here: {other:?}");
            return;
        }
    };
    assert_refused(
        "a full disk",
        &output,
        &["cannot write the embedded model", "TMPDIR"],
    );
}

/// A run that takes many seconds unless it is told to stop: each step makes 200,000 heap
/// blocks.
#[cfg(unix)]
fn slow() -> (std::process::Child, TempDir) {
    let mut args = vec!["--max-tokens", "2000", "--plant-allocations", "200000"];
    args.extend(["--prompt", "first", "--prompt", "second"]);
    let mut example = Example::new(&args);
    example
        .command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    (example.command.spawn().unwrap(), example.temp)
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_after_the_current_token_with_a_report() {
    let (mut child, temp) = slow();
    let mut first = [0; 1];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{report}");
    assert!(
        report.contains("interrupted") && report.contains("who holds what"),
        "{report}"
    );
    assert!(!report.contains("prompt 2 of 2"), "{report}");
    assert_empty(temp.path());
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_is_no_error() {
    let (mut child, temp) = slow();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(report.contains("nobody reads"), "{report}");
    assert!(!report.contains("prompt 2 of 2"), "{report}");
    assert_empty(temp.path());
}
