//! Random operations on several sequences, against a model that is nothing but lists of
//! tokens and a set of prefixes: after every one the rules, the errors and every byte must
//! hold.
//!
//! Keys and values of a token are made of all tokens up to it ([`prefix_salts`]), and tokens
//! are few, so that prompts meet all the time: a block found under a wrong prefix, written
//! while it is shared or lost too early shows as a wrong byte.

use std::collections::HashSet;

use proptest::prelude::*;
use tenslab::kv::{
    KvCache, KvDims, KvError, KvOptions, KvSpec, Layout, Namespace, Part, Pin, PrefixHash, Sequence,
};
use tenslab::{DType, Tensor, bf16, f16, memory};

use super::{Number, assert_holds, element, limits, prefix_salts, rows};

const SEQUENCES: usize = 5;
const WIDTH: usize = 6;

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
    /// So many of the tokens, if there are so many.
    CommitFirst(usize),
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
        prompt: Vec<u32>,
        salt: u128,
        reserve: usize,
        max_hit: Option<usize>,
    },
    /// What the prompt of the sequence has that was not found.
    Prefill {
        sequence: usize,
        piece: usize,
    },
    Append {
        sequence: usize,
        tokens: Vec<u32>,
        write: Write,
        end: End,
    },
    Fork {
        sequence: usize,
    },
    Truncate {
        sequence: usize,
        keep: usize,
    },
    Drop {
        sequence: usize,
    },
    Pin {
        prompt: Vec<u32>,
    },
    Unpin,
    Tensor {
        sequence: usize,
        block: usize,
    },
    DropTensors,
    Reset,
}

fn prompt(longest: usize) -> impl Strategy<Value = Vec<u32>> {
    // Mostly one token, so that beginnings meet.
    prop::collection::vec(
        prop_oneof![5 => Just(1_u32), 1 => Just(2), 1 => Just(3)],
        0..longest,
    )
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
        2 => (0..6_usize).prop_map(End::CommitFirst),
        2 => Just(End::RollBack),
        1 => Just(End::Missing),
        1 => Just(End::Forget),
    ];
    let any = 0..SEQUENCES;
    let max_hit = prop_oneof![3 => Just(None), 1 => (0..20_usize).prop_map(Some)];
    let acquire = (prompt(18), 0..2_u128, 0..4_usize, max_hit);
    prop_oneof![
        4 => acquire.prop_map(|(prompt, salt, reserve, max_hit)| Op::Acquire { prompt, salt, reserve, max_hit }),
        6 => (any.clone(), 1..12_usize).prop_map(|(sequence, piece)| Op::Prefill { sequence, piece }),
        5 => (any.clone(), prompt(8), write, end)
            .prop_map(|(sequence, tokens, write, end)| Op::Append { sequence, tokens, write, end }),
        2 => any.clone().prop_map(|sequence| Op::Fork { sequence }),
        2 => (any.clone(), 0..16_usize).prop_map(|(sequence, keep)| Op::Truncate { sequence, keep }),
        4 => any.clone().prop_map(|sequence| Op::Drop { sequence }),
        1 => prompt(12).prop_map(|prompt| Op::Pin { prompt }),
        1 => Just(Op::Unpin),
        1 => (any, 0..3_usize).prop_map(|(sequence, block)| Op::Tensor { sequence, block }),
        1 => Just(Op::DropTensors),
        1 => Just(Op::Reset),
    ]
}

/// A sequence and what the model knows of it.
struct Twin {
    real: Sequence,
    namespace: Namespace,
    prompt: Vec<u32>,
    /// Committed.
    tokens: Vec<u32>,
    /// Its last step was leaked, and is open for all that the cache knows.
    leaked: bool,
}

struct Lab {
    cache: KvCache,
    blocks: usize,
    twins: Vec<Twin>,
    pins: Vec<Pin>,
    tensors: Vec<(Tensor, Vec<u32>)>,
    /// Every beginning that was ever committed, by namespace: nothing else may be found.
    known: HashSet<(Namespace, Vec<u32>)>,
    /// Whole blocks of those, as long as nothing can have been evicted: all of them must be
    /// found.
    whole: HashSet<(Namespace, Vec<u32>)>,
}

impl Lab {
    fn new(spec: KvSpec, options: &KvOptions, blocks: usize) -> Self {
        let limits = limits(blocks, SEQUENCES, WIDTH);
        let cache = KvCache::with_options(spec, limits, options, memory::cpu()).unwrap();
        Self {
            cache,
            blocks,
            twins: Vec::new(),
            pins: Vec::new(),
            tensors: Vec::new(),
            known: HashSet::new(),
            whole: HashSet::new(),
        }
    }

