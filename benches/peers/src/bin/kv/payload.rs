//! Keys and values: writing a token, reading a context, forking it.

use std::hint::black_box;

use tenslab::kv::{KvCache, KvDims, KvLimits, KvOptions, KvSpec, Namespace, Sequence};
use tenslab::{DType, Tensor, bf16, memory};

use crate::race::{Cell, Claim, Contender};

pub const LAYERS: usize = 32;
pub const HEADS: usize = 8;
pub const DIM: usize = 128;
const SLOTS: usize = 16;
/// Elements of one token's keys, or values, in one layer.
pub const ROW: usize = HEADS * DIM;
/// Elements of the keys, or values, of one layer in a block.
const PLANE: usize = ROW * SLOTS;
/// Elements of a block.
const BLOCK: usize = LAYERS * 2 * PLANE;

/// The layer that is read.
const LAYER: usize = 7;
/// Tokens that are read.
pub const CONTEXT: usize = 4096;

/// Keys, or values, that are not all alike: tokens times [`ROW`].
pub fn rows(tokens: usize, seed: usize) -> Vec<bf16> {
    let element = |at| bf16::from_bits(u16::try_from((at * 31 + seed) % 16_001).unwrap_or(0));
    (0..tokens * ROW).map(element).collect()
}

fn cache(blocks: usize, sequences: usize) -> KvCache {
    let dims = KvDims {
        layers: LAYERS,
        kv_heads: HEADS,
        key_dim: DIM,
        value_dim: DIM,
        block_tokens: SLOTS,
    };
    let limits = KvLimits {
        blocks,
        max_sequences: sequences,
        max_blocks_per_sequence: blocks,
    };
    let spec = KvSpec::new(dims, DType::BF16).expect("dims");
    assert_eq!(spec.block_bytes(), BLOCK * size_of::<bf16>());
    KvCache::with_options(spec, limits, &KvOptions::default(), memory::cpu()).expect("memory")
}

fn empty_sequence(cache: &KvCache) -> Sequence {
    let namespace = Namespace::default();
    cache.acquire(&[], &namespace, 0, None).expect("a sequence")
}

/// Elements from the allocator that the cache's region is from, each of them touched.
fn region(elements: usize) -> Tensor {
    let tensor = Tensor::empty([elements], DType::BF16, memory::cpu()).expect("memory");
    tensor.write::<bf16>().expect("nobody else").fill(bf16::ONE);
    tensor
}

/// Tokens after which the append begins anew.
pub const APPENDED: usize = 256;

/// Copies a token's keys and values, in runs of `dim`, to where the cache has them.
fn scatter(region: &mut [bf16], token: usize, keys: &[bf16], values: &[bf16], dim: usize) {
    let block = &mut region[token / SLOTS * BLOCK..][..BLOCK];
    for layer in 0..LAYERS {
        for (part, row) in [keys, values].into_iter().enumerate() {
            for head in 0..HEADS {
                let plane = (layer * 2 + part) * PLANE;
                let at = plane + (head * SLOTS + token % SLOTS) * DIM;
                block[at..][..dim].copy_from_slice(&row[head * DIM..][..dim]);
            }
        }
    }
}

