use tenslab::kv::{KvCache, KvDims, KvError, KvSpec, Layout, Part, Sequence, Step};
use tenslab::{DType, bf16, f16, memory};

use super::{
    DIMS, Number, acquire, append, assert_holds, assert_inside, element, limits, rows, salts,
    small_cache,
};

pub(super) const LAYOUTS: [Layout; 4] = Layout::ALL;

fn cache_of(dims: KvDims, dtype: DType, layout: Layout, blocks: usize) -> KvCache {
    let spec = KvSpec::new(dims, dtype)
        .unwrap()
        .with_layout(layout)
        .unwrap();
    KvCache::new(spec, limits(blocks, 12, blocks), memory::cpu()).unwrap()
}

/// A cache whose free order is mixed up: blocks come neither ascending nor in a row.
pub(super) fn shuffled(dims: KvDims, dtype: DType, layout: Layout) -> KvCache {
    let cache = cache_of(dims, dtype, layout, 12);
    let mut held: Vec<_> = (0..12)
        .map(|_| Some(acquire(&cache, dims.block_tokens).unwrap()))
        .collect();
    for turn in 0..12 {
        held[turn * 5 % 12] = None;
    }
    assert_eq!(cache.stats().blocks_free, 12);
    cache.check().unwrap();
    cache
}

fn assert_shuffled(sequence: &Sequence) {
    let ids: Vec<_> = sequence.block_ids().map(|id| id.get()).collect();
    let in_a_row = |pair: &[u32]| pair[0] + 1 == pair[1];
    assert!(!ids.windows(2).any(in_a_row), "{ids:?}");
    assert!(!ids.is_sorted(), "{ids:?}");
}

#[test]
fn what_is_written_is_read_in_every_layout_and_dtype() {
    fn round_trip<T: Number>(layout: Layout) {
        let cache = shuffled(DIMS, T::DTYPE, layout);
        let mut sequence = acquire(&cache, 0).unwrap();
        let all = salts(7, 31);
        for chunk in [&all[..1], &all[1..3], &all[3..4], &all[4..17], &all[17..31]] {
            append::<T>(&mut sequence, chunk).unwrap();
        }
        assert_shuffled(&sequence);
        assert_holds::<T>(&sequence, &all);
    }
    for layout in LAYOUTS {
        round_trip::<f32>(layout);
        round_trip::<f16>(layout);
        round_trip::<bf16>(layout);
    }
}

/// One token a block, one head: the sizes at which strides coincide.
#[test]
fn the_smallest_sizes_are_no_special_case() {
    for layout in LAYOUTS {
        for (kv_heads, block_tokens, key_dim) in [(1, 4, 2), (3, 1, 2), (1, 1, 1), (2, 3, 1)] {
            let dims = KvDims {
                layers: 2,
                kv_heads,
                key_dim,
                value_dim: 1,
                block_tokens,
            };
            let cache = shuffled(dims, DType::F32, layout);
            let mut sequence = acquire(&cache, 0).unwrap();
            let all = salts(3, 5 * block_tokens);
            append::<f32>(&mut sequence, &all[..block_tokens]).unwrap();
            append::<f32>(&mut sequence, &all[block_tokens..]).unwrap();
            assert_holds::<f32>(&sequence, &all);
        }
    }
}

