//! Random operations on several sequences, against a model that is nothing but lists of
//! tokens and a set of prefixes: after every one the rules, the errors and every byte must
//! hold.
//!
//! Keys and values of a token are made of all tokens up to it ([`prefix_salts`]), and tokens
//! are few, so that prompts meet all the time: a block found under a wrong prefix, written
//! while it is shared or lost too early shows as a wrong byte.
//!
//! `op`: the operations. `begin`: what a sequence finds and needs. `steps`: what a step takes,
//! copies, writes and leaves. `pressure`: memory that goes back, and the same under a budget.

mod begin;
mod op;
mod pressure;
mod steps;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tenslab::kv::{
    BlockFill, KvCache, KvDims, KvError, KvOptions, KvSpec, Layout, Namespace, Part, Pin,
    PrefixHash, Sequence,
};
use tenslab::memory::SharedAllocator;
use tenslab::{DType, Tensor, bf16, f16, memory};

use super::{Number, assert_holds, element, limits, prefix_salts};
use op::{End, Op, Write, op};
use pressure::Memory;

const SEQUENCES: usize = 5;
const WIDTH: usize = 8;

/// A sequence and what the model knows of it.
struct Twin {
    real: Sequence,
    namespace: Namespace,
    prompt: Vec<u32>,
    /// Committed.
    tokens: Vec<u32>,
    /// Its last step was leaked, and is open for all that the cache knows.
    leaked: bool,
    /// It was shortened, and nothing was appended since.
    cut: bool,
    /// Of the slots in its blocks those from here on were written by nobody since the blocks
    /// were taken.
    untouched_from: usize,
}

/// A tensor of a block's keys or values, and the tokens up to its last one.
struct Lent {
    tensor: Tensor,
    part: Part,
    tokens: Vec<u32>,
}

struct Lab {
    cache: KvCache,
    blocks: usize,
    twins: Vec<Twin>,
    pins: Vec<Pin>,
    tensors: Vec<Lent>,
    /// Every beginning that was ever committed, by namespace: nothing else may be found.
    known: HashSet<(Namespace, Vec<u32>)>,
    /// Whole blocks of those, as long as nothing can have been evicted: all of them must be
    /// found.
    whole: HashSet<(Namespace, Vec<u32>)>,
    /// Where the region is from, if that is a budget.
    memory: Option<Memory>,
    seen: Seen,
}

/// What must have happened for the model to have been worth it.
#[derive(Debug, Default)]
struct Seen {
    /// Steps that exchanged a shared block for a copy, wrote it and committed.
    copied_and_committed: u64,
    /// Reliefs that gave memory back.
    relieved: u64,
    /// Requests and steps that were refused the memory of blocks that were there.
    refused_memory: u64,
    /// Those that took blocks without memory and got it.
    warmed: u64,
}

impl Lab {
    fn new(spec: KvSpec, options: &KvOptions, blocks: usize, from: &SharedAllocator) -> Self {
        let limits = limits(blocks, SEQUENCES, WIDTH);
        let cache = KvCache::with_options(spec, limits, options, from).unwrap();
        Self {
            cache,
            blocks,
            twins: Vec::new(),
            pins: Vec::new(),
            tensors: Vec::new(),
            known: HashSet::new(),
            whole: HashSet::new(),
            memory: None,
            seen: Seen::default(),
        }
    }

    fn block_tokens(&self) -> usize {
        self.cache.spec().block_tokens()
    }

    /// Which sequence a number means, if there is one.
    fn pick(&self, sequence: usize) -> Option<usize> {
        sequence.checked_rem(self.twins.len())
    }

    fn prefill<T: Number>(&mut self, index: usize, piece: usize) -> bool {
        let twin = &self.twins[index];
        // Where it is complete, a token that might have been sampled.
        let rest = (twin.prompt.get(twin.tokens.len()..)).filter(|rest| !rest.is_empty());
        let rest = rest.unwrap_or(&[1]);
        let rest = rest[..rest.len().min(piece)].to_vec();
        self.append::<T>(index, &rest, Write::Native, End::Commit)
    }

    fn fork(&mut self, index: usize) -> bool {
        let twin = &self.twins[index];
        match twin.real.fork() {
            Ok(real) => {
                assert!(!twin.leaked);
                let filled = twin.real.block_count() * self.block_tokens();
                assert_eq!(real.hit_tokens(), twin.tokens.len());
                assert!(
                    real.block_ids()
                        .eq(twin.real.block_ids().take(twin.real.block_count()))
                );
                let fork = Twin {
                    real,
                    namespace: twin.namespace,
                    prompt: twin.prompt.clone(),
                    tokens: twin.tokens.clone(),
                    leaked: false,
                    cut: twin.cut,
                    untouched_from: twin.untouched_from.min(filled),
                };
                self.twins.push(fork);
                true
            }
            Err(KvError::StepOpen) => {
                assert!(twin.leaked);
                false
            }
            Err(error) => {
                assert_eq!(error, KvError::OutOfSequences { max: SEQUENCES });
                assert_eq!(self.twins.len(), SEQUENCES);
                false
            }
        }
    }

