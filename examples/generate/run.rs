//! One run: each prompt in chunks, then its texts, a token at a time.
//!
//! ```text
//!   prompt  | there already | chunk --> forward | chunk --> forward --> logits
//!             hit_tokens: an earlier prompt began                         |  --n texts
//!             with them, so they are not computed                         |  from a fork each
//!                                                                         v
//!                                                     forward <--- token id   choose, print
//!                                                        |
//!                                                     logits    heap blocks are counted from
//!                                                               token id to logits
//! ```
//!
//! What the cache lends is what was computed, bit for bit. So a text is the one that its prompt
//! and its seed give in a run of their own.

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tenslab::kv::{KvCache, Namespace, Sequence};
use tenslab::{StepArena, Tensor};

use crate::args::Args;
use crate::counting;
use crate::kernels::{Kernels, Number};
use crate::model::{Model, Room};
use crate::sampler::{Sampler, highest};
use crate::text::{Transcript, Vocabulary};
use crate::threads::Team;
use crate::trouble::Trouble;

/// Set by Ctrl-C. Relaxed: it says nothing but itself.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Steps that may still make heap blocks: the first one fills what is kept for the next.
const WARM_UP_STEPS: usize = 1;

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
    /// Where what dies with a forward pass comes from.
    pub(crate) arena: &'a StepArena,
    /// The same for the pass itself, and where the logits come from.
    pub(crate) room: &'a Room,
    /// Tokens and text.
    pub(crate) vocabulary: &'a Vocabulary,
    /// The prompts: at least one token each, all of them below the vocabulary.
    pub(crate) prompts: &'a [Vec<u32>],
    /// Tokens that the cache has room for in one text, its prompt included.
    pub(crate) context: usize,
}

/// One text, and what it came from.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Text {
    /// Ids of its prompt, with those of --system.
    pub(crate) prompt_ids: Vec<u32>,
    /// Of those, the first ones that were in the cache and were not computed for this text.
    pub(crate) hit_tokens: usize,
    /// Where its draws began.
    pub(crate) seed: u64,
    /// The text.
    #[serde(flatten)]
    pub(crate) made: Made,
}

/// What was chosen behind a prompt.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Made {
    /// Ids that were chosen.
    pub(crate) tokens: Vec<u32>,
    /// Their text.
    pub(crate) text: String,
    /// Why it ended.
    pub(crate) stop: Stop,
    /// Of each token: the five highest logits it was chosen from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) top5: Vec<(Vec<u32>, Vec<f32>)>,
}

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Prompt by prompt. Not all of them where the last one was broken off.
    pub(crate) texts: Vec<Text>,
    /// Over all prompts.
    pub(crate) prompt_time: Duration,
    /// Over all texts, from the first chosen token to the last.
    pub(crate) decode_time: Duration,
    /// Forward passes of one token in that time.
    pub(crate) decode_steps: usize,
    /// Heap blocks of the process from token id to logits, in the steps after the warm-up.
    pub(crate) heap_blocks: u64,
    /// Those steps.
    pub(crate) heap_steps: usize,
    /// Blocks that were copied because only their beginning is shared.
    pub(crate) copied_blocks: u64,
    /// Bytes of the blocks that hold keys and values, at the end of the text with the most.
    pub(crate) kv_used_bytes: usize,
    /// The most that a forward pass took of the arena.
    pub(crate) step_bytes: usize,
}

impl Outcome {
    /// Why the run ended.
    pub(crate) fn stop(&self) -> Stop {
        self.texts
            .last()
            .map_or(Stop::Length, |text| text.made.stop)
    }
}

