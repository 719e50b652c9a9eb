//! Plans and configs: lessons/kv.md #26 and scenario 19, and what files get wrong.

use tenslab::DType;
use tenslab::SharedAllocator;
use tenslab::kv::{
    KvCache, KvDims, KvError, KvLimits, KvSpec, Layout, ModelConfig, Plan, PlanError,
};
use tenslab::memory::{Budget, CpuAllocator, Limit};

const QWEN3: &str = r#"{
    "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "torch_dtype": "bfloat16"
}"#;

fn config(text: &str) -> ModelConfig {
    ModelConfig::from_json(text).unwrap()
}

/// Layers, heads, key dim, value dim.
fn sizes(text: &str) -> [usize; 4] {
    let config = config(text);
    [
        config.layers,
        config.kv_heads,
        config.key_dim,
        config.value_dim,
    ]
}

fn refusal(text: &str) -> String {
    ModelConfig::from_json(text).unwrap_err().to_string()
}

fn spec(layers: usize, kv_heads: usize, dim: usize, block_tokens: usize, dtype: DType) -> KvSpec {
    let dims = KvDims {
        layers,
        kv_heads,
        key_dim: dim,
        value_dim: dim,
        block_tokens,
    };
    KvSpec::new(dims, dtype).unwrap()
}

#[test]
fn four_gib_of_qwen3_are_292_blocks_and_37376_tokens() {
    let config = config(QWEN3);
    assert_eq!(config.max_context, Some(40_960));
    let spec = KvSpec::from_format(config.dims(128), config.format().unwrap()).unwrap();
    assert_eq!(spec, self::spec(28, 8, 128, 128, DType::BF16));
    assert_eq!(spec.bytes_per_token(), 114_688);
    for layout in Layout::ALL {
        let plan = Plan::new(spec.with_layout(layout).unwrap(), 4 << 30).unwrap();
        assert_eq!((plan.blocks(), plan.tokens()), (292, 37_376));
        assert_eq!(plan.unused_bytes(), (4 << 30) - 292 * 114_688 * 128);
        assert_eq!(
            plan.region_bytes() + plan.unused_bytes(),
            plan.budget_bytes()
        );
        // 4.375 GiB, and no more than that.
        assert_eq!(plan.spec().bytes_for(40_960), Some((4 << 30) + (3 << 27)));
        assert_eq!(plan.longest(40_960), 37_376);
        assert_eq!(plan.sequences_of(40_960), 0);
    }
    let enough = Plan::new(spec, (4 << 30) + (3 << 27)).unwrap();
    assert_eq!(enough.longest(40_960), 40_960);
    assert_eq!(enough.sequences_of(40_960), 1);
    let short = Plan::new(spec, (4 << 30) + (3 << 27) - 1).unwrap();
    assert_eq!(short.longest(40_960), 40_960 - 128);
}

/// Scenario 19, whatever the size of a block.
#[test]
fn a_sequence_is_as_long_as_asked_or_as_long_as_fits() {
    for block_tokens in [1, 16, 64, 128, 16_384] {
        let plan = Plan::new(spec(32, 32, 128, block_tokens, DType::F16), 8 << 30).unwrap();
        assert_eq!(plan.longest(16_385), 16_384);
        assert_eq!(plan.longest(16_384), 16_384);
        assert_eq!(plan.longest(16_383), 16_383);
        assert_eq!(plan.longest(0), 0);
        assert_eq!(plan.longest(usize::MAX), 16_384);
    }
}

#[test]
fn sequences_take_whole_blocks() {
    let plan = Plan::new(spec(1, 1, 16, 16, DType::F16), 10 * 1024 + 1023).unwrap();
    assert_eq!((plan.blocks(), plan.unused_bytes()), (10, 1023));
    for (tokens, sequences) in [
        (1, 10),
        (16, 10),
        (17, 5),
        (33, 3),
        (160, 1),
        (161, 0),
        (usize::MAX, 0),
        (0, usize::MAX),
    ] {
        assert_eq!(plan.sequences_of(tokens), sequences, "{tokens}");
    }
}

