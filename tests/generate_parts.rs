//! The parts of the `generate` example, compiled once more so that their own unit tests
//! run: kernels against f64, config, sampler, text, threads.
//!
//! `cargo test` builds an example but runs no test in it. These are its files, under the
//! names that they have there; `main.rs` alone stays outside.

#![cfg(not(any(loom, tenslab_asan)))]
#![allow(
    dead_code,
    unused_imports,
    reason = "main.rs, which uses the parts, is not among them"
)]
#![allow(
    clippy::disallowed_types,
    reason = "the library's door to std::sync is not for what stands outside it"
)]

#[path = "../examples/generate/args.rs"]
mod args;
#[path = "../examples/generate/attention.rs"]
mod attention;
#[path = "../examples/generate/config.rs"]
mod config;
#[path = "../examples/generate/counting.rs"]
mod counting;
#[path = "../examples/generate/embedded.rs"]
mod embedded;
#[path = "../examples/generate/kernels/mod.rs"]
mod kernels;
#[path = "../examples/generate/model.rs"]
mod model;
#[path = "../examples/generate/report.rs"]
mod report;
#[path = "../examples/generate/run.rs"]
mod run;
#[path = "../examples/generate/sampler.rs"]
mod sampler;
#[path = "../examples/generate/text.rs"]
mod text;
#[path = "../examples/generate/threads.rs"]
mod threads;
#[path = "../examples/generate/trouble.rs"]
mod trouble;
#[path = "../examples/generate/view.rs"]
mod view;

mod support;

/// Keys, values and logits of the parts put together, over caches in good and bad order.
#[cfg(test)]
mod together {
    use std::path::Path;

    use serde_json::Value;
    use tenslab::kv::{KvCache, KvDims, KvLimits, KvSpec, Namespace, Sequence};
    use tenslab::weights::{LoadOptions, Weights};
    use tenslab::{DType, memory};

    use crate::attention::BLOCK_TOKENS;
    use crate::config::Config;
    use crate::kernels::Kernels;
    use crate::model::{Model, Room};
    use crate::support::example::json;
    use crate::support::oracle::ids;
    use crate::support::shared;
    use crate::threads::Team;

    const BLOCKS: usize = 12;

    fn model(directory: &Path) -> Model {
        let config = Config::read(directory).unwrap();
        let weights = Weights::load(directory, &LoadOptions::default()).unwrap();
        Model::new(config, &weights).unwrap()
    }

    fn cache(config: &Config) -> KvCache {
        let dims = KvDims {
            layers: config.layers,
            kv_heads: config.kv_heads,
            key_dim: config.head_dim,
            value_dim: config.head_dim,
            block_tokens: BLOCK_TOKENS,
        };
        let limits = KvLimits {
            blocks: BLOCKS,
            max_sequences: BLOCKS,
            max_blocks_per_sequence: BLOCKS,
        };
        KvCache::new(
            KvSpec::new(dims, DType::F32).unwrap(),
            limits,
            memory::cpu(),
        )
        .unwrap()
    }

    fn acquire(cache: &KvCache, tokens: usize) -> Sequence {
        cache
            .acquire(&[], &Namespace::default(), tokens, None)
            .unwrap()
    }

    /// Feeds a prompt and then the oracle's ids, and returns the bits of all logits.
    fn bits(model: &Model, sequence: &mut Sequence, prompt: &[u32], fed: &[u32]) -> Vec<u32> {
        let (kernels, team) = (Kernels::best(), Team::new(1).unwrap());
        let room = Room::new(memory::cpu(), memory::cpu());
        let mut forward = |tokens: &[u32]| {
            let logits = model
                .forward::<f32>(kernels, &team, sequence, tokens, &room)
                .unwrap();
            let bits: Vec<u32> = logits
                .read::<f32>()
                .unwrap()
                .iter()
                .map(|logit| logit.to_bits())
                .collect();
            bits
        };
        let mut all = forward(prompt);
        for id in fed {
            all.extend(forward(&[*id]));
        }
        all
    }