/// Values chosen so that each rule of narrowing shows: ties to even, both ways,
/// overflow, subnormals, signed zero, and NaNs whose payload must not be touched.
#[test]
fn f32_input_is_narrowed_exactly() {
    let dims = KvDims {
        layers: 1,
        kv_heads: 2,
        key_dim: 3,
        value_dim: 2,
        block_tokens: 4,
    };
    let signalling = f32::from_bits(0x7f80_0001);
    let payload = f32::from_bits(0xffa0_0000);
    let keys = [
        1.003_906_3,
        1.011_718_8,
        -0.0,
        signalling,
        payload,
        f32::MAX,
    ];
    let values = [5.960_464_5e-8, 65_504.0, 65_520.0, f32::NEG_INFINITY];
    let bf16_bits: [u16; 6] = [0x3f80, 0x3f82, 0x8000, 0x7fc0, 0xffa0, 0x7f80];
    let f16_values: [u16; 4] = [0x0001, 0x7bff, 0x7c00, 0xfc00];
    for layout in LAYOUTS {
        let cache = cache_of(dims, DType::BF16, layout, 1);
        let mut sequence = acquire(&cache, 0).unwrap();
        let mut step = sequence.append(&[0]).unwrap();
        step.layer_mut(0).unwrap().write(&keys, &values).unwrap();
        step.commit().unwrap();
        let plane = sequence.keys::<bf16>(0, 0).unwrap();
        let bits = |head: usize| plane.row(head, 0).unwrap().iter().map(|x| x.to_bits());
        assert!(bits(0).chain(bits(1)).eq(bf16_bits), "{layout}");

        let cache = cache_of(dims, DType::F16, layout, 1);
        let mut sequence = acquire(&cache, 0).unwrap();
        let mut step = sequence.append(&[0]).unwrap();
        step.layer_mut(0).unwrap().write(&keys, &values).unwrap();
        step.commit().unwrap();
        let plane = sequence.values::<f16>(0, 0).unwrap();
        let bits = |head: usize| plane.row(head, 0).unwrap().iter().map(|x| x.to_bits());
        assert!(bits(0).chain(bits(1)).eq(f16_values), "{layout}");
    }
}

#[test]
fn a_head_is_one_slice_in_hnd_and_refused_in_nhd() {
    for (hnd, nhd) in [
        (Layout::BlockMajorHnd, Layout::BlockMajorNhd),
        (Layout::LayerMajorHnd, Layout::LayerMajorNhd),
    ] {
        heads_are_slices(hnd);
        heads_are_refused(nhd);
    }
}

fn heads_are_slices(layout: Layout) {
    let cache = cache_of(DIMS, DType::F32, layout, 4);
    let mut sequence = acquire(&cache, 0).unwrap();
    append::<f32>(&mut sequence, &salts(0, 6)).unwrap();
    for (block, salts) in [(0, salts(0, 4)), (1, salts(4, 2))] {
        let expected: Vec<_> = salts
            .iter()
            .flat_map(|&salt| (0..3).map(move |dim| element(salt, 2, Part::Values, 1, dim)))
            .collect();
        let head = sequence.values_head::<f32>(2, block, 1).unwrap();
        assert_eq!(head, expected);
        assert_inside(&cache, head);
    }
    // The whole plane is one slice when its block is full.
    assert_eq!(
        sequence
            .keys::<f32>(0, 0)
            .unwrap()
            .as_slice()
            .unwrap()
            .len(),
        2 * 4 * 5
    );
    assert!(sequence.keys::<f32>(0, 1).unwrap().as_slice().is_none());
}

fn heads_are_refused(layout: Layout) {
    let cache = cache_of(DIMS, DType::F32, layout, 4);
    let mut sequence = acquire(&cache, 0).unwrap();
    append::<f32>(&mut sequence, &salts(0, 6)).unwrap();
    assert_eq!(
        sequence.values_head::<f32>(2, 0, 1).unwrap_err(),
        KvError::NotContiguous { layout }
    );
    let plane = sequence.keys::<f32>(1, 1).unwrap();
    let expected = rows::<f32>(cache.spec(), &salts(4, 2), 1, Part::Keys);
    assert_eq!(plane.as_slice().unwrap(), expected);
}