impl Run<'_> {
    /// Runs it, on a thread of the team.
    ///
    /// # Errors
    ///
    /// Whatever the layers below say, and a text that cannot be written.
    pub(crate) fn go<K: Number>(&self) -> Result<Outcome, Trouble> {
        let mut outcome = Outcome::default();
        'run: for prompt in self.prompts {
            let mut sequence = (self.cache).acquire(prompt, &Namespace::default(), 0, None)?;
            let mut hit_tokens = sequence.hit_tokens();
            self.announce(outcome.texts.len(), hit_tokens, prompt.len());
            let mut logits = self.prefill::<K>(prompt, &mut sequence, &mut outcome)?;
            for (text, nth) in (1..=self.args.n).zip(0..) {
                let seed = self.args.seed.wrapping_add(nth);
                if text > 1 {
                    hit_tokens = prompt.len();
                    self.announce(outcome.texts.len(), hit_tokens, prompt.len());
                }
                let made = if text < self.args.n {
                    let mut fork = sequence.fork()?;
                    self.decode::<K>(&mut fork, logits.clone(), seed, &mut outcome)?
                } else {
                    // Nobody else needs the prompt's own.
                    self.decode::<K>(&mut sequence, logits.take(), seed, &mut outcome)?
                };
                outcome.texts.push(Text {
                    prompt_ids: prompt.clone(),
                    hit_tokens,
                    seed,
                    made,
                });
                if matches!(outcome.stop(), Stop::Interrupted | Stop::Closed) {
                    break 'run;
                }
            }
        }
        outcome.copied_blocks = self.cache.counters().copied_blocks;
        Ok(outcome)
    }

    /// Computes what is not there of a prompt: all of it, or what stands behind the tokens that
    /// an earlier one began with too. Returns the logits behind it; none if it was interrupted.
    fn prefill<K: Number>(
        &self,
        prompt: &[u32],
        sequence: &mut Sequence,
        outcome: &mut Outcome,
    ) -> Result<Option<Tensor>, Trouble> {
        let started = Instant::now();
        let mut logits = None;
        for chunk in prompt[sequence.hit_tokens()..].chunks(self.args.chunk) {
            drop(logits.take());
            logits = Some(self.forward::<K>(sequence, chunk, outcome)?);
            if INTERRUPTED.load(Ordering::Relaxed) {
                logits = None;
                break;
            }
        }
        outcome.prompt_time += started.elapsed();
        Ok(logits)
    }

    /// Makes one text behind a prompt, whose logits are these; none if it was interrupted.
    fn decode<K: Number>(
        &self,
        sequence: &mut Sequence,
        mut logits: Option<Tensor>,
        seed: u64,
        outcome: &mut Outcome,
    ) -> Result<Made, Trouble> {
        let prompt = sequence.len();
        let mut sampler = Sampler::new(self.args.temperature, self.args.top_p, seed);
        let mut transcript = Transcript::new(self.vocabulary);
        let started = Instant::now();
        let (mut top5, mut stop) = (Vec::new(), None);
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
            stop = self.print(piece)?;
            let made = transcript.tokens();
            if !self.args.ignore_eos && self.model.config().ends.contains(&chosen) {
                break Stop::Eos;
            } else if INTERRUPTED.load(Ordering::Relaxed) {
                break Stop::Interrupted;
            } else if made == self.args.max_tokens {
                break Stop::Length;
            } else if prompt + made > self.context {
                break Stop::Context;
            }

            let fed = forced.get(made - 1).copied().unwrap_or(chosen);
            let before = counting::blocks();
            counting::plant(self.args.plant_allocations);
            logits = Some(self.forward::<K>(sequence, &[fed], outcome)?);
            let blocks = counting::blocks() - before;
            outcome.decode_steps += 1;
            if outcome.decode_steps > WARM_UP_STEPS {
                outcome.heap_blocks += blocks;
                outcome.heap_steps += 1;
            }
        };
        outcome.decode_time += started.elapsed();
        let piece = transcript.finish()?;
        self.print(piece)?;
        self.print("\n")?;
        let used_bytes = self.cache.stats().used_bytes;
        outcome.kv_used_bytes = outcome.kv_used_bytes.max(used_bytes);
        let (text, tokens) = transcript.into_parts();
        Ok(Made {
            tokens,
            text,
            stop,
            top5,
        })
    }

    /// A forward pass, and the end of the arena's step: nothing of it may be out.
    fn forward<K: Number>(
        &self,
        sequence: &mut Sequence,
        tokens: &[u32],
        outcome: &mut Outcome,
    ) -> Result<Tensor, Trouble> {
        let (kernels, team) = (self.kernels, self.team);
        let logits = (self.model).forward::<K>(kernels, team, sequence, tokens, self.room)?;
        let step = self.arena.end_step()?;
        outcome.step_bytes = outcome.step_bytes.max(step.peak_bytes);
        Ok(logits)
    }

    /// Says which of several texts follows, and what of its prompt was there.
    fn announce(&self, before: usize, hit_tokens: usize, tokens: usize) {
        let (n, prompts) = (self.args.n, self.prompts.len());
        if self.args.json || prompts.saturating_mul(n) == 1 {
            return;
        }
        let (prompt, text) = (before / n + 1, before % n + 1);
        // Nothing can be done about a closed standard error.
        let _ = writeln!(
            io::stderr(),
            "--- prompt {prompt} of {prompts}, text {text} of {n}: {hit_tokens} of {tokens} prompt tokens were in the cache"
        );
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
