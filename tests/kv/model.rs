//! Random operations on several sequences, against a model that is nothing but vectors:
//! after every one, the counts, the tables, the errors and every byte must agree.

use std::collections::HashSet;

use proptest::prelude::*;
use tenslab::kv::{KvCache, KvDims, KvError, KvSpec, Layout, Namespace, Part, Sequence};
use tenslab::{DType, bf16, f16, memory};

use super::{Number, assert_holds, element, limits, rows, salts};

const BLOCKS: usize = 9;
const SEQUENCES: usize = 4;
const WIDTH: usize = 5;

#[derive(Debug, Clone, Copy)]
enum Write {
    Native,
    FromF32,
    InPlace,
    Twice,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Commit,
    /// Drop the step, some layers written.
    RollBack,
    /// Commit with one layer missing.
    Missing,
    /// Leak the step.
    Forget,
}

#[derive(Debug, Clone)]
enum Op {
    Acquire {
        tokens: usize,
        reserve: usize,
    },
    Append {
        sequence: usize,
        tokens: usize,
        write: Write,
        end: End,
    },
    Drop {
        sequence: usize,
    },
    Check,
}

fn op() -> impl Strategy<Value = Op> {
    let write = prop_oneof![
        Just(Write::Native),
        Just(Write::FromF32),
        Just(Write::InPlace),
        Just(Write::Twice)
    ];
    let end = prop_oneof![
        6 => Just(End::Commit),
        2 => Just(End::RollBack),
        1 => Just(End::Missing),
        1 => Just(End::Forget),
    ];
    let append = (0..SEQUENCES, 0..8_usize, write, end);
    prop_oneof![
        2 => (0..14_usize, 0..6_usize).prop_map(|(tokens, reserve)| Op::Acquire { tokens, reserve }),
        6 => append.prop_map(|(sequence, tokens, write, end)| Op::Append { sequence, tokens, write, end }),
        2 => (0..SEQUENCES).prop_map(|sequence| Op::Drop { sequence }),
        1 => Just(Op::Check),
    ]
}

/// A sequence and what the model knows of it.
struct Twin {
    real: Sequence,
    /// What each committed token was written from.
    salts: Vec<u64>,
    /// Blocks it must hold.
    held: usize,
}

struct Lab {
    cache: KvCache,
    twins: Vec<Twin>,
    next_salt: u64,
}

impl Lab {
    fn new(spec: KvSpec) -> Self {
        let cache = KvCache::new(spec, limits(BLOCKS, SEQUENCES, WIDTH), memory::cpu()).unwrap();
        Self {
            cache,
            twins: Vec::new(),
            next_salt: 0,
        }
    }

    fn free(&self) -> usize {
        BLOCKS - self.twins.iter().map(|twin| twin.held).sum::<usize>()
    }

    /// What taking blocks for `tokens` tokens must answer, `held` being there.
    fn expect(&self, tokens: usize, held: usize) -> Result<usize, KvError> {
        let block_tokens = self.cache.spec().block_tokens();
        let blocks = tokens.div_ceil(block_tokens).max(held);
        if tokens > WIDTH * block_tokens {
            return Err(KvError::SequenceTooLong {
                tokens,
                max: WIDTH * block_tokens,
            });
        }
        let (need, free) = (blocks - held, self.free());
        if need > free {
            return Err(KvError::OutOfBlocks {
                need,
                free,
                evictable: 0,
                total: BLOCKS,
            });
        }
        Ok(blocks)
    }

    fn acquire(&mut self, tokens: usize, reserve: usize) {
        let expected = match self.expect(tokens + reserve, 0) {
            Err(error @ KvError::SequenceTooLong { .. }) => Err(error),
            _ if self.twins.len() == SEQUENCES => Err(KvError::OutOfSequences { max: SEQUENCES }),
            other => other,
        };
        let got = self
            .cache
            .acquire(&vec![1; tokens], &Namespace::default(), reserve, None);
        match (got, expected) {
            (Ok(real), Ok(held)) => self.twins.push(Twin {
                real,
                salts: Vec::new(),
                held,
            }),
            (got, expected) => assert_eq!(got.map(|_| 0).unwrap_err(), expected.unwrap_err()),
        }
    }

    fn append<T: Number>(&mut self, index: usize, tokens: usize, write: Write, end: End) {
        if index >= self.twins.len() {
            return;
        }
        let twin = &self.twins[index];
        let expected = match tokens {
            0 => Err(KvError::EmptyStep),
            _ => self.expect(twin.salts.len() + tokens, twin.held),
        };
        let spec = *self.cache.spec();
        let new = salts(self.next_salt, tokens);
        self.next_salt += tokens as u64;
        let twin = &mut self.twins[index];
        let mut step = match (twin.real.append(&vec![1; tokens]), expected) {
            (Ok(step), Ok(_)) => step,
            (got, expected) => {
                assert_eq!(got.map(|_| 0).unwrap_err(), expected.unwrap_err());
                return;
            }
        };
        assert_eq!(step.start(), twin.salts.len());
        // Layers are not written in order, and not all of them unless it is to be committed.
        let skip = new.len() % spec.layers();
        for layer in (0..spec.layers()).rev() {
            if matches!(end, End::RollBack | End::Missing) && layer == skip {
                continue;
            }
            write_layer::<T>(&mut step, &spec, &new, layer, write);
            assert_step_reads::<T>(&step, &spec, &twin.salts, &new, layer);
        }
        match end {
            End::Commit => {
                step.commit().unwrap();
                twin.salts.extend(new);
                twin.held = expected.unwrap();
            }
            End::RollBack => drop(step),
            End::Missing => {
                let error = step.commit().unwrap_err();
                let KvError::LayersNotWritten { missing, layers } = error else {
                    panic!("{error:?}");
                };
                assert_eq!(layers, spec.layers());
                assert_eq!(missing.iter().collect::<Vec<_>>(), [skip]);
            }
            End::Forget => {
                std::mem::forget(step);
                twin.held = expected.unwrap();
            }
        }
    }