#[test]
fn a_step_reads_its_own_layer_and_no_other() {
    let cache = small_cache(4, 1);
    let mut sequence = acquire(&cache, 0).unwrap();
    append::<f32>(&mut sequence, &salts(0, 3)).unwrap();
    let mut step = sequence.append(&[0; 4]).unwrap();
    let spec = *cache.spec();
    for layer in 0..3 {
        for unwritten in layer..3 {
            assert_eq!(
                step.keys_head::<f32>(unwritten, 0, 0).unwrap_err(),
                KvError::LayerNotWritten { layer: unwritten }
            );
            // The tokens from before the step can be had all the same.
            let committed = step.committed().keys::<f32>(unwritten, 0).unwrap();
            assert_eq!(committed.tokens(), 3);
            assert_eq!(committed.row(1, 3), None);
        }
        let keys = rows::<f32>(&spec, &salts(3, 4), layer, Part::Keys);
        let values = rows::<f32>(&spec, &salts(3, 4), layer, Part::Values);
        step.layer_mut(layer)
            .unwrap()
            .write(&keys, &values)
            .unwrap();
        assert!(step.written().contains(layer));
        let plane = step.values::<f32>(layer, 1).unwrap();
        assert_eq!(plane.tokens(), 3);
        assert_eq!(plane.row(0, 2).unwrap(), &values[3 * 6..3 * 6 + 3]);
        assert_eq!(
            step.keys_head::<f32>(layer, 0, 1).unwrap()[15..],
            keys[5..10]
        );
    }
    step.commit().unwrap();
    assert_holds::<f32>(&sequence, &salts(0, 7));
}

#[test]
fn a_layer_may_be_written_again_and_the_last_time_counts() {
    let cache = small_cache(4, 1);
    let mut sequence = acquire(&cache, 0).unwrap();
    let spec = *cache.spec();
    let mut step = sequence.append(&[0; 6]).unwrap();
    for salts in [salts(90, 6), salts(0, 6)] {
        for layer in 0..3 {
            let keys = rows::<f32>(&spec, &salts, layer, Part::Keys);
            let values = rows::<f32>(&spec, &salts, layer, Part::Values);
            step.layer_mut(layer)
                .unwrap()
                .write(&keys, &values)
                .unwrap();
        }
    }
    step.commit().unwrap();
    assert_holds::<f32>(&sequence, &salts(0, 6));
}

pub(super) fn write_in_place<T: Number>(
    step: &mut Step<'_>,
    spec: &KvSpec,
    salts: &[u64],
    layer: usize,
) {
    let mut pieces: Vec<_> = step
        .layer_mut(layer)
        .unwrap()
        .runs::<T>()
        .unwrap()
        .collect();
    // All pieces are held at once, and filled in another order than they came.
    pieces.reverse();
    for run in &mut pieces {
        let dims = match run.part {
            Part::Keys => spec.key_dim(),
            Part::Values => spec.value_dim(),
        };
        assert_eq!(
            (run.dim, run.data.len()),
            (dims, run.tokens * run.heads * dims)
        );
        for (index, slot) in run.data.iter_mut().enumerate() {
            let (token, head, dim) = (
                run.token + index / (run.heads * dims),
                run.head + index / dims % run.heads,
                index % dims,
            );
            *slot = T::of(element(salts[token], layer, run.part, head, dim));
        }
    }
}

#[test]
fn kernels_may_write_in_place() {
    fn check<T: Number>(layout: Layout) {
        let cache = shuffled(DIMS, T::DTYPE, layout);
        let spec = *cache.spec();
        let mut sequence = acquire(&cache, 0).unwrap();
        append::<T>(&mut sequence, &salts(0, 3)).unwrap();
        let mut step = sequence.append(&[0; 11]).unwrap();
        for layer in 0..spec.layers() {
            write_in_place::<T>(&mut step, &spec, &salts(3, 11), layer);
        }
        step.commit().unwrap();
        assert_holds::<T>(&sequence, &salts(0, 14));
    }
    for layout in LAYOUTS {
        check::<f32>(layout);
        check::<f16>(layout);
        check::<bf16>(layout);
    }
}