    fn truncate(&mut self, index: usize, keep: usize) -> bool {
        let block_tokens = self.block_tokens();
        let twin = &mut self.twins[index];
        let (tokens, held) = (twin.tokens.len(), twin.real.block_ids().count());
        let keep = keep % (tokens + 2);
        match twin.real.truncate(keep) {
            Ok(()) => {
                assert!(keep <= tokens);
                let holds = twin.real.block_ids().count();
                assert_eq!(holds, keep.div_ceil(block_tokens), "reserved ones go too");
                twin.tokens.truncate(keep);
                twin.leaked = false;
                twin.cut = true;
                twin.untouched_from = twin.untouched_from.min(holds * block_tokens);
                keep < tokens || holds < held
            }
            Err(error) => {
                assert!(keep > tokens);
                let asked = keep;
                assert_eq!(error, KvError::NotThatLong { asked, tokens });
                false
            }
        }
    }

    fn pin(&mut self, prompt: &[u32]) -> bool {
        let namespace = Namespace::default();
        let Some(pin) = self.cache.pin(prompt, &namespace) else {
            return false;
        };
        let beginning = (namespace, prompt[..pin.tokens()].to_vec());
        assert!(self.whole.contains(&beginning));
        self.pins.push(pin);
        true
    }

    fn tensor(&mut self, index: usize, part: Part, block: usize) -> bool {
        let (spec, block_tokens) = (*self.cache.spec(), self.block_tokens());
        let twin = &self.twins[index];
        let (full, end) = (twin.tokens.len() / block_tokens, (block + 1) * block_tokens);
        let layer = spec.layers() - 1;
        let got = match part {
            Part::Keys => twin.real.keys_tensor(layer, block),
            Part::Values => twin.real.values_tensor(layer, block),
        };
        let expected = if block >= full {
            Err(KvError::NoSuchBlock {
                block,
                blocks: full,
            })
        } else if !self.cache.options().prefix_caching() {
            Err(KvError::NotShared)
        } else if part == Part::Values && !spec.has_values() {
            Err(KvError::NoValues)
        } else {
            Ok(())
        };
        assert_eq!(got.as_ref().map(|_| ()), expected.as_ref().copied());
        let Ok(tensor) = got else {
            return false;
        };
        let tokens = twin.tokens[..end].to_vec();
        self.tensors.push(Lent {
            tensor,
            part,
            tokens,
        });
        true
    }

    fn reset(&mut self) -> bool {
        let stats = self.cache.stats();
        match self.cache.reset() {
            Ok(forgotten) => {
                assert_eq!((forgotten, stats.blocks_used), (stats.blocks_idle, 0));
                self.known.clear();
                self.whole.clear();
                forgotten > 0
            }
            Err(error) => {
                let blocks = stats.blocks_used;
                assert_eq!(error, KvError::InUse { blocks });
                assert!(blocks > 0);
                false
            }
        }
    }