    fn verify<T: Number>(&self) {
        self.cache.check().unwrap();
        let stats = self.cache.stats();
        assert_eq!(stats.blocks_free, self.free());
        assert_eq!(stats.blocks_used + stats.blocks_free, BLOCKS);
        assert_eq!(stats.sequences, self.twins.len());
        assert_eq!(
            stats.tokens,
            self.twins
                .iter()
                .map(|twin| twin.salts.len())
                .sum::<usize>()
        );
        let mut seen = HashSet::new();
        for twin in &self.twins {
            assert_eq!(twin.real.block_ids().count(), twin.held);
            assert!(
                twin.real.block_ids().all(|id| seen.insert(id)),
                "a block in two tables"
            );
            assert_holds::<T>(&twin.real, &twin.salts);
        }
    }
}

fn write_layer<T: Number>(
    step: &mut tenslab::kv::Step<'_>,
    spec: &KvSpec,
    new: &[u64],
    layer: usize,
    write: Write,
) {
    let mut target = step.layer_mut(layer).unwrap();
    match write {
        Write::Native | Write::Twice => {
            if matches!(write, Write::Twice) {
                let (keys, values) = (new.len() * spec.key_dim(), new.len() * spec.value_dim());
                let other = vec![T::of(77.0); spec.kv_heads() * keys.max(values)];
                target
                    .write(
                        &other[..spec.kv_heads() * keys],
                        &other[..spec.kv_heads() * values],
                    )
                    .unwrap();
            }
            let keys = rows::<T>(spec, new, layer, Part::Keys);
            let values = rows::<T>(spec, new, layer, Part::Values);
            target.write(&keys, &values).unwrap();
        }
        Write::FromF32 => {
            let keys = rows::<f32>(spec, new, layer, Part::Keys);
            let values = rows::<f32>(spec, new, layer, Part::Values);
            target.write(&keys, &values).unwrap();
        }
        Write::InPlace => {
            for run in target.runs::<T>().unwrap() {
                for (row, data) in run.data.chunks_exact_mut(run.dim).enumerate() {
                    let (token, head) = (run.token + row / run.heads, run.head + row % run.heads);
                    for (dim, slot) in data.iter_mut().enumerate() {
                        *slot = T::of(element(new[token], layer, run.part, head, dim));
                    }
                }
            }
        }
    }
}

/// The step reads old and new tokens of a layer that it wrote.
fn assert_step_reads<T: Number>(
    step: &tenslab::kv::Step<'_>,
    spec: &KvSpec,
    old: &[u64],
    new: &[u64],
    layer: usize,
) {
    for (position, &salt) in old.iter().chain(new).enumerate() {
        let (block, slot) = (
            position / spec.block_tokens(),
            position % spec.block_tokens(),
        );
        let keys = step.keys::<T>(layer, block).unwrap();
        let values = step.values::<T>(layer, block).unwrap();
        assert_eq!(keys.tokens(), step.block_filled(block));
        for head in 0..spec.kv_heads() {
            for (part, row) in [
                (Part::Keys, keys.row(head, slot)),
                (Part::Values, values.row(head, slot)),
            ] {
                for (dim, found) in row.unwrap().iter().enumerate() {
                    let expected = T::of(element(salt, layer, part, head, dim));
                    assert_eq!(found.bits(), expected.bits());
                }
            }
        }
    }
}

fn run<T: Number>(spec: KvSpec, ops: &[Op]) {
    let mut lab = Lab::new(spec);
    for op in ops {
        match *op {
            Op::Acquire { tokens, reserve } => lab.acquire(tokens, reserve),
            Op::Append {
                sequence,
                tokens,
                write,
                end,
            } => lab.append::<T>(sequence, tokens, write, end),
            Op::Drop { sequence } if sequence < lab.twins.len() => {
                lab.twins.swap_remove(sequence);
            }
            Op::Drop { .. } | Op::Check => {}
        }
        lab.verify::<T>();
    }
    // Sequences outlive the handle.
    let Lab { cache, twins, .. } = lab;
    drop(cache);
    for twin in &twins {
        assert_holds::<T>(&twin.real, &twin.salts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_is_the_model(
        kv_heads in 1..3_usize,
        key_dim in 1..6_usize,
        value_dim in 1..6_usize,
        block_tokens in 1..5_usize,
        layout in prop_oneof![Just(Layout::BlockMajorHnd), Just(Layout::BlockMajorNhd)],
        dtype in prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)],
        ops in prop::collection::vec(op(), 1..50),
    ) {
        let dims = KvDims { layers: 2, kv_heads, key_dim, value_dim, block_tokens };
        let spec = KvSpec::new(dims, dtype).unwrap().with_layout(layout).unwrap();
        match dtype {
            DType::F32 => run::<f32>(spec, &ops),
            DType::F16 => run::<f16>(spec, &ops),
            _ => run::<bf16>(spec, &ops),
        }
    }
}