#[test]
fn runs_that_are_not_driven_to_their_end_do_not_write_the_layer() {
    let cache = small_cache(4, 1);
    let mut sequence = acquire(&cache, 0).unwrap();
    let mut step = sequence.append(&[0; 5]).unwrap();
    // 2 blocks x keys and values x 2 heads.
    let lent = step
        .layer_mut(0)
        .unwrap()
        .runs::<f32>()
        .unwrap()
        .take(7)
        .count();
    assert_eq!(lent, 7);
    assert!(step.written().is_empty());
    assert_eq!(step.layer_mut(0).unwrap().runs::<f32>().unwrap().count(), 8);
    assert!(step.written().contains(0));
}

#[test]
fn wrong_shapes_types_and_places_are_errors_and_write_nothing() {
    let cache = small_cache(4, 1);
    let mut sequence = acquire(&cache, 0).unwrap();
    append::<f32>(&mut sequence, &salts(0, 2)).unwrap();
    let mut step = sequence.append(&[0; 2]).unwrap();
    let missing = KvError::NoSuchLayer {
        layer: 3,
        layers: 3,
    };
    assert_eq!(step.layer_mut(3).unwrap_err(), missing);
    assert_eq!(step.keys::<f32>(3, 0).unwrap_err(), missing);

    let mut layer = step.layer_mut(0).unwrap();
    let shape = |part, got, expected, dim| KvError::ShapeMismatch {
        part,
        got,
        expected,
        tokens: 2,
        heads: 2,
        dim,
    };
    assert_eq!(
        layer.write(&[0.0_f32; 19], &[0.0; 12]),
        Err(shape(Part::Keys, 19, 20, 5))
    );
    assert_eq!(
        layer.write(&[0.0_f32; 20], &[0.0; 20]),
        Err(shape(Part::Values, 20, 12, 3))
    );
    let mismatch = |asked| KvError::DTypeMismatch {
        cache: DType::F32,
        asked,
    };
    assert_eq!(
        layer.write(&[bf16::ZERO; 20], &[bf16::ZERO; 12]),
        Err(mismatch(DType::BF16))
    );
    assert_eq!(
        layer.write(&[0_i32; 20], &[0; 12]),
        Err(mismatch(DType::I32))
    );
    assert_eq!(
        step.layer_mut(0).unwrap().runs::<f16>().unwrap_err(),
        mismatch(DType::F16)
    );
    assert!(step.written().is_empty());

    step.layer_mut(0)
        .unwrap()
        .write(&[0.0_f32; 20], &[0.0; 12])
        .unwrap();
    assert_eq!(step.keys::<u32>(0, 0).unwrap_err(), mismatch(DType::U32));
    assert_eq!(
        step.keys::<f32>(0, 1).unwrap_err(),
        KvError::NoSuchBlock {
            block: 1,
            blocks: 1
        }
    );
    assert_eq!(
        step.values_head::<f32>(0, 0, 2).unwrap_err(),
        KvError::NoSuchHead { head: 2, heads: 2 }
    );
    drop(step);
    assert_eq!(
        sequence.values::<f32>(0, usize::MAX).unwrap_err(),
        KvError::NoSuchBlock {
            block: usize::MAX,
            blocks: 1
        }
    );
    assert_holds::<f32>(&sequence, &salts(0, 2));

    // A half cache takes its own dtype and f32, not the other half.
    let cache = cache_of(DIMS, DType::BF16, Layout::BlockMajorHnd, 1);
    let mut sequence = acquire(&cache, 0).unwrap();
    let mut step = sequence.append(&[0; 2]).unwrap();
    let mut layer = step.layer_mut(0).unwrap();
    assert_eq!(
        layer.write(&[f16::ZERO; 20], &[f16::ZERO; 12]),
        Err(KvError::DTypeMismatch {
            cache: DType::BF16,
            asked: DType::F16
        })
    );
    layer.write(&[0.0_f32; 20], &[0.0; 12]).unwrap();
}