    fn block_tokens(&self) -> usize {
        self.cache.spec().block_tokens()
    }

    fn acquire(&mut self, prompt: &[u32], salt: u128, reserve: usize, max_hit: Option<usize>) {
        let namespace = Namespace::default().with_salt(salt);
        let wanted = prompt.len() + reserve;
        let max = WIDTH * self.block_tokens();
        let admission = self.cache.admission(prompt, &namespace, reserve, max_hit);
        let got = self.cache.acquire(prompt, &namespace, reserve, max_hit);
        if wanted > max {
            let expected = KvError::SequenceTooLong {
                tokens: wanted,
                max,
            };
            assert_eq!(admission.unwrap_err(), expected);
            assert_eq!(got.unwrap_err(), expected);
            return;
        }
        let admission = admission.unwrap();
        if self.twins.len() == SEQUENCES {
            assert_eq!(got.unwrap_err(), KvError::OutOfSequences { max: SEQUENCES });
            return;
        }
        let total = self.blocks;
        if admission.need > admission.free + admission.evictable {
            let expected = KvError::OutOfBlocks {
                need: admission.need,
                free: admission.free,
                evictable: admission.evictable,
                total,
            };
            assert_eq!(got.unwrap_err(), expected);
            return;
        }
        let real = got.unwrap();
        let hit = real.hit_tokens();
        assert_eq!((hit, real.len()), (admission.hit_tokens, hit));
        let most = max_hit.unwrap_or(prompt.len().saturating_sub(1));
        assert!(hit <= most.min(prompt.len()), "{hit} of {most}");
        for len in 1..=hit {
            let beginning = (namespace, prompt[..len].to_vec());
            assert!(
                self.known.contains(&beginning),
                "{len} tokens were never there"
            );
        }
        if self.cache.options().prefix_caching() && self.cache.counters().evicted_for_space == 0 {
            let whole = |blocks: &usize| {
                let beginning = prompt[..blocks * self.block_tokens()].to_vec();
                self.whole.contains(&(namespace, beginning))
            };
            let most = most.min(prompt.len()) / self.block_tokens();
            let expected = (1..=most).take_while(whole).count();
            assert!(
                hit / self.block_tokens() >= expected,
                "{expected} whole blocks are there"
            );
        }
        self.twins.push(Twin {
            real,
            namespace,
            tokens: prompt[..hit].to_vec(),
            prompt: prompt.to_vec(),
            leaked: false,
        });
    }

