//! The `generate` example on a tiny Llama, by the oracle's rule: all four variants of
//! its checkpoint, all formats of the cache, and everything that can be wrong.

#![cfg(not(any(loom, tenslab_asan)))]

mod support;

use std::path::Path;

use serde_json::Value;
use support::example::{Example, comma, found, json};
use support::oracle::{Expected, tiny_llama, tolerance};
use support::shared;

const KV_DTYPES: [&str; 3] = ["f32", "f16", "bf16"];

/// A variant's folder, and the oracle's runs with its weights.
fn variant(name: &str) -> Option<(String, Vec<Expected>)> {
    let directory = shared(&format!("models/tiny-llama/{name}"))?;
    let oracle = json(&shared("models/tiny-llama/oracle.json")?);
    let weights = name.split('-').next().expect("a name");
    let runs: Vec<Expected> = tiny_llama(&oracle)
        .into_iter()
        .filter(|run| run.weights == weights)
        .collect();
    assert_eq!(runs.len(), 3, "the oracle has three prompts with {weights}");
    Some((
        directory.to_str().expect("a path in UTF-8").to_owned(),
        runs,
    ))
}

fn report(directory: &str, run: &Expected, more: &[&str]) -> Value {
    let (prompt, steps) = (comma(&run.prompt), run.greedy.len().to_string());
    let args = [
        "--model",
        directory,
        "--prompt-ids",
        &prompt,
        "--max-tokens",
        &steps,
        "--ignore-eos",
        "--logits",
    ];
    Example::new(&[&args, more].concat()).json()
}

/// Free and fed, with one and two threads and prompts in pieces of several lengths.
fn follows_the_oracle(name: &str) {
    let Some((directory, runs)) = variant(name) else {
        return;
    };
    for run in &runs {
        for kv_dtype in KV_DTYPES {
            let what = format!("{name}, prompt of {}, KV {kv_dtype}", run.prompt.len());
            let kv = ["--kv-dtype", kv_dtype];
            let free = report(&directory, run, &[&kv[..], &["--threads", "1"]].concat());
            let steps = run
                .compare(&found(&free), tolerance(kv_dtype), false)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            if kv_dtype == "f32" {
                assert_eq!(steps, run.greedy.len(), "{what}: compared to the end");
            }
            for other in [["--threads", "2"], ["--chunk", "7"], ["--chunk", "1"]] {
                let again = report(&directory, run, &[&kv[..], &other].concat());
                assert_eq!(again["tokens"], free["tokens"], "{what}, {other:?}");
                assert_eq!(
                    again["top5"], free["top5"],
                    "{what}, {other:?}: not the same bits"
                );
            }
            let fed = report(
                &directory,
                run,
                &[&kv[..], &["--force-ids", &comma(&run.greedy)]].concat(),
            );
            let steps = run
                .compare(&found(&fed), tolerance(kv_dtype), true)
                .unwrap_or_else(|error| panic!("{what}, fed: {error}"));
            assert_eq!(steps, run.greedy.len(), "{what}, fed: compared to the end");
        }
    }
}

#[test]
fn the_f32_checkpoint_follows_the_oracle() {
    follows_the_oracle("f32");
}

#[test]
fn the_bf16_checkpoint_follows_the_oracle() {
    follows_the_oracle("bf16");
}

#[test]
fn the_f16_checkpoint_follows_the_oracle() {
    follows_the_oracle("f16");
}

#[test]
fn the_checkpoint_in_two_shards_follows_the_oracle() {
    follows_the_oracle("bf16-2shard");
}

/// Slab, mapped files and sealed memory: the oracle's tokens, and the same bits. Where there is no
/// such thing it is said so.
#[test]
fn weights_in_a_slab_in_mapped_files_and_in_sealed_memory_give_the_same_bits() {
    for name in ["f32", "f16", "bf16", "bf16-2shard"] {
        let Some((directory, runs)) = variant(name) else {
            return;
        };
        for run in &runs {
            let loaded = report(&directory, run, &["--weights", "load"]);
            run.compare(&found(&loaded), tolerance("f32"), false)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(loaded["weights_in"], "one slab");
            for (mode, holder) in [("map", "mapped files"), ("sealed", "sealed memory")] {
                if cfg!(any(not(target_os = "linux"), tenslab_portable)) {
                    let args = ["--model", &directory, "--weights", mode];
                    assert_eq!(
                        Example::new(&args).output().status.code(),
                        Some(2),
                        "{mode}"
                    );
                    continue;
                }
                let other = report(&directory, run, &["--weights", mode]);
                assert_eq!(other["weights_in"], holder, "{name}");
                assert_eq!(other["tokens"], loaded["tokens"], "{name}, {mode}");
                assert_eq!(other["top5"], loaded["top5"], "{name}, {mode}");
                assert_eq!(other["heap_blocks_per_token"], 0, "{name}, {mode}");
            }
        }
    }
}

