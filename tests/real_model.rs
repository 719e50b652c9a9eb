//! SmolLM2-135M, for real: every tensor, every prompt of the oracle, both weight
//! formats, all formats of the cache.
//!
//! Skips, and says so, unless `TENSLAB_SMOLLM2` names the folder that
//! `scripts/fetch_smollm2.py` filled (`bf16`, `f32`, `bf16-3shard`). Meant for
//! `--release`: unoptimised it takes minutes.

#![cfg(not(any(loom, tenslab_asan)))]

mod support;

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use support::example::{Example, comma, found, json};
use support::oracle::{Expected, smollm2, tolerance};
use support::shared;
use tenslab::weights::{LoadOptions, Weights};
use tenslab::{DType, Tensor};

/// Where the model is.
fn model(variant: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("TENSLAB_SMOLLM2") else {
        eprintln!(
            "skipped: TENSLAB_SMOLLM2 does not name the folder that scripts/fetch_smollm2.py filled"
        );
        return None;
    };
    let directory = Path::new(&root).join(variant);
    assert!(
        directory.is_dir(),
        "TENSLAB_SMOLLM2 has no {variant}; scripts/fetch_smollm2.py makes it"
    );
    Some(directory)
}

fn load(variant: &str, dtype: Option<DType>) -> Option<Weights> {
    let options = LoadOptions {
        dtype,
        ..LoadOptions::default()
    };
    Some(
        Weights::load(model(variant)?, &options)
            .unwrap_or_else(|error| panic!("{variant}: {error}")),
    )
}

