//! A small Llama that runs on tenslab: checkpoint file to tokens.
//!
//! ```text
//!   cargo run --release --example generate
//!   cargo run --release --example generate -- --model DIR --prompt "The capital of France is"
//!   cargo run --release --example generate -- --system "You are a poet. " \
//!       --prompt "The sea" --prompt "The wind" --temperature 0.8 --n 2
//!
//!   safetensors --> slab of weights ------> frozen tensors --+      or the mapped files, or sealed memory
//!   prompt --> token ids ------------------> forward pass <--+--> logits --> token --> text
//!                                              |     ^
//!                                keys, values  v     |  read where they lie
//!                                         blocks of the KV cache
//! ```
//!
//! What is tenslab's and what is not: the weights, the cache and the activations
//! are; the arithmetic ([`kernels`]), the threads, the tokenizer and the sampling are
//! this example's, kept small. One decode step makes no heap block in the whole
//! process; [`counting`] counts them, the report says how many, and
//! `--plant-allocations` shows that the count is real.
//!
//! Start reading at [`run`], then [`model`], then [`attention`].

#![allow(
    clippy::disallowed_types,
    reason = "the library's door to std::sync is not for what stands outside it"
)]

mod args;
mod attention;
mod config;
mod counting;
mod embedded;
mod kernels;
mod model;
mod report;
mod run;
mod sampler;
mod text;
mod threads;
mod trouble;
mod view;
mod weights;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tempfile::TempDir;
use tenslab::kv::{KvCache, KvDims, KvLimits, KvSpec};
use tenslab::memory::{self, Allocator};
use tenslab::{DType, SharedAllocator, SlabAllocator, StepArena, bf16, f16};

use crate::args::Args;
use crate::attention::BLOCK_TOKENS;
use crate::config::Config;
use crate::kernels::Kernels;
use crate::model::{Model, Room};
use crate::report::{Holdings, Report};
use crate::run::{INTERRUPTED, Run, Stop, write_out};
use crate::text::Vocabulary;
use crate::threads::Team;
use crate::trouble::Trouble;

/// The exit code of what went wrong.
const WRONG: u8 = 2;

/// The exit code of what was interrupted, as shells have it.
const BROKEN_OFF: u8 = 130;

fn main() -> ExitCode {
    let args = match Args::read() {
        Ok(args) => args,
        Err(code) => return ExitCode::from(code),
    };
    match start(&args) {
        Ok(Stop::Interrupted) => ExitCode::from(BROKEN_OFF),
        Ok(_) => ExitCode::SUCCESS,
        Err(trouble) => {
            // Nothing can be done about a closed standard error.
            let _ = writeln!(io::stderr(), "error: {trouble}");
            ExitCode::from(WRONG)
        }
    }
}

/// Brings up what a run needs, each part over the one before, and reports on it.
fn start(args: &Args) -> Result<Stop, Trouble> {
    args.check()?;
    // After the current token. A handler that cannot be set leaves the system's: Ctrl-C ends at once.
    let _ = ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed));

    let embedded = if args.model.is_none() {
        Some(embedded::write()?)
    } else {
        None
    };
    let directory = args
        .model
        .as_deref()
        .or(embedded.as_ref().map(TempDir::path))
        .unwrap_or(Path::new("."));
    let vocabulary = if embedded.is_some() {
        Vocabulary::Bytes
    } else {
        Vocabulary::read(directory)?
    };
    let config = Config::read(directory)?;
    let prompts = prompts(args, &vocabulary, &config)?;
    let context = context(args, &config, &prompts)?;

    let weights = weights::bring(directory, args)?;
    let model = Model::new(config, &weights)?;
    let loaded = weights.report();
    let weights_bytes = loaded.slab_bytes as u64 + loaded.mapped_bytes;
    let weights_in = weights::holder(loaded.mode);
    let name = match &args.model {
        Some(model) => model.display().to_string(),
        None => "embedded model (seeded weights: its text is noise)".into(),
    };
    // Loaded is loaded: the files, and what their headers took, can go.
    drop(weights);
    drop(embedded);

    let team = Team::new(args.threads())?;
    let cache = cache(args, model.config(), context)?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
    // The largest step is known, so its room is one chunk from the beginning, and stays.
    let step_bytes = model.step_bytes(args.chunk.min(longest))?;
    let arena = Arc::new(StepArena::new().with_room(step_bytes));
    // Logits outlive their step. Two where a prompt's wait for the next text.
    let logits = SlabAllocator::new(model.logits_bytes(), 1 + u32::from(args.n > 1))?;
    let room = Room::new(
        &SharedAllocator::new(Arc::clone(&arena)),
        &SharedAllocator::new(logits),
    );
    let kernels = Kernels::best();

    let run = Run {
        args,
        model: &model,
        kernels,
        team: &team,
        cache: &cache,
        arena: &arena,
        room: &room,
        vocabulary: &vocabulary,
        prompts: &prompts,
        context,
    };
    let outcome = team.run(|| match args.kv_dtype {
        DType::F16 => run.go::<f16>(),
        DType::BF16 => run.go::<bf16>(),
        _ => run.go::<f32>(),
    })?;
    let stop = outcome.stop();
    let holdings = Holdings {
        model: name,
        weights_bytes,
        weights_in,
        dtype: model.dtype().name(),
        kv_reserved_bytes: cache.stats().reserved_bytes,
        kv_dtype: args.kv_dtype.name(),
        scratch_retained_bytes: arena.stats().reserved_bytes,
        threads: team.threads(),
        kernels: kernels.name(),
    };
    let report = Report::new(holdings, outcome);
    if args.json {
        let text = serde_json::to_string(&report)
            .map_err(|error| Trouble::new(format!("the report is no JSON: {error}")))?;
        write_out(&(text + "\n"))?;
    } else {
        let _ = write!(io::stderr(), "{report}");
    }
    Ok(stop)
}