    fn append<T: Number>(&mut self, index: usize, new: &[u32], write: Write, end: End) {
        let block_tokens = self.block_tokens();
        let Some(twin) = self.twins.get_mut(index) else {
            return;
        };
        let before = twin.tokens.len();
        let all = [&twin.tokens[..], new].concat();
        let salts = prefix_salts(&all);
        let stats = self.cache.stats();
        let blocks_before: Vec<_> = twin.real.block_ids().collect();
        let spec = *self.cache.spec();
        // A step that is dropped at once is rolled back, whatever it took.
        let refused = twin.real.append(new).err();
        if let Some(error) = refused {
            match error {
                KvError::EmptyStep => assert!(new.is_empty()),
                KvError::SequenceTooLong { tokens, max } => {
                    assert_eq!((tokens, max), (all.len(), WIDTH * block_tokens));
                    assert!(tokens > max);
                }
                KvError::OutOfBlocks {
                    need,
                    free,
                    evictable,
                    total,
                } => {
                    assert_eq!((free, evictable), (stats.blocks_free, stats.blocks_idle));
                    assert!(need > free + evictable && total == self.blocks);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(self.cache.stats(), stats);
            assert!(twin.real.block_ids().eq(blocks_before));
            return;
        }
        twin.leaked = matches!(end, End::Forget);
        let mut step = twin.real.append(new).unwrap();
        assert_eq!(step.committed().fork().unwrap_err(), KvError::StepOpen);
        assert_eq!(step.start(), before);
        // Layers are not written in order, and not all of them unless it is to be committed.
        let skip = new.len() % spec.layers();
        for layer in (0..spec.layers()).rev() {
            if matches!(end, End::RollBack | End::Missing) && layer == skip {
                continue;
            }
            write_layer::<T>(&mut step, &spec, &salts[before..], layer, write);
            assert_step_reads::<T>(&step, &spec, &salts, layer);
        }
        match end {
            End::Commit => {
                step.commit().unwrap();
                self.commit(index, &all);
            }
            End::CommitFirst(tokens) if tokens <= new.len() => {
                step.commit_first(tokens).unwrap();
                self.commit(index, &all[..before + tokens]);
            }
            End::CommitFirst(asked) => {
                let error = step.commit_first(asked).unwrap_err();
                let tokens = new.len();
                assert_eq!(error, KvError::NotThatLong { asked, tokens });
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
            End::Forget => std::mem::forget(step),
        }
    }

    fn commit(&mut self, index: usize, all: &[u32]) {
        let block_tokens = self.block_tokens();
        let twin = &mut self.twins[index];
        for len in 1..=all.len() {
            let beginning = (twin.namespace, all[..len].to_vec());
            if len % block_tokens == 0 {
                self.whole.insert(beginning.clone());
            }
            self.known.insert(beginning);
        }
        twin.tokens = all.to_vec();
    }

    fn tensor<T: Number>(&mut self, index: usize, block: usize) {
        let block_tokens = self.block_tokens();
        let Some(twin) = self.twins.get(index) else {
            return;
        };
        let end = (block + 1) * block_tokens;
        let layer = self.cache.spec().layers() - 1;
        match twin.real.keys_tensor(layer, block) {
            Ok(tensor) => (self.tensors).push((tensor, twin.tokens[..end].to_vec())),
            Err(_) => assert!(
                twin.tokens.len() < end || !self.cache.options().prefix_caching(),
                "block {block} is full"
            ),
        }
    }

    fn assert_tensors<T: Number>(&self) {
        let spec = self.cache.spec();
        for (tensor, tokens) in &self.tensors {
            let salts = prefix_salts(tokens);
            let salts = &salts[salts.len() - spec.block_tokens()..];
            let elements = tensor.read::<T>().unwrap();
            let hnd = spec.layout().is_hnd();
            for (slot, &salt) in salts.iter().enumerate() {
                for head in 0..spec.kv_heads() {
                    let row = match hnd {
                        true => head * spec.block_tokens() + slot,
                        false => slot * spec.kv_heads() + head,
                    };
                    for dim in 0..spec.key_dim() {
                        let found = elements[row * spec.key_dim() + dim];
                        let layer = spec.layers() - 1;
                        let expected = T::of(element(salt, layer, Part::Keys, head, dim));
                        assert_eq!(found.bits(), expected.bits());
                    }
                }
            }
        }
    }

    fn verify<T: Number>(&self) {
        self.cache.check().unwrap();
        let stats = self.cache.stats();
        assert_eq!(
            stats.blocks_used + stats.blocks_free + stats.blocks_idle,
            self.blocks
        );
        assert_eq!(stats.sequences, self.twins.len());
        let tokens: usize = self.twins.iter().map(|twin| twin.tokens.len()).sum();
        assert_eq!(stats.tokens, tokens);
        if !self.cache.options().prefix_caching() {
            assert_eq!((stats.blocks_idle, stats.blocks_registered), (0, 0));
        }
        if self.twins.is_empty() && self.pins.is_empty() && self.tensors.is_empty() {
            assert_eq!(stats.blocks_used, 0);
        }
        for twin in &self.twins {
            assert!(twin.real.block_ids().count() >= twin.real.block_count());
            assert_holds::<T>(&twin.real, &prefix_salts(&twin.tokens));
        }
        self.assert_tensors::<T>();
    }

    fn run<T: Number>(&mut self, op: &Op) {
        match op {
            Op::Acquire {
                prompt,
                salt,
                reserve,
                max_hit,
            } => self.acquire(prompt, *salt, *reserve, *max_hit),
            &Op::Prefill { sequence, piece } => {
                if let Some(twin) = self.twins.get(sequence) {
                    let rest = twin.prompt.get(twin.tokens.len()..).unwrap_or(&[]);
                    let rest = rest[..rest.len().min(piece)].to_vec();
                    self.append::<T>(sequence, &rest, Write::Native, End::Commit);
                }
            }
            Op::Append {
                sequence,
                tokens,
                write,
                end,
            } => self.append::<T>(*sequence, tokens, *write, *end),
            &Op::Fork { sequence } => {
                if let Some(twin) = self.twins.get(sequence) {
                    match twin.real.fork() {
                        Ok(real) => {
                            let fork = Twin {
                                real,
                                namespace: twin.namespace,
                                prompt: twin.prompt.clone(),
                                tokens: twin.tokens.clone(),
                                leaked: false,
                            };
                            assert!(!twin.leaked);
                            self.twins.push(fork);
                        }
                        Err(KvError::StepOpen) => assert!(twin.leaked),
                        Err(error) => {
                            assert_eq!(error, KvError::OutOfSequences { max: SEQUENCES });
                            assert_eq!(self.twins.len(), SEQUENCES);
                        }
                    }
                }
            }
            &Op::Truncate { sequence, keep } => {
                if let Some(twin) = self.twins.get_mut(sequence) {
                    let tokens = twin.tokens.len();
                    match twin.real.truncate(keep) {
                        Ok(()) => {
                            twin.tokens.truncate(keep);
                            twin.leaked = false;
                        }
                        Err(error) => {
                            assert!(keep > tokens);
                            let asked = keep;
                            assert_eq!(error, KvError::NotThatLong { asked, tokens });
                        }
                    }
                }
            }
            &Op::Drop { sequence } => {
                if sequence < self.twins.len() {
                    self.twins.swap_remove(sequence);
                }
            }
            Op::Pin { prompt } => {
                let namespace = Namespace::default();
                if let Some(pin) = self.cache.pin(prompt, &namespace) {
                    let beginning = (namespace, prompt[..pin.tokens()].to_vec());
                    assert!(self.whole.contains(&beginning));
                    self.pins.push(pin);
                }
            }
            Op::Unpin => drop(self.pins.pop()),
            &Op::Tensor { sequence, block } => self.tensor::<T>(sequence, block),
            Op::DropTensors => self.tensors.clear(),
            Op::Reset => {
                let stats = self.cache.stats();
                match self.cache.reset() {
                    Ok(forgotten) => {
                        assert_eq!((forgotten, stats.blocks_used), (stats.blocks_idle, 0));
                        self.known.clear();
                        self.whole.clear();
                    }
                    Err(error) => {
                        let blocks = stats.blocks_used;
                        assert_eq!(error, KvError::InUse { blocks });
                        assert!(blocks > 0);
                    }
                }
            }
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
                assert!(run.part == Part::Keys || spec.has_values());
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
    salts: &[u64],
    layer: usize,
) {
    for (position, &salt) in salts.iter().enumerate() {
        let (block, slot) = (
            position / spec.block_tokens(),
            position % spec.block_tokens(),
        );
        let keys = step.keys::<T>(layer, block).unwrap();
        let values = step.values::<T>(layer, block);
        assert_eq!(keys.tokens(), step.block_filled(block));
        assert_eq!(
            values.is_ok(),
            spec.has_values(),
            "values only where there are some"
        );
        for head in 0..spec.kv_heads() {
            let rows = [
                Some((Part::Keys, keys.row(head, slot).unwrap())),
                values
                    .ok()
                    .map(|values| (Part::Values, values.row(head, slot).unwrap())),
            ];
            for (part, row) in rows.into_iter().flatten() {
                for (dim, found) in row.iter().enumerate() {
                    let expected = T::of(element(salt, layer, part, head, dim));
                    assert_eq!(found.bits(), expected.bits());
                }
            }
        }
    }
}

fn run<T: Number>(spec: KvSpec, options: &KvOptions, blocks: usize, ops: &[Op]) {
    let mut lab = Lab::new(spec, options, blocks);
    for op in ops {
        lab.run::<T>(op);
        lab.verify::<T>();
    }
    // Sequences and tensors outlive the handle.
    let Lab { cache, twins, .. } = lab;
    drop(cache);
    for twin in &twins {
        assert_holds::<T>(&twin.real, &prefix_salts(&twin.tokens));
    }
}

/// How many cases: 512 of up to 60 operations, or as many as `TENSLAB_KV_CASES` says.
fn cases() -> u32 {
    let asked = std::env::var("TENSLAB_KV_CASES");
    asked.map_or(512, |cases| cases.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_is_the_model(
        kv_heads in 1..3_usize,
        key_dim in 1..4_usize,
        value_dim in 0..4_usize,
        block_tokens in 1..5_usize,
        layout in prop::sample::select(&Layout::ALL[..]),
        dtype in prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)],
        // So few that they are fought for, or so many that nothing is evicted for a while.
        blocks in prop_oneof![3 => 4..14_usize, 1 => Just(400)],
        caching in prop_oneof![5 => Just(true), 1 => Just(false)],
        partial in any::<bool>(),
        collide in prop_oneof![3 => Just(false), 1 => Just(true)],
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let dims = KvDims { layers: 2, kv_heads, key_dim, value_dim, block_tokens };
        let spec = KvSpec::new(dims, dtype).unwrap().with_layout(layout).unwrap();
        let hash = if collide { PrefixHash::custom(|_, _| 7) } else { PrefixHash::default() };
        let options = KvOptions::default()
            .with_prefix_caching(caching)
            .with_partial_hits(partial)
            .with_hash(hash);
        match dtype {
            DType::F32 => run::<f32>(spec, &options, blocks, &ops),
            DType::F16 => run::<f16>(spec, &options, blocks, &ops),
            _ => run::<bf16>(spec, &options, blocks, &ops),
        }
    }
}