/// lessons/kv.md #28: a block that comes back holds what its last owner wrote, and
/// none of that can be read.
#[test]
fn stale_slots_are_never_lent() {
    let cache = small_cache(1, 1);
    let mut sequence = acquire(&cache, 4).unwrap();
    let mut step = sequence.append(&[0; 4]).unwrap();
    for layer in 0..3 {
        let nan = [f32::NAN; 40];
        step.layer_mut(layer)
            .unwrap()
            .write(&nan, &nan[..24])
            .unwrap();
    }
    step.commit().unwrap();
    drop(sequence);

    let mut sequence = acquire(&cache, 4).unwrap();
    assert!(sequence.keys::<f32>(0, 0).is_err());
    append::<f32>(&mut sequence, &salts(0, 1)).unwrap();
    append::<f32>(&mut sequence, &salts(1, 2)).unwrap();
    assert_holds::<f32>(&sequence, &salts(0, 3));
    for layer in 0..3 {
        for head in 0..2 {
            let keys = sequence.keys_head::<f32>(layer, 0, head).unwrap();
            let values = sequence.values_head::<f32>(layer, 0, head).unwrap();
            assert_eq!((keys.len(), values.len()), (15, 9));
            assert!(keys.iter().chain(values).all(|x| !x.is_nan()));
        }
    }
}

/// Attention as a kernel would do it: a query against every key of its head, softmax,
/// and the weighted sum of the values.
fn attend<'a>(
    query: &[f32],
    keys: impl Iterator<Item = &'a [f32]>,
    values: impl Iterator<Item = &'a [f32]>,
) -> Vec<f32> {
    let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>();
    let scores: Vec<f32> = keys.map(dot).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f32 = weights.iter().sum();
    let mut out = Vec::new();
    for (value, weight) in values.zip(&weights) {
        out.resize(value.len(), 0.0);
        for (out, value) in out.iter_mut().zip(value) {
            *out += value * weight / total;
        }
    }
    out
}

/// Attention over shuffled blocks, read where they lie inside a step, is bit for bit
/// that over one contiguous array.
#[test]
fn attention_over_shuffled_blocks_equals_attention_over_one_array() {
    let dims = KvDims {
        layers: 2,
        kv_heads: 2,
        key_dim: 8,
        value_dim: 6,
        block_tokens: 4,
    };
    let cache = shuffled(dims, DType::F32, Layout::BlockMajorHnd);
    let mut sequence = acquire(&cache, 30).unwrap();
    assert_shuffled(&sequence);
    let noise = |seed: usize, len: usize| -> Vec<f32> {
        (0..len)
            .map(|i| ((seed * 31 + i * 17) as f32 * 0.37).sin())
            .collect()
    };
    // Contiguous references, token-major, one for each layer.
    let mut all_keys = vec![Vec::new(); 2];
    let mut all_values = vec![Vec::new(); 2];
    for (number, tokens) in [9, 1, 1, 12, 1, 5].into_iter().enumerate() {
        let mut step = sequence.append(&vec![0; tokens]).unwrap();
        for layer in 0..2 {
            let keys = noise(number * 10 + layer, tokens * 2 * 8);
            let values = noise(number * 10 + layer + 5, tokens * 2 * 6);
            step.layer_mut(layer)
                .unwrap()
                .write(&keys, &values)
                .unwrap();
            all_keys[layer].extend(keys);
            all_values[layer].extend(values);
            for head in 0..2 {
                let query = noise(number + 100 + head, 8);
                let expected = attend(
                    &query,
                    all_keys[layer].chunks(8).skip(head).step_by(2),
                    all_values[layer].chunks(6).skip(head).step_by(2),
                );
                let blocks = 0..step.block_count();
                let keys = blocks
                    .clone()
                    .map(|block| step.keys_head::<f32>(layer, block, head).unwrap());
                let values =
                    blocks.map(|block| step.values_head::<f32>(layer, block, head).unwrap());
                for slice in keys.clone().chain(values.clone()) {
                    assert_inside(&cache, slice);
                }
                let found = attend(
                    &query,
                    keys.flat_map(|keys| keys.chunks(8)),
                    values.flat_map(|values| values.chunks(6)),
                );
                assert_eq!(found, expected);
            }
        }
        step.commit().unwrap();
    }
    assert_eq!(sequence.len(), 29);
}