#[test]
fn another_oracle_would_not_do() {
    let Some((directory, runs)) = variant("f32") else {
        return;
    };
    let found = found(&report(&directory, &runs[0], &[]));
    assert!(
        runs[1].compare(&found, 0.2, false).is_err(),
        "the rule tells two prompts apart"
    );
}

#[test]
fn weights_that_are_cast_are_the_weights_of_that_checkpoint() {
    let (Some((wide, runs)), Some((narrow, _))) = (variant("f32"), variant("bf16")) else {
        return;
    };
    let cast = report(&wide, &runs[1], &["--dtype", "bf16"]);
    let stored = report(&narrow, &runs[1], &[]);
    assert_eq!(
        cast["top5"], stored["top5"],
        "bfloat16 by us and by the checkpoint's writer"
    );
    assert_eq!(cast["weights_bytes"], stored["weights_bytes"]);
    assert_eq!(cast["dtype"], "bfloat16");
}

#[test]
fn a_report_says_who_holds_what() {
    let Some((directory, runs)) = variant("f32") else {
        return;
    };
    let report = report(
        &directory,
        &runs[1],
        &["--threads", "2", "--context", "100"],
    );
    let bytes = |name: &str| {
        report[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} in {report}"))
    };
    let file = std::fs::metadata(Path::new(&directory).join("model.safetensors"))
        .unwrap()
        .len();
    assert!(
        bytes("weights_bytes") > file - 8_192 && bytes("weights_bytes") < file + 4_096,
        "{report}"
    );
    // 3 layers, K and V, 2 heads of 16, f32: 768 bytes a token; 8 + 47 tokens are 2 blocks of 32, 100 are 4.
    assert_eq!(bytes("kv_used_bytes"), 768 * 64);
    assert_eq!(bytes("kv_reserved_bytes"), 768 * 128);
    // The arena was made for the largest step, and for nothing more.
    let (step, held) = (bytes("scratch_bytes"), bytes("scratch_retained_bytes"));
    assert!(step > 0, "{report}");
    assert_eq!(held, (step + 128).next_multiple_of(4096), "{report}");
    assert!(report["tokens_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(
        report["text"].as_str().unwrap().split_whitespace().count(),
        48,
        "without a tokenizer: ids"
    );
    if cfg!(target_os = "linux") {
        let rss = bytes("peak_rss_bytes");
        assert!(
            rss > bytes("weights_bytes") && rss < file + bytes("kv_used_bytes") + (72 << 20),
            "{rss}"
        );
    }
}

#[test]
fn a_decode_step_makes_no_heap_block_and_each_planted_one_is_seen() {
    for threads in ["1", "2", "3"] {
        for planted in ["0", "1", "3"] {
            let args = [
                "--threads",
                threads,
                "--max-tokens",
                "40",
                "--plant-allocations",
                planted,
            ];
            let report = Example::new(&args).json();
            assert_eq!(
                report["heap_blocks_per_token"].to_string(),
                planted,
                "{threads} threads"
            );
        }
    }
}

#[test]
fn without_a_model_it_makes_one_and_says_that_its_text_is_noise() {
    let output = Example::new(&["--max-tokens", "20"]).output();
    let (text, report) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{report}");
    assert_eq!(
        text.trim_end_matches('\n').len(),
        20,
        "20 printable characters: {text:?}"
    );
    for part in [
        "noise",
        "weights",
        "KV",
        "scratch",
        "peak RSS",
        "0 blocks per decoded token",
    ] {
        assert!(report.contains(part), "{part} in {report}");
    }
}

#[test]
fn a_seed_gives_one_text_and_another_seed_another() {
    let draw = |seed| {
        Example::new(&[
            "--temperature",
            "1.5",
            "--top-p",
            "0.95",
            "--seed",
            seed,
            "--max-tokens",
            "40",
        ])
        .json()
    };
    let first = draw("1");
    assert_eq!(first["tokens"], draw("1")["tokens"]);
    assert_ne!(first["tokens"], draw("2")["tokens"]);
}

#[test]
fn a_full_cache_ends_the_text() {
    // The last token needs no room: it is chosen and not computed on.
    let report =
        Example::new(&["--prompt", "abcd", "--context", "10", "--max-tokens", "50"]).json();
    assert_eq!(report["stop"], "context");
    assert_eq!(report["tokens"].as_array().unwrap().len(), 7);
}