/// What a plan says fits does fit: the cache is made under a hard limit of the budget, and
/// holds as many sequences as the plan said, and not one more.
#[test]
fn a_cache_of_the_plan_holds_what_it_says() {
    for layout in Layout::ALL {
        let spec = spec(3, 2, 5, 4, DType::F32).with_layout(layout).unwrap();
        let plan = Plan::new(spec, 20_000).unwrap();
        let wanted = plan.sequences_of(9);
        assert_eq!(wanted, plan.blocks() / 3);
        let limits = KvLimits {
            blocks: plan.blocks(),
            max_sequences: wanted + 1,
            max_blocks_per_sequence: plan.blocks(),
        };
        let budget = SharedAllocator::new(Budget::new(CpuAllocator::new(), &Limit::new(20_000)));
        let cache = KvCache::new(spec, limits, &budget).unwrap();
        assert_eq!(cache.stats().reserved_bytes, plan.region_bytes());
        let sequences: Vec<_> = (0..wanted)
            .map(|_| super::acquire(&cache, 9).unwrap())
            .collect();
        assert!(matches!(
            super::acquire(&cache, 9),
            Err(KvError::OutOfBlocks { .. })
        ));
        drop(sequences);
        assert_eq!(
            super::acquire(&cache, plan.longest(usize::MAX))
                .unwrap()
                .block_ids()
                .count(),
            plan.blocks()
        );
        drop(cache);
        let more = KvLimits {
            blocks: plan.blocks() + 1,
            ..limits
        };
        assert!(KvCache::new(spec, more, &budget).is_err());
    }
}

#[test]
fn budgets_at_the_ends_are_no_surprise() {
    let one = spec(1, 1, 16, 16, DType::F16);
    for budget_bytes in [0, 1, 1023] {
        assert_eq!(
            Plan::new(one, budget_bytes),
            Err(PlanError::BudgetTooSmall {
                budget_bytes,
                block_bytes: 1024
            })
        );
    }
    assert_eq!(Plan::new(one, 1024).unwrap().blocks(), 1);
    // A cache's ids are 32 bits wide, and its region has at most isize::MAX bytes.
    let plan = Plan::new(one, usize::MAX).unwrap();
    assert_eq!(plan.blocks(), u32::MAX as usize);
    let large = spec(256, 1 << 10, 1 << 10, 1 << 12, DType::F32);
    let plan = Plan::new(large, usize::MAX).unwrap();
    assert!(isize::try_from(plan.region_bytes()).is_ok());
    assert!(large.region(plan.blocks() + 1).is_err());
}

#[test]
fn every_field_has_the_default_that_transformers_gives_it() {
    // No grouped-query attention: as many key heads as query heads; 4096 / 32 = 128.
    let llama2 = r#"{"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}"#;
    assert_eq!(sizes(llama2), [32, 32, 128, 128]);
    assert_eq!(config(llama2).max_context, None);
    // null is as good as nothing.
    let nulls = r#"{"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
        "head_dim": null, "num_key_value_heads": null, "kv_lora_rank": null,
        "v_head_dim": null, "max_position_embeddings": null, "dtype": null, "text_config": null}"#;
    assert_eq!(config(nulls), config(llama2));
    // head_dim wins over the division; Qwen3-0.6B's is not 1024 / 16.
    assert_eq!(sizes(QWEN3), [28, 8, 128, 128]);
    // With head_dim and num_key_value_heads nothing else is needed.
    let least = r#"{"num_hidden_layers": 2, "num_key_value_heads": 3, "head_dim": 7}"#;
    assert_eq!(sizes(least), [2, 3, 7, 7]);
    let values =
        r#"{"num_hidden_layers": 2, "num_key_value_heads": 3, "head_dim": 192, "v_head_dim": 128}"#;
    assert_eq!(sizes(values), [2, 3, 192, 128]);
}

#[test]
fn latent_attention_is_one_component() {
    let lite = r#"{"num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
        "hidden_size": 2048, "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16"}"#;
    assert_eq!(sizes(lite), [27, 1, 576, 0]);
    let config = config(lite);
    let spec = KvSpec::from_format(config.dims(16), config.format().unwrap()).unwrap();
    assert_eq!(spec.bytes_per_token(), 31_104);
    let error = refusal(r#"{"num_hidden_layers": 27, "kv_lora_rank": 512}"#);
    assert!(error.starts_with("qk_rope_head_dim is missing"), "{error}");
}

#[test]
fn multimodal_models_have_their_sizes_inside() {
    let nested = r#"{"hidden_size": 9, "num_attention_heads": 3, "torch_dtype": "bfloat16",
        "vision_config": {"num_hidden_layers": 24, "hidden_size": 1152},
        "NAME": {"num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "hidden_size": 2560, "max_position_embeddings": 131072}}"#;
    for name in ["text_config", "llm_config", "language_config"] {
        let text = nested.replace("NAME", name);
        assert_eq!(sizes(&text), [34, 4, 256, 256]);
        assert_eq!(config(&text).max_context, Some(131_072));
        // What is for all of the model is outside.
        assert_eq!(config(&text).dtype.as_deref(), Some("bfloat16"));
    }
    // Sizes of the vision tower or of the whole are never mixed in: a gap is an error.
    let error = refusal(
        r#"{"hidden_size": 9, "num_attention_heads": 3,
            "text_config": {"num_hidden_layers": 34, "hidden_size": 2560}}"#,
    );
    assert!(
        error.starts_with("text_config.num_attention_heads is missing"),
        "{error}"
    );
    // A text_config without layers is no model.
    let outside =
        r#"{"num_hidden_layers": 2, "num_key_value_heads": 3, "head_dim": 7, "text_config": {}}"#;
    assert_eq!(sizes(outside), [2, 3, 7, 7]);
}