/// The prompts' token ids: at least one each, all of them in the vocabulary.
fn prompts(
    args: &Args,
    vocabulary: &Vocabulary,
    config: &Config,
) -> Result<Vec<Vec<u32>>, Trouble> {
    let prompts: Vec<Vec<u32>> = match &args.prompt_ids {
        Some(prompts) => prompts.iter().map(|ids| ids.0.clone()).collect(),
        None => {
            // One text, then tokens: as if the prompt had been given so.
            let system = args.system.as_deref().unwrap_or_default();
            let texts = args.prompt.iter().map(|prompt| format!("{system}{prompt}"));
            texts
                .map(|text| vocabulary.encode(&text))
                .collect::<Result<_, _>>()?
        }
    };
    if let Some(at) = prompts.iter().position(Vec::is_empty) {
        return Err(Trouble::new(format!(
            "{} is empty; give at least one token with --prompt or --prompt-ids",
            name_of(at, &prompts)
        )));
    }
    let forced = args.force_ids.iter().flatten();
    if let Some(id) = prompts
        .iter()
        .flatten()
        .chain(forced)
        .find(|id| **id as usize >= config.vocab)
    {
        let vocab = config.vocab;
        return Err(Trouble::new(format!(
            "token id {id} is not in the vocabulary; this model's ids are 0 to {}",
            vocab - 1
        )));
    }
    Ok(prompts)
}

/// What to call a prompt.
fn name_of(at: usize, prompts: &[Vec<u32>]) -> String {
    match prompts.len() {
        1 => "the prompt".into(),
        count => format!("prompt {} of {count}", at + 1),
    }
}

/// How many tokens a text has room for in the cache.
fn context(args: &Args, config: &Config, prompts: &[Vec<u32>]) -> Result<usize, Trouble> {
    let most = config.max_context;
    let context = args.context.unwrap_or(most);
    if context > most {
        return Err(Trouble::new(format!(
            "--context {context} is more than the {most} tokens this model was made for"
        )));
    }
    if let Some(at) = prompts.iter().position(|prompt| prompt.len() > context) {
        let (name, tokens) = (name_of(at, prompts), prompts[at].len());
        return Err(Trouble::new(format!(
            "{name} has {tokens} tokens, the KV cache has room for {context}; shorten it, or give --context (at most {most})"
        )));
    }
    Ok(context)
}

/// A cache for the run: texts are made one after the other, so it has room for one sequence of
/// `context` tokens. With --n there are two, the prompt that waits and its fork. They share
/// all blocks that the prompt filled, so the second needs one block more: its own copy of the
/// prompt's partly filled last one. Pages come as they are written.
///
/// What earlier prompts left stays in the blocks that nobody needs, for those that begin alike.
fn cache(args: &Args, config: &Config, context: usize) -> Result<KvCache, Trouble> {
    let dims = KvDims {
        layers: config.layers,
        kv_heads: config.kv_heads,
        key_dim: config.head_dim,
        value_dim: config.head_dim,
        block_tokens: BLOCK_TOKENS,
    };
    let blocks = context.div_ceil(BLOCK_TOKENS);
    let forks = usize::from(args.n > 1);
    let limits = KvLimits {
        blocks: blocks + forks,
        max_sequences: 1 + forks,
        max_blocks_per_sequence: blocks,
    };
    let spec = KvSpec::new(dims, args.kv_dtype)?;
    KvCache::new(spec, limits, memory::cpu()).map_err(|error| {
        Trouble::new(format!(
            "no KV cache of {context} tokens: {error}; a smaller --context or --kv-dtype may fit"
        ))
    })
}
