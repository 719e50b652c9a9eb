//! One run: the prompt in chunks, then a token at a time.
//!
//! ```text
//!   prompt  --chunk--> forward --chunk--> forward --> logits
//!                                                       |  choose, print
//!                                        forward <--- token id
//!                                           |
//!                                        logits     heap blocks are counted from
//!                                                   token id to logits
//! ```

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenslab::kv::{KvCache, Namespace};
use tenslab::{SharedAllocator, Tensor};

use crate::args::Args;
use crate::counting;
use crate::kernels::{Kernels, Number};
use crate::model::Model;
use crate::sampler::{Sampler, highest};
use crate::text::{Transcript, Vocabulary};
use crate::threads::Team;
use crate::trouble::Trouble;

/// Set by Ctrl-C. Relaxed: it says nothing but itself.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Steps that may still make heap blocks: the first one fills what is kept for the next.
const WARM_UP_STEPS: usize = 1;

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stop {
    /// All tokens that were asked for.
    Length,
    /// An end-of-sequence token.
    Eos,
    /// The KV cache is full.
    Context,
    /// Ctrl-C.
    Interrupted,
    /// Nobody reads the text any more.
    Closed,
}

/// What a run needs.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    /// The command line, checked.
    pub(crate) args: &'a Args,
    /// The model.
    pub(crate) model: &'a Model,
    /// The path of its arithmetic.
    pub(crate) kernels: Kernels,
    /// The threads.
    pub(crate) team: &'a Team,
    /// The cache of keys and values, of `K`.
    pub(crate) cache: &'a KvCache,
    /// Where activations come from.
    pub(crate) room: &'a SharedAllocator,
    /// Tokens and text.
    pub(crate) vocabulary: &'a Vocabulary,
    /// The prompt: at least one token, all of them below the vocabulary.
    pub(crate) prompt: &'a [u32],
    /// Tokens that the cache has room for.
    pub(crate) context: usize,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) stop: Stop,
    /// Of each token: the five highest logits it was chosen from.
    pub(crate) top5: Vec<(Vec<u32>, Vec<f32>)>,
    pub(crate) prompt_time: Duration,
    /// From the first chosen token to the last.
    pub(crate) decode_time: Duration,
    /// Forward passes of one token in that time.
    pub(crate) decode_steps: usize,
    /// Heap blocks of the process from token id to logits, in the steps after the warm-up.
    pub(crate) heap_blocks: u64,
    /// Those steps.
    pub(crate) heap_steps: usize,
    /// Bytes of the blocks that hold keys and values, at the end.
    pub(crate) kv_used_bytes: usize,
}

impl Run<'_> {
    /// Runs it, on a thread of the team.
    ///
    /// # Errors
    ///
    /// Whatever the layers below say, and a text that cannot be written.
    pub(crate) fn go<K: Number>(&self) -> Result<Outcome, Trouble> {
        let mut sequence = self
            .cache
            .acquire(self.prompt, &Namespace::default(), 0, None)?;
        let mut sampler = Sampler::new(self.args.temperature, self.args.top_p, self.args.seed);
        let mut transcript = Transcript::new(self.vocabulary);
        let mut forward = |tokens: &[u32]| {
            self.model
                .forward::<K>(self.kernels, self.team, &mut sequence, tokens, self.room)
        };

        let started = Instant::now();
        let mut stop = None;
        let mut logits: Option<Tensor> = None;
        for chunk in self.prompt.chunks(self.args.chunk) {
            drop(logits.take());
            logits = Some(forward(chunk)?);
            if INTERRUPTED.load(Ordering::Relaxed) {
                stop = Some(Stop::Interrupted);
                break;
            }
        }
        let prompt_time = started.elapsed();

        let started = Instant::now();
        let mut top5 = Vec::new();
        let (mut decode_steps, mut heap_steps, mut heap_blocks) = (0, 0, 0);
        let forced = self.args.force_ids.as_deref().unwrap_or_default();
        let stop = loop {
            let Some(ready) = logits.take().filter(|_| stop.is_none()) else {
                break stop.unwrap_or(Stop::Interrupted);
            };
            let chosen = {
                let logits = ready.read::<f32>()?;
                if self.args.logits {
                    top5.push(highest(&logits, 5));
                }
                sampler.next(&logits)?
            };
            drop(ready);
            let piece = transcript.push(chosen)?;
            stop = self.print(piece)?.or(stop);
            let made = transcript.tokens();
            if !self.args.ignore_eos && self.model.config().ends.contains(&chosen) {
                break Stop::Eos;
            } else if INTERRUPTED.load(Ordering::Relaxed) {
                break Stop::Interrupted;
            } else if made == self.args.max_tokens {
                break Stop::Length;
            } else if self.prompt.len() + made > self.context {
                break Stop::Context;
            }

            let fed = forced.get(made - 1).copied().unwrap_or(chosen);
            let before = counting::blocks();
            counting::plant(self.args.plant_allocations);
            logits = Some(forward(&[fed])?);
            let blocks = counting::blocks() - before;
            decode_steps += 1;
            if decode_steps > WARM_UP_STEPS {
                heap_blocks += blocks;
                heap_steps += 1;
            }
        };
        let decode_time = started.elapsed();
        let piece = transcript.finish()?;
        self.print(piece)?;
        self.print("\n")?;
        let (text, tokens) = transcript.into_parts();
        let kv_used_bytes = self.cache.stats().used_bytes;
        Ok(Outcome {
            tokens,
            text,
            stop,
            top5,
            prompt_time,
            decode_time,
            decode_steps,
            heap_blocks,
            heap_steps,
            kv_used_bytes,
        })
    }

    /// Prints a piece of text. `Some` when nobody reads it any more.
    fn print(&self, piece: &str) -> Result<Option<Stop>, Trouble> {
        if self.args.json || piece.is_empty() {
            return Ok(None);
        }
        if write_out(piece)? {
            Ok(None)
        } else {
            Ok(Some(Stop::Closed))
        }
    }
}

/// Writes to standard output. `false` when it was closed, which is the reader's right.
///
/// # Errors
///
/// Any other failure: a full disk, say.
pub(crate) fn write_out(text: &str) -> Result<bool, Trouble> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Trouble::new(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}
