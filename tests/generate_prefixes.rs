//! The `generate` example with several prompts and several texts of each: what they begin
//! with in common is computed once, and every text is the one of a run of its own.

#![cfg(not(any(loom, tenslab_asan)))]

mod support;

use serde_json::Value;
use support::example::{Example, comma, found, json};
use support::oracle::{ids, tiny_llama, tolerance};
use support::shared;

/// Tokens in a block of the example's cache.
const BLOCK_TOKENS: usize = 32;

fn texts(report: &Value) -> &[Value] {
    report["texts"].as_array().expect("texts")
}

/// Asserts what a run says of its sharing: tokens of the prompts, those that were there, whole
/// blocks of such tokens, and blocks of which a beginning was copied.
fn assert_sharing(report: &Value, numbers: [usize; 4]) {
    let [prompt_tokens, hit_tokens, shared_blocks, copied_blocks] = numbers;
    let expected = serde_json::json!({
        "prompt_tokens": prompt_tokens,
        "hit_tokens": hit_tokens,
        "shared_blocks": shared_blocks,
        "copied_blocks": copied_blocks,
    });
    assert_eq!(report["sharing"], expected);
}

/// The same tokens, from the same bits.
fn assert_same(what: &str, text: &Value, alone: &Value) {
    for part in ["prompt_ids", "tokens", "top5", "stop"] {
        assert_eq!(text[part], alone[part], "{what}: {part}");
    }
}

/// How many tokens of `prompt` are there behind these texts: the longest beginning that it has
/// in common with one of them, but for its last token. The last token of a text is chosen and
/// not computed.
fn known(prompt: &[u32], before: &[Value]) -> usize {
    let common = |text: &Value| {
        let mut computed = ids(&text["prompt_ids"]);
        computed.extend(ids(&text["tokens"]));
        computed.pop();
        let pairs = prompt.iter().zip(&computed);
        pairs.take_while(|(one, other)| one == other).count()
    };
    let longest = before.iter().map(common).max().unwrap_or(0);
    longest.min(prompt.len() - 1)
}

/// A prompt that another one began with, in the middle of a block; and one that goes on with
/// what was generated behind it.
#[test]
fn prompts_that_begin_alike_follow_the_oracle() {
    let (Some(directory), Some(oracle)) = (
        shared("models/tiny-llama/f32"),
        shared("models/tiny-llama/oracle.json"),
    ) else {
        return;
    };
    let runs = tiny_llama(&json(&oracle));
    let run = runs
        .iter()
        .find(|run| run.weights == "f32" && run.prompt.len() == 64)
        .expect("the oracle has a prompt of 64 tokens");
    let directory = directory.to_str().expect("a path in UTF-8");
    let longer = [&run.prompt[..], &run.greedy[..20]].concat();
    let prompts = [&run.prompt[..40], &run.prompt, &longer].map(comma);
    for kv_dtype in ["f32", "f16", "bf16"] {
        let generate = |prompts: &[String], more: &[&str]| {
            let steps = run.greedy.len().to_string();
            let mut args = vec!["--model", directory, "--kv-dtype", kv_dtype];
            args.extend(["--max-tokens", &steps, "--ignore-eos", "--logits"]);
            for prompt in prompts {
                args.extend(["--prompt-ids", prompt]);
            }
            args.extend(more);
            Example::new(&args).json()
        };
        let alone = [0, 1, 2].map(|at| generate(&prompts[at..=at], &[]));
        for more in [&[][..], &["--chunk", "7"]] {
            let together = generate(&prompts, more);
            let texts = texts(&together);
            assert_eq!(texts.len(), 3);
            for (at, (text, alone)) in texts.iter().zip(&alone).enumerate() {
                let what = format!("KV {kv_dtype}, {more:?}, prompt {at}");
                assert_same(&what, text, alone);
                let hit = known(&ids(&text["prompt_ids"]), &texts[..at]);
                assert_eq!(text["hit_tokens"], hit, "{what}");
            }
            assert_eq!(texts[1]["hit_tokens"], 40, "32 of a block and 8 of a copy");
            let steps = run
                .compare(&found(&texts[1]), tolerance(kv_dtype), false)
                .unwrap_or_else(|error| panic!("KV {kv_dtype}, {more:?}: {error}"));
            if kv_dtype == "f32" {
                assert_eq!(steps, run.greedy.len(), "compared to the end");
                assert_eq!(texts[2]["hit_tokens"], 83, "all but the last token");
                assert_eq!(ids(&texts[2]["tokens"])[..28], run.greedy[20..]);
                assert_sharing(&together, [40 + 64 + 84, 40 + 83, 1 + 2, 2]);
            }
        }
    }
}