    /// The oracle's numbers against one head of one token.
    fn assert_near(what: &str, found: &[f32], expected: &Value) {
        let expected = expected.as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "{what}");
        for (found, expected) in found.iter().zip(expected) {
            let off = (f64::from(*found) - expected.as_f64().unwrap()).abs();
            assert!(off < 1e-4, "{what}: {found} for {expected}");
        }
    }

    #[test]
    fn keys_and_values_are_the_oracle_s() {
        let (Some(directory), Some(oracle)) = (
            shared("models/tiny-llama/f32"),
            shared("models/tiny-llama/oracle.json"),
        ) else {
            return;
        };
        let model = model(&directory);
        let dim = model.config().head_dim;
        let oracle = json(&oracle);
        let runs = oracle["runs"].as_array().unwrap().iter();
        for run in runs.filter(|run| run["weights"] == "f32") {
            let (prompt, greedy) = (ids(&run["ids"]), ids(&run["greedy"]));
            let cache = cache(model.config());
            let mut sequence = acquire(&cache, prompt.len() + greedy.len());
            bits(&model, &mut sequence, &prompt, &greedy);

            let first = sequence.values_head::<f32>(0, 0, 0).unwrap();
            assert_near(
                "the first value of layer 0, head 0",
                &first[..dim],
                &run["v_layer0_first"],
            );
            let last = prompt.len() + greedy.len() - 1;
            let block = sequence
                .keys_head::<f32>(2, last / BLOCK_TOKENS, 1)
                .unwrap();
            let key = &block[last % BLOCK_TOKENS * dim..][..dim];
            assert_near(
                "the last key of layer 2, head 1",
                key,
                &run["k_layer2_last"],
            );
        }
    }

    #[test]
    fn where_the_cache_puts_its_blocks_cannot_be_seen() {
        let Some(directory) = shared("models/tiny-llama/f32") else {
            return;
        };
        let model = model(&directory);
        let prompt: Vec<u32> = (0..100).map(|i| i * 37 % 256).collect();
        let fed: Vec<u32> = (0..60).map(|i| i * 11 % 256).collect();
        let tokens = prompt.len() + fed.len();

        let in_order = cache(model.config());
        let mut sequence = acquire(&in_order, tokens);
        let order: Vec<u32> = sequence.block_ids().map(|id| id.get()).collect();
        assert!(order.is_sorted() && order.len() == 5, "{order:?}");
        let expected = bits(&model, &mut sequence, &prompt, &fed);

        // Single blocks, given back in no order, with old keys and values in them.
        let shuffled = cache(model.config());
        let mut held: Vec<Option<Sequence>> =
            (0..BLOCKS).map(|_| Some(acquire(&shuffled, 1))).collect();
        for at in [7, 2, 11, 0, 5, 9, 4] {
            let mut sequence = held[at].take().unwrap();
            bits(&model, &mut sequence, &[3; BLOCK_TOKENS], &[]);
        }
        let mut sequence = acquire(&shuffled, tokens);
        let order: Vec<u32> = sequence.block_ids().map(|id| id.get()).collect();
        assert!(
            order.windows(2).any(|pair| pair[1] != pair[0] + 1) && !order.is_sorted(),
            "{order:?}"
        );
        assert_eq!(
            bits(&model, &mut sequence, &prompt, &fed),
            expected,
            "blocks {order:?}"
        );

        // Where they lie: in the region, each in the place of its block.
        let (region, block_bytes) = (shuffled.region(), shuffled.spec().block_bytes());
        for (block, id) in order.iter().enumerate() {
            let id = *id as usize;
            let range = region.start.wrapping_add(id * block_bytes)
                ..region.start.wrapping_add((id + 1) * block_bytes);
            for (layer, head) in [(0, 0), (2, 1)] {
                let keys = sequence
                    .keys_head::<f32>(layer, block, head)
                    .unwrap()
                    .as_ptr_range();
                let values = sequence
                    .values_head::<f32>(layer, block, head)
                    .unwrap()
                    .as_ptr_range();
                for part in [keys, values] {
                    assert!(
                        range.contains(&part.start.cast()) && part.end.cast() <= range.end,
                        "block {block}"
                    );
                }
            }
        }
    }
}