    fn assert_tensors<T: Number>(&self) {
        let spec = self.cache.spec();
        let (hnd, block_tokens) = (spec.layout().is_hnd(), spec.block_tokens());
        for lent in &self.tensors {
            let salts = prefix_salts(&lent.tokens);
            let salts = &salts[salts.len() - block_tokens..];
            let elements = lent.tensor.read::<T>().unwrap();
            let dims = match lent.part {
                Part::Keys => spec.key_dim(),
                Part::Values => spec.value_dim(),
            };
            assert_eq!(elements.len(), block_tokens * spec.kv_heads() * dims);
            for (slot, &salt) in salts.iter().enumerate() {
                for head in 0..spec.kv_heads() {
                    let row = match hnd {
                        true => head * block_tokens + slot,
                        false => slot * spec.kv_heads() + head,
                    };
                    for dim in 0..dims {
                        let found = elements[row * dims + dim];
                        let layer = spec.layers() - 1;
                        let expected = T::of(element(salt, layer, lent.part, head, dim));
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
            assert_holds::<T>(&twin.real, &prefix_salts(&twin.tokens));
        }
        self.assert_tensors::<T>();
        self.verify_memory();
    }

    /// Did it do something, or was it refused? `None` if the cache was not asked.
    fn run<T: Number>(&mut self, op: &Op) -> Option<bool> {
        let done = match op {
            Op::Acquire(request) => self.acquire(request),
            Op::Pin { prompt } => self.pin(prompt),
            Op::Unpin => {
                drop(self.pins.pop()?);
                true
            }
            Op::DropTensors => {
                drop(self.tensors.pop()?);
                self.tensors.clear();
                true
            }
            Op::Reset => self.reset(),
            &Op::Relieve { blocks } => {
                let did = self.relieve(blocks);
                self.seen.relieved += u64::from(did && self.memory.is_some());
                did
            }
            &Op::Charge { blocks } => self.charge(blocks)?,
            Op::Uncharge => self.uncharge()?,
            &Op::Prefill { sequence, piece } => {
                let index = self.pick(sequence)?;
                self.prefill::<T>(index, piece)
            }
            &Op::Append {
                sequence,
                ref tokens,
                write,
                end,
            } => {
                let index = self.pick(sequence)?;
                self.append::<T>(index, tokens, write, end)
            }
            &Op::Fork { sequence } => {
                let index = self.pick(sequence)?;
                self.fork(index)
            }
            &Op::Truncate { sequence, keep } => {
                let index = self.pick(sequence)?;
                self.truncate(index, keep)
            }
            &Op::Drop { sequence } => {
                let index = self.pick(sequence)?;
                drop(self.twins.swap_remove(index));
                true
            }
            &Op::Tensor {
                sequence,
                part,
                block,
            } => {
                let index = self.pick(sequence)?;
                self.tensor(index, part, block)
            }
        };
        Some(done)
    }
}

/// What cases came to, all of them together.
#[derive(Debug)]
struct Tally {
    /// Operations that did something.
    done: AtomicU64,
    /// Of those, steps in which a copy on write was written and committed.
    copied_and_committed: AtomicU64,
    relieved: AtomicU64,
    refused_memory: AtomicU64,
    warmed: AtomicU64,
}

impl Tally {
    const fn new() -> Self {
        Self {
            done: AtomicU64::new(0),
            copied_and_committed: AtomicU64::new(0),
            relieved: AtomicU64::new(0),
            refused_memory: AtomicU64::new(0),
            warmed: AtomicU64::new(0),
        }
    }
}

fn run<T: Number>(mut lab: Lab, ops: &[Op], tally: &Tally) {
    let mut done = 0;
    for op in ops {
        if let Some(did) = lab.run::<T>(op) {
            done += u64::from(did);
            lab.verify::<T>();
        }
    }
    let Lab {
        cache,
        twins,
        pins,
        tensors,
        memory,
        seen,
        ..
    } = lab;
    // Relaxed: sums, which are read when all cases are over.
    for (sum, count) in [
        (&tally.done, done),
        (&tally.copied_and_committed, seen.copied_and_committed),
        (&tally.relieved, seen.relieved),
        (&tally.refused_memory, seen.refused_memory),
        (&tally.warmed, seen.warmed),
    ] {
        sum.fetch_add(count, Ordering::Relaxed);
    }
    // Sequences and tensors outlive the handle.
    drop(cache);
    for twin in &twins {
        assert_holds::<T>(&twin.real, &prefix_salts(&twin.tokens));
    }
    drop((twins, pins, tensors));
    if let Some(memory) = memory {
        memory.assert_no_region();
    }
}

/// How many cases: 512 of up to 100 operations, or as many as `TENSLAB_KV_CASES` says.
fn cases() -> u32 {
    let asked = std::env::var("TENSLAB_KV_CASES");
    asked.map_or(512, |cases| cases.parse().unwrap())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn options() -> impl Strategy<Value = KvOptions> {
    let caching = prop_oneof![5 => Just(true), 1 => Just(false)];
    let collide = prop_oneof![3 => Just(false), 1 => Just(true)];
    let fill = prop_oneof![
        2 => Just(BlockFill::Leave),
        1 => Just(BlockFill::Zero),
        1 => Just(BlockFill::Poison),
    ];
    (caching, any::<bool>(), collide, fill).prop_map(|(caching, partial, collide, fill)| {
        let hash = match collide {
            true => PrefixHash::custom(|_, _| 7),
            false => PrefixHash::default(),
        };
        KvOptions::default()
            .with_prefix_caching(caching)
            .with_partial_hits(partial)
            .with_hash(hash)
            .with_fill(fill)
    })
}

#[test]
fn the_cache_is_the_model() {
    static TALLY: Tally = Tally::new();
    let cases = cases();
    proptest!(config(cases), |(
        kv_heads in 1..3_usize,
        key_dim in 1..4_usize,
        value_dim in 0..4_usize,
        block_tokens in 1..5_usize,
        layout in prop::sample::select(&Layout::ALL[..]),
        dtype in prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::BF16)],
        // So few that they are fought for, or so many that nothing is evicted for a while.
        blocks in prop_oneof![3 => 4..14_usize, 1 => Just(60)],
        options in options(),
        ops in prop::collection::vec(op(), 1..100),
    )| {
        let dims = KvDims { layers: 2, kv_heads, key_dim, value_dim, block_tokens };
        let spec = KvSpec::new(dims, dtype).unwrap().with_layout(layout).unwrap();
        let lab = Lab::new(spec, &options, blocks, memory::cpu());
        match dtype {
            DType::F32 => run::<f32>(lab, &ops, &TALLY),
            DType::F16 => run::<f16>(lab, &ops, &TALLY),
            _ => run::<bf16>(lab, &ops, &TALLY),
        }
    });
    println!("{cases} cases: {TALLY:?}");
    let copied = TALLY.copied_and_committed.load(Ordering::Relaxed);
    assert!(copied >= u64::from(cases / 10), "{TALLY:?}");
    // What CI's lane claims. Those that were refused or had nothing to do are not counted.
    let done = TALLY.done.load(Ordering::Relaxed);
    assert!(cases < 35_000 || done >= 1_000_000, "{done} operations");
}