/// At a temperature near 0 a draw is the most likely token.
#[test]
fn forks_follow_the_oracle() {
    let (Some(directory), Some(oracle)) = (
        shared("models/tiny-llama/bf16"),
        shared("models/tiny-llama/oracle.json"),
    ) else {
        return;
    };
    let directory = directory.to_str().expect("a path in UTF-8");
    for run in tiny_llama(&json(&oracle)) {
        if run.weights != "bf16" {
            continue;
        }
        let (prompt, steps) = (comma(&run.prompt), run.greedy.len().to_string());
        let report = Example::new(&[
            "--model",
            directory,
            "--prompt-ids",
            &prompt,
            "--max-tokens",
            &steps,
            "--ignore-eos",
            "--logits",
            "--n",
            "3",
            "--temperature",
            "1e-6",
        ])
        .json();
        assert_eq!(texts(&report).len(), 3);
        for text in texts(&report) {
            let compared = run.compare(&found(text), tolerance("f32"), false);
            assert_eq!(compared, Ok(run.greedy.len()), "seed {}", text["seed"]);
        }
    }
}

#[test]
fn each_text_is_that_of_its_prompt_and_its_seed_alone() {
    // Two blocks, and one of which 40 tokens are there.
    let long = "What begins alike is computed once, and stays for those who come";
    let short = format!("{}, 0123456.", &long[..40]);
    let prompts = [long, &short];
    assert_eq!(prompts.map(str::len), [2 * BLOCK_TOKENS, 50]);
    let common = ["--temperature", "1.2", "--max-tokens", "40", "--logits"];
    let args = [
        "--prompt", long, "--prompt", &short, "--n", "3", "--seed", "7",
    ];
    let report = Example::new(&[&common[..], &args].concat()).json();
    assert_eq!(texts(&report).len(), 6);
    for (at, text) in texts(&report).iter().enumerate() {
        let (prompt, seed) = (prompts[at / 3], (7 + at % 3).to_string());
        let args = ["--prompt", prompt, "--seed", &seed];
        let alone = Example::new(&[&common[..], &args].concat()).json();
        assert_same(&format!("text {at}"), text, &alone);
        assert_eq!(text["seed"].to_string(), seed);
        let others = &texts(&report)[..at];
        assert!(others.iter().all(|other| other["tokens"] != text["tokens"]));
    }
    let hits = texts(&report).iter().map(|text| &text["hit_tokens"]);
    assert_eq!(hits.collect::<Vec<_>>(), [0, 64, 64, 40, 50, 50]);
    // Forks of whole blocks copy nothing; of the second prompt a beginning was copied, and its
    // partly filled block for all of its texts but the last.
    let copies = 1 + 2;
    assert_sharing(
        &report,
        [3 * 64 + 3 * 50, 2 * 64 + 40 + 2 * 50, 2 * 2 + 3, copies],
    );
    // The first steps of the forks, which copy that block, are among those that are counted.
    assert_eq!(report["heap_blocks_per_token"], 0);
    // What stands at the top is the first text.
    assert_same("the first", &report, &texts(&report)[0]);
}

