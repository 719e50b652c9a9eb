use std::collections::HashSet;

use tenslab::DType;
use tenslab::kv::{
    BLOCK_ALIGN, GroupId, KvDims, KvError, KvSpec, Layout, MAX_BLOCK_TOKENS, MAX_LAYERS, Part,
    ScalePlane,
};

use super::DIMS;

const QWEN3: KvDims = KvDims {
    layers: 28,
    kv_heads: 8,
    key_dim: 128,
    value_dim: 128,
    block_tokens: 128,
};

/// lessons/kv.md #26: the numbers that a peer's users got wrong.
#[test]
fn four_gib_hold_37376_tokens_of_qwen3() {
    let spec = KvSpec::new(QWEN3, DType::BF16).unwrap();
    assert_eq!(spec.bytes_per_token(), 114_688);
    assert_eq!(spec.block_bytes(), 114_688 * 128);
    let blocks = (4_usize << 30) / spec.block_bytes();
    assert_eq!(blocks, 292);
    assert_eq!(blocks * spec.block_tokens(), 37_376);
    // 40,960 tokens need 4.375 GiB.
    assert_eq!(
        spec.blocks_for(40_960) * spec.block_bytes(),
        (4 << 30) + (3 << 27)
    );
}

#[test]
fn elements_never_overlap_and_stay_inside_the_block() {
    for layout in [Layout::BlockMajorHnd, Layout::BlockMajorNhd] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let spec = KvSpec::new(DIMS, dtype)
                .unwrap()
                .with_layout(layout)
                .unwrap();
            assert_eq!(spec.layout(), layout);
            assert_eq!(spec.block_bytes() % BLOCK_ALIGN, 0);
            let mut bytes = HashSet::new();
            for layer in 0..DIMS.layers {
                for (part, dims) in [(Part::Keys, 5), (Part::Values, 3)] {
                    for head in 0..DIMS.kv_heads {
                        for slot in 0..DIMS.block_tokens {
                            let at = spec.byte_offset(layer, part, head, slot).unwrap();
                            assert_eq!(at % dtype.bytes(), 0);
                            for byte in at..at + dims * dtype.bytes() {
                                assert!(byte < spec.block_bytes());
                                assert!(bytes.insert(byte), "{layout} {dtype}: byte {byte} twice");
                            }
                        }
                    }
                }
            }
            assert_eq!(bytes.len(), spec.bytes_per_token() * DIMS.block_tokens);
        }
    }
}

#[test]
fn offsets_outside_the_block_do_not_exist() {
    let spec = KvSpec::new(DIMS, DType::F32).unwrap();
    assert_eq!(spec.byte_offset(0, Part::Keys, 0, 0), Some(0));
    assert_eq!(spec.byte_offset(3, Part::Keys, 0, 0), None);
    assert_eq!(spec.byte_offset(0, Part::Values, 2, 0), None);
    assert_eq!(spec.byte_offset(0, Part::Values, 0, 4), None);
    assert_eq!(
        spec.byte_offset(usize::MAX, Part::Keys, usize::MAX, usize::MAX),
        None
    );
}

#[test]
fn what_cannot_be_built_is_named() {
    for (dims, what) in [
        (KvDims { layers: 0, ..DIMS }, "layers"),
        (
            KvDims {
                kv_heads: 0,
                ..DIMS
            },
            "kv_heads",
        ),
        (KvDims { key_dim: 0, ..DIMS }, "key_dim"),
        (
            KvDims {
                value_dim: 0,
                ..DIMS
            },
            "value_dim",
        ),
        (
            KvDims {
                block_tokens: 0,
                ..DIMS
            },
            "block_tokens",
        ),
    ] {
        assert_eq!(KvSpec::new(dims, DType::F32), Err(KvError::Zero { what }));
    }
    for (dims, what, value, max) in [
        (
            KvDims {
                layers: 257,
                ..DIMS
            },
            "layers",
            257,
            MAX_LAYERS,
        ),
        (
            KvDims {
                block_tokens: MAX_BLOCK_TOKENS + 1,
                ..DIMS
            },
            "block_tokens",
            MAX_BLOCK_TOKENS + 1,
            MAX_BLOCK_TOKENS,
        ),
    ] {
        assert_eq!(
            KvSpec::new(dims, DType::F32),
            Err(KvError::TooLarge { what, value, max })
        );
    }
    for dims in [
        KvDims {
            kv_heads: usize::MAX,
            ..DIMS
        },
        KvDims {
            key_dim: usize::MAX,
            ..DIMS
        },
        KvDims {
            value_dim: usize::MAX / 8,
            ..DIMS
        },
        KvDims {
            kv_heads: 1 << 30,
            key_dim: 1 << 30,
            ..DIMS
        },
    ] {
        assert_eq!(
            KvSpec::new(dims, DType::F32),
            Err(KvError::Overflow { what: "a kv block" }),
            "{dims:?}"
        );
    }
    for dtype in DType::ALL {
        let built = KvSpec::new(DIMS, dtype);
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => assert_eq!(built.unwrap().dtype(), dtype),
            _ => assert_eq!(built, Err(KvError::UnsupportedDType { dtype })),
        }
    }
}

#[test]
fn scales_and_groups_have_a_name_but_do_not_exist_yet() {
    let spec = KvSpec::new(DIMS, DType::BF16).unwrap();
    assert_eq!(spec.with_scales(ScalePlane::None), Ok(spec));
    let scales = ScalePlane::PerTokenHead;
    assert_eq!(
        spec.with_scales(scales),
        Err(KvError::UnsupportedScales { scales })
    );
    assert_eq!(spec.scales(), ScalePlane::None);

    assert_eq!(spec.group(), GroupId::FIRST);
    assert_eq!(GroupId::try_from(0), Ok(GroupId::FIRST));
    assert_eq!(
        GroupId::try_from(1),
        Err(KvError::NoSuchGroup {
            group: 1,
            groups: 1
        })
    );
}

#[test]
fn errors_say_the_numbers() {
    let error = KvError::OutOfBlocks {
        need: 3,
        free: 1,
        evictable: 0,
        total: 8,
    };
    assert_eq!(
        error.to_string(),
        "3 kv blocks are needed, 1 are free and 0 evictable, of 8 in all"
    );
    let error = KvError::ShapeMismatch {
        part: Part::Values,
        got: 5,
        expected: 12,
        tokens: 2,
        heads: 2,
        dim: 3,
    };
    assert_eq!(
        error.to_string(),
        "values of 5 elements, but 2 tokens x 2 heads x 3 are 12"
    );
}