/// One token's keys and values in all layers.
pub fn append<'a>() -> Cell<'a> {
    let (keys, values) = (rows(1, 1), rows(1, 2));
    let cache = cache(APPENDED / SLOTS, 1);
    let mut sequence = empty_sequence(&cache);
    let mut token = 0_u32;
    let ours = {
        let (keys, values) = (keys.clone(), values.clone());
        move || {
            if sequence.len() == APPENDED {
                sequence.truncate(0).expect("shorter");
            }
            token = token.wrapping_add(1);
            let mut step = sequence.append(&[token]).expect("a block");
            for layer in 0..LAYERS {
                let mut layer = step.layer_mut(layer).expect("a layer");
                layer.write(&keys, &values).expect("its shape");
            }
            step.commit().expect("all layers");
        }
    };
    let copier = |dim: usize| {
        let region = region(APPENDED / SLOTS * BLOCK);
        let (keys, values) = (keys.clone(), values.clone());
        let mut token = 0;
        move || {
            let mut region = region.write::<bf16>().expect("nobody else");
            scatter(&mut region, token, &keys, &values, dim);
            token = (token + 1) % APPENDED;
        }
    };
    // The cache does not know a run's length before it runs, and so calls memcpy.
    let known = copier(DIM);
    let memcpy = copier(black_box(DIM));
    let contenders = vec![
        Contender::new("ours", 1, ours),
        Contender::new("memcpy", 1, memcpy),
        Contender::new("memcpy, known length", 1, known),
        #[cfg(feature = "candle")]
        crate::candle::append(&keys, &values),
    ];
    let contenders = contenders.into_iter();
    let contenders = contenders.map(|contender| contender.warmed(APPENDED));
    let claim = Claim {
        who: "ours",
        ns: 0.0,
        of: Some((1.2, "memcpy")),
    };
    Cell {
        unit: "token",
        claims: vec![claim],
        facts: Vec::new(),
        contenders: contenders.collect(),
    }
}

/// What is done with what is read: the same for all.
pub fn sum(elements: &[bf16]) -> u16 {
    let add = |sum: u16, element: &bf16| sum.wrapping_add(element.to_bits());
    elements.iter().fold(0, add)
}

/// A sequence of `CONTEXT` tokens with these keys and values in one layer, and whatever
/// lies there in the others.
fn context(cache: &KvCache, keys: &[bf16], values: &[bf16]) -> Sequence {
    let mut sequence = empty_sequence(cache);
    let tokens: Vec<u32> = (0..).take(CONTEXT).collect();
    let mut step = sequence.append(&tokens).expect("blocks");
    for layer in 0..LAYERS {
        let mut layer_mut = step.layer_mut(layer).expect("a layer");
        if layer == LAYER {
            layer_mut.write(keys, values).expect("its shape");
        } else {
            layer_mut.runs::<bf16>().expect("bf16").for_each(drop);
        }
    }
    step.commit().expect("all layers");
    sequence
}

fn read_blocks(sequence: &Sequence) -> u16 {
    let mut total = 0_u16;
    for block in 0..sequence.block_count() {
        for plane in [sequence.keys(LAYER, block), sequence.values(LAYER, block)] {
            let plane = plane.expect("a block").as_slice().expect("a full one");
            total = total.wrapping_add(sum(plane));
        }
    }
    total
}

fn read_heads(sequence: &Sequence) -> u16 {
    let mut total = 0_u16;
    for head in 0..HEADS {
        for block in 0..sequence.block_count() {
            let keys = sequence.keys_head(LAYER, block, head).expect("keys");
            let values = sequence.values_head(LAYER, block, head).expect("values");
            total = total.wrapping_add(sum(keys)).wrapping_add(sum(values));
        }
    }
    total
}

/// One layer's keys and values of a long context.
pub fn read<'a>() -> Cell<'a> {
    let (keys, values) = (rows(CONTEXT, 3), rows(CONTEXT, 4));
    let expected = sum(&keys).wrapping_add(sum(&values));
    // Each reads bytes of its own: who reads what another one has just read finds it near.
    let context = || context(&cache(CONTEXT / SLOTS, 1), &keys, &values);
    let (by_block, by_head) = (context(), context());
    let linear = region(2 * CONTEXT * ROW);
    {
        let mut all = linear.write::<bf16>().expect("nobody else");
        let (first, second) = all.split_at_mut(CONTEXT * ROW);
        first.copy_from_slice(&keys);
        second.copy_from_slice(&values);
    }
    let contender = |name, read: Box<dyn Fn() -> u16>| {
        assert_eq!(read(), expected, "{name} reads all of it");
        Contender::new(name, CONTEXT, move || {
            black_box(read());
        })
    };
    let contenders = vec![
        contender("ours, by block", Box::new(move || read_blocks(&by_block))),
        contender("ours, by head", Box::new(move || read_heads(&by_head))),
        contender(
            "linear",
            Box::new(move || sum(&linear.read::<bf16>().expect("nobody writes"))),
        ),
        #[cfg(feature = "candle")]
        contender("candle narrow", crate::candle::read_narrow(&keys, &values)),
        #[cfg(feature = "candle")]
        contender(
            "candle contiguous",
            crate::candle::read_contiguous(&keys, &values),
        ),
    ];
    let claim = Claim {
        who: "ours, by block",
        ns: 0.0,
        of: Some((1.0 / 0.9, "linear")),
    };
    Cell {
        unit: "token",
        claims: vec![claim],
        facts: Vec::new(),
        contenders,
    }
}