#[test]
fn what_is_wrong_is_named_with_its_field() {
    for (text, part) in [
        ("", "not a model config: EOF"),
        (
            "[1]",
            "not a model config: expected an object, not an array",
        ),
        ("null", "not a model config: expected an object, not null"),
        ("{}", "num_hidden_layers is missing"),
        (
            r#"{"num_hidden_layers": 0}"#,
            "num_hidden_layers is 0, expected",
        ),
        (
            r#"{"num_hidden_layers": -1}"#,
            "num_hidden_layers is -1, expected",
        ),
        (
            r#"{"num_hidden_layers": 1.5}"#,
            "num_hidden_layers is 1.5, expected",
        ),
        (
            r#"{"num_hidden_layers": [1]}"#,
            "num_hidden_layers is an array, expected",
        ),
        (
            r#"{"num_hidden_layers": 99999999999999999999}"#,
            "expected a whole number from 1 to 2147483647",
        ),
        (
            r#"{"num_hidden_layers": 2}"#,
            "num_attention_heads is missing",
        ),
        (
            r#"{"num_hidden_layers": 2, "num_attention_heads": 2}"#,
            "hidden_size is missing: head_dim, which is missing too",
        ),
        (
            r#"{"num_hidden_layers": 2, "num_key_value_heads": 2, "hidden_size": 8}"#,
            "num_attention_heads is missing: head_dim, which is missing too",
        ),
        (
            r#"{"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 8}"#,
            "head_dim is missing, and hidden_size 8 is not a multiple of num_attention_heads 3",
        ),
        (
            r#"{"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": {}}"#,
            "head_dim is an object",
        ),
        (
            r#"{"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 2, "max_position_embeddings": "long"}"#,
            r#"max_position_embeddings is "long""#,
        ),
        (
            r#"{"text_config": {"num_hidden_layers": true}}"#,
            "text_config.num_hidden_layers is true",
        ),
    ] {
        let error = refusal(text);
        assert!(error.contains(part), "{text}: {error}");
    }
    // Whatever a stranger wrote there, the message stays short, and nothing overflows.
    let long = format!(r#"{{"num_hidden_layers": "{}"}}"#, "ä".repeat(100_000));
    assert!(refusal(&long).len() < 200);
    assert!(refusal(&"[".repeat(100_000)).contains("not a model config"));
    let most = r#"{"num_hidden_layers": 2147483647, "kv_lora_rank": 2147483647, "qk_rope_head_dim": 2147483647}"#;
    assert_eq!(
        KvSpec::new(config(most).dims(16), DType::F32),
        Err(KvError::TooLarge {
            what: "layers",
            value: 2_147_483_647,
            max: 256
        })
    );
}

#[test]
fn the_dtype_is_the_files_or_an_error_with_its_name() {
    let with = |fields: &str| {
        config(&format!(
            r#"{{"num_hidden_layers": 2, "num_key_value_heads": 3, "head_dim": 7{fields}}}"#
        ))
    };
    for (fields, name) in [
        (r#", "torch_dtype": "bfloat16""#, "bfloat16"),
        (r#", "dtype": "float16""#, "float16"),
        (
            r#", "dtype": "float32", "torch_dtype": "bfloat16""#,
            "float32",
        ),
        (r#", "torch_dtype": "torch.float16""#, "float16"),
    ] {
        assert_eq!(with(fields).format().unwrap().name(), name, "{fields}");
    }
    let error = with("").format().unwrap_err();
    assert!(
        error.to_string().starts_with("torch_dtype is missing"),
        "{error}"
    );
    // A dtype that is none spoils the sizes of nobody who asks for another one.
    for (fields, found) in [
        (r#", "torch_dtype": "auto""#, "auto"),
        (r#", "torch_dtype": 16"#, "16"),
        (r#", "dtype": ["bfloat16"]"#, "an array"),
    ] {
        let error = with(fields).format().unwrap_err();
        assert_eq!(error, PlanError::UnknownFormat { name: found.into() });
        assert!(
            error
                .to_string()
                .contains("expected one of float32, float16, bfloat16")
        );
    }
}
