//! Names of loaded weights: aliases, and the parts of a model.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;

use tenslab::weights::{Backing, LoadOptions, Weights, WeightsError, save};
use tenslab::{DType, Tensor, memory, ops};

/// lessons/weights.md #27: a head that is tied to the embedding is not in the file.
#[test]
fn an_alias_is_one_more_name_of_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let table = ops::arange(0, 32, 1, DType::F32, memory::cpu()).unwrap();
    let norm = Tensor::zeros([4], DType::F32, memory::cpu()).unwrap();
    let tensors = [
        ("model.embed_tokens.weight", table),
        ("model.layers.3.norm", norm),
    ];
    save(&path, &tensors, &BTreeMap::new()).unwrap();
    let mut weights = Weights::load(&path, &LoadOptions::default()).unwrap();

    weights
        .alias("lm_head.weight", "model.embed_tokens.weight")
        .unwrap();
    weights.alias("head", "lm_head.weight").unwrap(); // of an alias
    let table = weights.get("model.embed_tokens.weight").unwrap();
    for name in ["lm_head.weight", "head"] {
        let head = weights.get(name).unwrap();
        assert_eq!(head.storage_id(), table.storage_id());
        assert_eq!(head.data_ptr::<f32>(), table.data_ptr::<f32>());
        assert!(weights.contains(name) && weights.raw(name).unwrap().numel() == 128);
        assert_eq!(weights.backing(name).unwrap(), Backing::Slab);
    }
    let names: Vec<&str> = weights.names().collect();
    assert_eq!(
        names,
        [
            "model.embed_tokens.weight",
            "model.layers.3.norm",
            "head",
            "lm_head.weight"
        ]
    );

    for taken in ["lm_head.weight", "model.layers.3.norm"] {
        let error = weights
            .alias(taken, "model.embed_tokens.weight")
            .unwrap_err();
        assert!(matches!(&error, WeightsError::NameTaken { name, .. } if name == taken));
    }
    let error = weights
        .alias("bias", "model.embed_token.weight")
        .unwrap_err();
    assert!(
        error.to_string().contains("model.embed_tokens.weight"),
        "{error}"
    );
    assert!(!weights.contains("bias"));
}

#[test]
fn a_part_of_a_model_knows_its_tensors_by_the_rest_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let zeros = || Tensor::zeros([4], DType::F32, memory::cpu()).unwrap();
    let names = [
        "layers.1.norm",
        "layers.1.q.weight",
        "layers.10.norm",
        "layers.1",
    ];
    save(&path, &names.map(|name| (name, zeros())), &BTreeMap::new()).unwrap();
    let mut weights = Weights::load(&path, &LoadOptions::default()).unwrap();
    weights.alias("layers.1.tied", "layers.10.norm").unwrap();

    let layer = weights.sub("layers.1");
    assert_eq!(
        layer.names().collect::<Vec<_>>(),
        ["norm", "q.weight", "tied"]
    );
    assert_eq!(layer.sub("q").names().collect::<Vec<_>>(), ["weight"]);
    assert_eq!(
        layer.sub("").prefix(),
        weights.sub("layers").sub("1").prefix()
    );
    assert_eq!(weights.sub("").names().count(), 5);
    assert_eq!(weights.sub("layers.2").names().count(), 0);
    let (theirs, ours) = (
        layer.get("norm").unwrap(),
        weights.get("layers.1.norm").unwrap(),
    );
    assert_eq!(theirs.data_ptr::<f32>(), ours.data_ptr::<f32>());
    assert!(layer.contains("norm") && !layer.contains("layers.1.norm"));
    let error = layer.raw("none").unwrap_err();
    assert!(matches!(&error, WeightsError::NotFound { name, .. } if name == "layers.1.none"));
}