/// Another sequence with the same context, whose last block is partly filled.
pub fn fork<'a>() -> Cell<'a> {
    let cache = cache(CONTEXT / SLOTS + 1, 2);
    let mut sequence = context(&cache, &rows(CONTEXT, 5), &rows(CONTEXT, 6));
    // The last block's pages are to be there in all layers, and its tokens the sequence's own.
    let (begin, end) = (CONTEXT - SLOTS, CONTEXT - 6);
    sequence.truncate(begin).expect("shorter");
    let tail: Vec<u32> = (1_000_000..).take(end - begin).collect();
    let mut step = sequence.append(&tail).expect("a block");
    let part = rows(tail.len(), 7);
    for layer in 0..LAYERS {
        let mut layer = step.layer_mut(layer).expect("a layer");
        layer.write(&part, &part).expect("its shape");
    }
    step.commit().expect("all layers");
    let copied = || cache.counters().copied_blocks;
    let before = copied();
    let mut twin = sequence.fork().expect("a sequence");
    assert_eq!(copied(), before, "a fork copies nothing");
    drop(twin.append(&[1]).expect("a block"));
    assert_eq!(copied(), before + 1, "its first token one block");
    drop(twin);

    let sequence = std::rc::Rc::new(sequence);
    let forked = std::rc::Rc::clone(&sequence);
    let fork = move || drop(black_box(forked.fork().expect("a sequence")));
    let fork_and_append = move || {
        let mut twin = sequence.fork().expect("a sequence");
        drop(black_box(twin.append(&[1]).expect("a block")));
    };
    let (from, to) = (region(BLOCK), region(BLOCK));
    let copy = move || {
        let mut to = to.write::<bf16>().expect("nobody else");
        to.copy_from_slice(black_box(&from.read::<bf16>().expect("nobody writes")));
    };
    let contenders = vec![
        Contender::new("ours", 1, fork),
        Contender::new("ours, first append", 1, fork_and_append),
        Contender::new("memcpy of a block", 1, copy),
        #[cfg(feature = "kvbm")]
        kvbm_fork(),
        #[cfg(feature = "candle")]
        crate::candle::fork(),
    ];
    let claim = |who, of| Claim {
        who,
        ns: 5_000.0,
        of,
    };
    Cell {
        unit: "fork",
        claims: vec![
            claim("ours", None),
            claim("ours, first append", Some((1.0, "memcpy of a block"))),
        ],
        facts: Vec::new(),
        contenders,
    }
}

/// The handles of the full blocks once more: it knows no others.
#[cfg(feature = "kvbm")]
fn kvbm_fork<'a>() -> Contender<'a> {
    use crate::keeper::Keeper;
    use crate::kvbm::{Kvbm, LRU};
    let blocks = CONTEXT / SLOTS - 1;
    let keeper = Kvbm::new(blocks, LRU);
    let mut chain = keeper.begin();
    for id in (0..).take(blocks) {
        keeper.grow(&mut chain, &crate::trace::block(id));
    }
    Contender::new("kvbm clone", 1, move || drop(black_box(chain.fork())))
}