/// The first 16 hexadecimal digits of the SHA-256 of a tensor's bytes.
fn digest(tensor: &Tensor) -> String {
    let hash = Sha256::digest(&*tensor.read_bytes().expect("a contiguous tensor"));
    hash.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Every tensor is the one that the reference package read.
fn has_the_reference_digests(weights: &Weights) {
    let Some(path) = shared("oracle/tensor_digests.json") else {
        return;
    };
    let digests = json(&path);
    let tensors = digests["smollm2-135m-bf16"]["tensors"]
        .as_object()
        .expect("tensors");
    assert_eq!(weights.names().count(), tensors.len());
    for (name, expected) in tensors {
        let tensor = weights
            .get(name)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = serde_json::json!(["BF16", tensor.shape().dims(), digest(&tensor)]);
        assert_eq!(&found, expected, "{name}");
        assert_eq!(tensor.dtype(), DType::BF16, "{name}");
        assert_eq!(
            tensor.data_ptr::<tenslab::bf16>() as usize % 64,
            0,
            "{name} is aligned"
        );
    }
}

#[test]
fn every_tensor_of_one_file_is_the_reference_s() {
    let Some(weights) = load("bf16", None) else {
        return;
    };
    has_the_reference_digests(&weights);
}

#[test]
fn every_tensor_of_three_shards_is_the_reference_s() {
    let Some(weights) = load("bf16-3shard", None) else {
        return;
    };
    assert_eq!(weights.report().files, 3);
    has_the_reference_digests(&weights);
}

#[test]
fn f32_cast_while_loading_is_the_reference_s_bf16() {
    let Some(weights) = load("f32", Some(DType::BF16)) else {
        return;
    };
    assert_eq!(weights.report().cast_tensors, 272);
    has_the_reference_digests(&weights);
}

#[test]
fn one_file_and_three_shards_are_the_same_bits() {
    let (Some(one), Some(three)) = (load("bf16", None), load("bf16-3shard", None)) else {
        return;
    };
    assert_eq!(one.names().count(), 272);
    for name in one.names() {
        let (a, b) = (one.get(name).unwrap(), three.get(name).unwrap());
        assert_eq!(a.shape(), b.shape(), "{name}");
        assert!(
            *a.read_bytes().unwrap() == *b.read_bytes().unwrap(),
            "{name}"
        );
    }
}

fn report(variant: &Path, run: &Expected, more: &[&str]) -> Value {
    let (directory, prompt, steps) = (
        variant.to_str().expect("UTF-8"),
        comma(&run.prompt),
        run.greedy.len().to_string(),
    );
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

/// Every prompt, free and fed, by the oracle's rule.
fn follows_the_oracle(variant: &str, weights: &str, kv_dtype: &str) {
    let (Some(directory), Some(oracle)) = (model(variant), shared("oracle/smollm2_oracle.json"))
    else {
        return;
    };
    let runs = smollm2(&json(&oracle), weights);
    assert_eq!(runs.len(), 2, "the oracle has two prompts");
    for run in &runs {
        let what = format!("{variant}, prompt of {}, KV {kv_dtype}", run.prompt.len());
        let free = report(&directory, run, &["--kv-dtype", kv_dtype]);
        let steps = run
            .compare(&found(&free), tolerance(kv_dtype), false)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        if kv_dtype == "f32" {
            assert_eq!(steps, run.greedy.len(), "{what}: compared to the end");
        }
        assert_eq!(free["heap_blocks_per_token"], 0, "{what}");

        let fed = report(
            &directory,
            run,
            &["--kv-dtype", kv_dtype, "--force-ids", &comma(&run.greedy)],
        );
        let compared = run
            .compare(&found(&fed), tolerance(kv_dtype), true)
            .unwrap_or_else(|error| panic!("{what}, fed: {error}"));
        assert_eq!(
            compared,
            run.greedy.len(),
            "{what}, fed: compared to the end"
        );
        eprintln!(
            "{what}: {steps} free and {compared} fed steps within {}",
            tolerance(kv_dtype)
        );
    }
}

#[test]
fn f32_weights_follow_the_oracle() {
    follows_the_oracle("f32", "f32", "f32");
}

#[test]
fn f32_weights_with_an_f16_cache_follow_the_oracle() {
    follows_the_oracle("f32", "f32", "f16");
}

#[test]
fn f32_weights_with_a_bf16_cache_follow_the_oracle() {
    follows_the_oracle("f32", "f32", "bf16");
}

#[test]
fn bf16_weights_follow_the_oracle() {
    follows_the_oracle("bf16", "bf16", "f32");
}

#[test]
fn bf16_weights_with_an_f16_cache_follow_the_oracle() {
    follows_the_oracle("bf16", "bf16", "f16");
}

#[test]
fn bf16_weights_with_a_bf16_cache_follow_the_oracle() {
    follows_the_oracle("bf16", "bf16", "bf16");
}

#[test]
fn one_and_two_threads_one_and_three_shards_short_and_long_chunks_give_the_same_bits() {
    let (Some(one), Some(three), Some(oracle)) = (
        model("bf16"),
        model("bf16-3shard"),
        shared("oracle/smollm2_oracle.json"),
    ) else {
        return;
    };
    for run in smollm2(&json(&oracle), "bf16") {
        let first = report(&one, &run, &["--threads", "1"]);
        for (directory, more) in [
            (&one, ["--threads", "2"]),
            (&three, ["--threads", "2"]),
            (&one, ["--chunk", "5"]),
        ] {
            let again = report(directory, &run, &more);
            assert_eq!(again["tokens"], first["tokens"], "{more:?}");
            assert_eq!(again["top5"], first["top5"], "{more:?}");
        }
    }
}

/// A slab, mapped files and sealed memory, of one file and of three: the oracle's tokens, and the
/// same bits.
#[test]
fn slab_mapped_files_and_sealed_memory_follow_the_oracle_with_the_same_bits() {
    let (Some(one), Some(three), Some(oracle)) = (
        model("bf16"),
        model("bf16-3shard"),
        shared("oracle/smollm2_oracle.json"),
    ) else {
        return;
    };
    for run in smollm2(&json(&oracle), "bf16") {
        let mut first: Option<Value> = None;
        for directory in [&one, &three] {
            for mode in ["load", "map", "sealed"] {
                let what = format!("{}, {mode}", directory.display());
                let this = report(directory, &run, &["--weights", mode]);
                let steps = run
                    .compare(&found(&this), tolerance("f32"), false)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(steps, run.greedy.len(), "{what}: compared to the end");
                assert_eq!(this["heap_blocks_per_token"], 0, "{what}");
                let first = first.get_or_insert_with(|| this.clone());
                assert_eq!(this["tokens"], first["tokens"], "{what}");
                assert_eq!(this["top5"], first["top5"], "{what}");
                eprintln!(
                    "{what}: {steps} steps, weights in {} of {}, peak RSS {}",
                    this["weights_in"], this["weights_bytes"], this["peak_rss_bytes"]
                );
            }
        }
    }
}

#[test]
fn the_prompt_s_text_is_the_oracle_s_ids() {
    let (Some(directory), Some(oracle)) = (model("bf16"), shared("oracle/smollm2_oracle.json"))
    else {
        return;
    };
    for run in smollm2(&json(&oracle), "bf16") {
        let text = run.text.as_deref().expect("the oracle's prompts have text");
        let directory = directory.to_str().expect("UTF-8");
        let report = Example::new(&[
            "--model",
            directory,
            "--prompt",
            text,
            "--max-tokens",
            "8",
            "--ignore-eos",
        ])
        .json();
        assert_eq!(report["prompt_ids"], serde_json::json!(run.prompt));
        assert_eq!(report["tokens"], serde_json::json!(run.greedy[..8]));
    }
}

/// The oracle's prompts behind others that begin as they do: their first tokens are there.
#[test]
fn prompts_that_begin_alike_follow_the_oracle() {
    let (Some(directory), Some(oracle)) = (model("bf16"), shared("oracle/smollm2_oracle.json"))
    else {
        return;
    };
    let directory = directory.to_str().expect("UTF-8");
    for run in smollm2(&json(&oracle), "bf16") {
        let known = run.prompt.len() - 2;
        let (beginning, whole) = (comma(&run.prompt[..known]), comma(&run.prompt));
        let steps = run.greedy.len().to_string();
        let mut args = vec!["--model", directory, "--max-tokens", &steps];
        args.extend(["--prompt-ids", &beginning, "--prompt-ids", &whole]);
        args.extend(["--ignore-eos", "--logits"]);
        let report = Example::new(&args).json();
        let text = &report["texts"][1];
        // More than the beginning, where the model went on as the prompt does.
        let hit = text["hit_tokens"].as_u64().expect("a number");
        assert!(
            (known as u64..run.prompt.len() as u64).contains(&hit),
            "{hit}"
        );
        let compared = run.compare(&found(text), tolerance("f32"), false);
        assert_eq!(
            compared,
            Ok(run.greedy.len()),
            "prompt of {}",
            run.prompt.len()
        );
    }
}

#[cfg(target_os = "linux")]
#[test]
fn peak_memory_is_the_file_the_used_cache_and_72_mib() {
    for variant in ["bf16", "f32"] {
        let Some(directory) = model(variant) else {
            return;
        };
        let file = std::fs::metadata(directory.join("model.safetensors"))
            .unwrap()
            .len();
        let directory = directory.to_str().expect("UTF-8");
        let report = Example::new(&[
            "--model",
            directory,
            "--prompt",
            "The capital of France is",
            "--max-tokens",
            "48",
            "--threads",
            "2",
        ])
        .json();
        let (rss, kv) = (
            report["peak_rss_bytes"].as_u64().unwrap(),
            report["kv_used_bytes"].as_u64().unwrap(),
        );
        assert!(
            rss <= file + kv + (72 << 20),
            "{variant}: {rss} for a file of {file} and {kv} of KV"
        );
        assert!(rss > file, "{variant}: the weights are resident: {rss}");
    }
}