#[test]
fn a_system_text_stands_in_front_of_every_prompt() {
    let system = "You are a poet, and your lines are short. ";
    let steps = ["--max-tokens", "30", "--logits"];
    let args = [
        "--system", system, "--prompt", "The sea", "--prompt", "A wind",
    ];
    let report = Example::new(&[&steps[..], &args].concat()).json();
    assert_eq!(texts(&report).len(), 2);
    for (text, prompt) in texts(&report).iter().zip(["The sea", "A wind"]) {
        let whole = format!("{system}{prompt}");
        let alone = Example::new(&[&steps[..], &["--prompt", &whole]].concat()).json();
        assert_same(prompt, text, &alone);
    }
    assert_eq!(texts(&report)[1]["hit_tokens"], system.len());
}

/// The cache has room for one text. What does not fit beside it is forgotten and computed
/// again, and what is shared is not.
#[test]
fn a_tight_cache_changes_no_token() {
    let [one, other, third] = ["ab", "cd", "ab"].map(|end| format!("{}{end}", ".".repeat(34)));
    let run = |prompts: &[&String]| {
        let mut args = vec!["--context", "40", "--max-tokens", "50", "--logits"];
        for prompt in prompts {
            args.extend(["--prompt", prompt]);
        }
        Example::new(&args).json()
    };
    let report = run(&[&one, &other, &third]);
    let texts = texts(&report);
    for (text, prompt) in texts.iter().zip([&one, &other, &third]) {
        assert_same(prompt, text, &run(&[prompt]));
        assert_eq!(text["stop"], "context");
        assert_eq!(text["tokens"].as_array().expect("tokens").len(), 5);
    }
    let hits = texts.iter().map(|text| &text["hit_tokens"]);
    assert_eq!(
        hits.collect::<Vec<_>>(),
        [0, 32, 32],
        "the block for the rest is needed"
    );
}

/// The prompt that waits and the fork that fills its context fit, with not a block to spare.
#[test]
fn a_fork_has_room_for_its_whole_context() {
    let prompt = ".".repeat(40);
    let report = Example::new(&[
        "--prompt",
        &prompt,
        "--context",
        "64",
        "--max-tokens",
        "50",
        "--temperature",
        "1",
        "--n",
        "2",
    ])
    .json();
    for text in texts(&report) {
        assert_eq!(text["stop"], "context");
        assert_eq!(text["tokens"].as_array().expect("tokens").len(), 25);
    }
    let bytes = |name: &str| report[name].as_u64().expect("bytes");
    assert_eq!(bytes("kv_used_bytes"), bytes("kv_reserved_bytes"));
}

#[test]
fn a_run_says_on_standard_error_what_was_reused() {
    let text_of = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let output = Example::new(&[
        "--max-tokens",
        "5",
        "--prompt",
        "abcdef",
        "--prompt",
        "abcdxy",
    ])
    .output();
    let (text, report) = (text_of(output.stdout), text_of(output.stderr));
    assert!(output.status.success(), "{report}");
    assert_eq!(text.lines().count(), 2, "a line for each text: {text:?}");
    for part in [
        "--- prompt 1 of 2, text 1 of 1: 0 of 6 prompt tokens were in the cache\n",
        "--- prompt 2 of 2, text 1 of 1: 4 of 6 prompt tokens were in the cache\n",
        "2 texts; the last: all tokens",
        "sharing    4 of 12 prompt tokens were there: 0 blocks shared, 1 copied\n",
        "speed      8 prompt tokens",
        " 10 tokens at ",
    ] {
        assert!(report.contains(part), "{part:?} in {report}");
    }

    let output = Example::new(&["--max-tokens", "5"]).output();
    let report = text_of(output.stderr);
    assert!(
        !report.contains("sharing") && !report.contains("text 1"),
        "one text shares nothing: {report}"
    );
}
