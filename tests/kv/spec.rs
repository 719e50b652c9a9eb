use std::collections::HashSet;

use tenslab::DType;
use tenslab::kv::{
    BLOCK_ALIGN, GroupId, KvDims, KvError, KvFormat, KvSpec, Layout, MAX_BLOCK_TOKENS, MAX_LAYERS,
    Part, ScalePlane,
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

/// Over the whole region: blocks and layers may be interleaved as the layout likes, but
/// no element shares a byte with another one, and all of a block's are in its pieces.
#[test]
fn elements_never_overlap_and_stay_inside_the_pieces_of_their_block() {
    const BLOCKS: usize = 5;
    let one_component = KvDims {
        value_dim: 0,
        ..DIMS
    };
    for (dims, layout, dtype) in [DIMS, one_component].into_iter().flat_map(|dims| {
        let dtypes = [DType::F32, DType::F16, DType::BF16];
        let layouts = Layout::ALL.into_iter();
        layouts.flat_map(move |layout| dtypes.map(|dtype| (dims, layout, dtype)))
    }) {
        let spec = KvSpec::new(dims, dtype)
            .unwrap()
            .with_layout(layout)
            .unwrap();
        let region = spec.region(BLOCKS).unwrap();
        assert_eq!(spec.layout(), layout);
        assert_eq!(spec.block_bytes() % BLOCK_ALIGN, 0);
        assert_eq!(region.bytes(), BLOCKS * spec.block_bytes());
        let mut bytes = HashSet::new();
        for block in 0..BLOCKS {
            let pieces: Vec<_> = region.block_pieces(block).collect();
            assert!(pieces.iter().all(|piece| piece.end <= region.bytes()));
            for (layer, part, dim) in (0..dims.layers).flat_map(|layer| {
                [(Part::Keys, dims.key_dim), (Part::Values, dims.value_dim)]
                    .map(|(part, dim)| (layer, part, dim))
            }) {
                let Some(plane) = region.plane_offset(block, layer, part) else {
                    assert_eq!((part, dim), (Part::Values, 0));
                    continue;
                };
                for (head, slot) in (0..dims.kv_heads)
                    .flat_map(|head| (0..dims.block_tokens).map(move |slot| (head, slot)))
                {
                    let at = plane + spec.row_offset(part, head, slot).unwrap();
                    let row = at..at + dim * dtype.bytes();
                    assert_eq!(at % dtype.bytes(), 0);
                    assert!(
                        pieces
                            .iter()
                            .any(|piece| piece.start <= row.start && row.end <= piece.end),
                        "{layout} {dtype}: {row:?} is not in {pieces:?}"
                    );
                    for byte in row {
                        assert!(bytes.insert(byte), "{layout} {dtype}: byte {byte} twice");
                    }
                }
            }
        }
        assert_eq!(
            bytes.len(),
            BLOCKS * spec.bytes_per_token() * dims.block_tokens
        );
    }
}

/// DeepSeek-V3: 61 layers of one 512 + 64 vector a token, 68.6 KiB in bfloat16.
#[test]
fn one_component_has_half_of_two() {
    let dims = KvDims {
        layers: 61,
        kv_heads: 1,
        key_dim: 576,
        value_dim: 0,
        block_tokens: 64,
    };
    let spec = KvSpec::new(dims, DType::BF16).unwrap();
    assert_eq!(spec.bytes_per_token(), 70_272);
    assert_eq!(spec.block_bytes(), 70_272 * 64);
    assert!(!spec.has_values());
    let two = KvDims {
        value_dim: 576,
        ..dims
    };
    let two = KvSpec::new(two, DType::BF16).unwrap();
    assert_eq!(two.block_bytes(), 2 * spec.block_bytes());
}

#[test]
fn a_layout_moves_bytes_and_adds_none_where_planes_are_whole_lines() {
    let spec = KvSpec::new(QWEN3, DType::BF16).unwrap();
    for layout in Layout::ALL {
        let moved = spec.with_layout(layout).unwrap();
        assert_eq!(moved.block_bytes(), spec.block_bytes());
        assert_eq!(moved.bytes_per_token(), spec.bytes_per_token());
    }
}

#[test]
fn rows_outside_the_plane_do_not_exist() {
    let spec = KvSpec::new(DIMS, DType::F32).unwrap();
    assert_eq!(spec.row_offset(Part::Keys, 0, 0), Some(0));
    assert_eq!(spec.row_offset(Part::Values, 1, 3), Some((4 + 3) * 3 * 4));
    assert_eq!(spec.row_offset(Part::Values, 2, 0), None);
    assert_eq!(spec.row_offset(Part::Values, 0, 4), None);
    assert_eq!(spec.row_offset(Part::Keys, usize::MAX, usize::MAX), None);
    assert_eq!(
        spec.region(usize::MAX),
        Err(KvError::Overflow {
            what: "the kv region"
        })
    );
    let dims = KvDims {
        value_dim: 0,
        ..DIMS
    };
    let spec = KvSpec::new(dims, DType::F32).unwrap();
    assert_eq!(spec.row_offset(Part::Values, 0, 0), None);
}

/// lessons/kv.md #13 and #16: a format that is not there is an error that names it, when
/// the spec is made and not when a slot is shifted; so are rows that it could not divide.
#[test]
fn formats_with_scales_are_refused_by_name() {
    let phi2 = KvDims {
        layers: 32,
        kv_heads: 32,
        key_dim: 80,
        value_dim: 80,
        block_tokens: 16,
    };
    for format in [KvFormat::Q8_0, KvFormat::Q4_0] {
        let error = KvSpec::from_format(phi2, format).unwrap_err();
        assert_eq!(
            error,
            KvError::RaggedRows {
                format,
                what: "key_dim",
                dim: 80,
                group: 32
            }
        );
        assert!(error.to_string().contains(format.name()), "{error}");
        let values = KvDims {
            key_dim: 96,
            ..phi2
        };
        assert!(matches!(
            KvSpec::from_format(values, format),
            Err(KvError::RaggedRows {
                what: "value_dim",
                ..
            })
        ));
    }
    for format in KvFormat::ALL {
        let built = KvSpec::from_format(QWEN3, format);
        match format {
            KvFormat::F32 | KvFormat::F16 | KvFormat::Bf16 => {
                assert_eq!(built.unwrap().dtype().name(), format.name());
            }
            _ => {
                let error = built.unwrap_err();
                assert_eq!(error, KvError::UnsupportedFormat { format });
                assert!(error.to_string().contains(format.name()), "{error}");
            }
        }
        assert_eq!(KvFormat::from_name(format.name()), Some(format));
    }
    for (name, format) in [
        ("bf16", Some(KvFormat::Bf16)),
        ("f16", Some(KvFormat::F16)),
        ("f32", Some(KvFormat::F32)),
        ("fp8", Some(KvFormat::Fp8E4M3)),
        ("fp8_e5m2", Some(KvFormat::Fp8E5M2)),
        ("BF16", None),
        ("", None),
        ("q5_1", None),
    ] {
        assert_eq!(KvFormat::from_name(name), format, "{name}");
    }
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
