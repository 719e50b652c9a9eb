//! Who holds what, at the end of a run: for people, or as one JSON object.

use std::fmt::{self, Display};

use serde::Serialize;
use serde_json::Value;

use crate::attention::BLOCK_TOKENS;
use crate::run::{Made, Outcome, Stop, Text};

/// The numbers of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Where the model came from.
    pub(crate) model: String,
    /// Ids of the first text's prompt.
    pub(crate) prompt_ids: Option<Vec<u32>>,
    /// The first text: all there is, most of the time.
    #[serde(flatten)]
    pub(crate) first: Option<Made>,
    /// All texts, the first one too.
    pub(crate) texts: Vec<Text>,
    /// Why the last one ended.
    #[serde(skip)]
    ended: Stop,
    /// What the texts share.
    pub(crate) sharing: Sharing,
    /// Decoded tokens in a second; none if only the prompt was computed.
    pub(crate) tokens_per_s: Option<f64>,
    /// Prompt tokens that were computed, in a second.
    pub(crate) prompt_tokens_per_s: f64,
    /// What holds the weights: the slab, the data of the mapped files, or the sealed memory.
    pub(crate) weights_bytes: u64,
    /// Which of the three.
    pub(crate) weights_in: &'static str,
    /// Number format of the weights.
    pub(crate) dtype: &'static str,
    /// Blocks that hold keys and values of the text that needs the most.
    pub(crate) kv_used_bytes: usize,
    /// All blocks.
    pub(crate) kv_reserved_bytes: usize,
    /// Number format of the keys and values.
    pub(crate) kv_dtype: &'static str,
    /// The most that the activations and the scratch of a step have taken.
    pub(crate) scratch_bytes: usize,
    /// What the arena that they come from holds at the end.
    pub(crate) scratch_retained_bytes: usize,
    /// The process's high-water mark; none where the system does not tell.
    pub(crate) peak_rss_bytes: Option<usize>,
    /// Heap blocks of the process from token id to logits; none if there was no
    /// step after the warm-up.
    pub(crate) heap_blocks_per_token: Option<Value>,
    /// Threads that computed.
    pub(crate) threads: usize,
    /// The path of the arithmetic.
    pub(crate) kernels: &'static str,
}

/// What texts had from others, over the whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Sharing {
    /// Tokens of the prompts, counted for each text.
    pub(crate) prompt_tokens: usize,
    /// Of those, tokens that were there already: the others were computed.
    pub(crate) hit_tokens: usize,
    /// Whole blocks that held such tokens.
    pub(crate) shared_blocks: usize,
    /// Blocks that were copied, because a text shares their beginning only.
    pub(crate) copied_blocks: u64,
}

impl Sharing {
    fn of(texts: &[Text], copied_blocks: u64) -> Self {
        let sum = |part: fn(&Text) -> usize| texts.iter().map(part).sum();
        Self {
            prompt_tokens: sum(|text| text.prompt_ids.len()),
            hit_tokens: sum(|text| text.hit_tokens),
            shared_blocks: sum(|text| text.hit_tokens / BLOCK_TOKENS),
            copied_blocks,
        }
    }

    fn computed_tokens(&self) -> usize {
        self.prompt_tokens - self.hit_tokens
    }
}

/// What a report knows besides the outcome.
#[derive(Debug)]
pub(crate) struct Holdings {
    pub(crate) model: String,
    pub(crate) weights_bytes: u64,
    pub(crate) weights_in: &'static str,
    pub(crate) dtype: &'static str,
    pub(crate) kv_reserved_bytes: usize,
    pub(crate) kv_dtype: &'static str,
    pub(crate) scratch_retained_bytes: usize,
    pub(crate) threads: usize,
    pub(crate) kernels: &'static str,
}

impl Report {
    /// Puts both together, and asks the system for the high-water mark.
    pub(crate) fn new(holdings: Holdings, outcome: Outcome) -> Self {
        let per_second =
            |count: usize, time: std::time::Duration| count as f64 / time.as_secs_f64().max(1e-9);
        let first = outcome.texts.first();
        let first = first.map(|text| (text.prompt_ids.clone(), text.made.clone()));
        let (prompt_ids, first) = first.unzip();
        let sharing = Sharing::of(&outcome.texts, outcome.copied_blocks);
        Self {
            tokens_per_s: (outcome.decode_steps > 0)
                .then(|| per_second(outcome.decode_steps, outcome.decode_time)),
            prompt_tokens_per_s: per_second(sharing.computed_tokens(), outcome.prompt_time),
            heap_blocks_per_token: per_token(outcome.heap_blocks, outcome.heap_steps),
            peak_rss_bytes: peak_rss_bytes(),
            model: holdings.model,
            prompt_ids,
            first,
            sharing,
            ended: outcome.stop(),
            texts: outcome.texts,
            weights_bytes: holdings.weights_bytes,
            weights_in: holdings.weights_in,
            dtype: holdings.dtype,
            kv_used_bytes: outcome.kv_used_bytes,
            kv_reserved_bytes: holdings.kv_reserved_bytes,
            kv_dtype: holdings.kv_dtype,
            scratch_bytes: outcome.step_bytes,
            scratch_retained_bytes: holdings.scratch_retained_bytes,
            threads: holdings.threads,
            kernels: holdings.kernels,
        }
    }
}

/// A whole number where it is one.
fn per_token(blocks: u64, steps: usize) -> Option<Value> {
    let steps = u64::try_from(steps).ok().filter(|steps| *steps > 0)?;
    Some(if blocks.is_multiple_of(steps) {
        Value::from(blocks / steps)
    } else {
        Value::from(blocks as f64 / steps as f64)
    })
}

/// The most memory that the process has had resident.
fn peak_rss_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes in MiB.
struct Mib(u64);

impl Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.2} MiB", self.0 as f64 / 1_048_576.0)
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.ended {
            Stop::Length => "all tokens that were asked for",
            Stop::Eos => "the model ended the text",
            Stop::Context => "the KV cache is full; --context gives it more room",
            Stop::Interrupted => "interrupted",
            Stop::Closed => "nobody reads the text any more",
        };
        match self.texts.len() {
            0 | 1 => writeln!(f, "--- {}: {why}", self.model)?,
            count => writeln!(f, "--- {}: {count} texts; the last: {why}", self.model)?,
        }
        writeln!(f, "who holds what")?;
        writeln!(
            f,
            "  weights  {}  {}, {}",
            Mib(self.weights_bytes),
            self.dtype,
            self.weights_in
        )?;
        writeln!(
            f,
            "  KV       {}  {}, in use of {} reserved",
            Mib(self.kv_used_bytes as u64),
            self.kv_dtype,
            Mib(self.kv_reserved_bytes as u64).to_string().trim()
        )?;
        writeln!(
            f,
            "  scratch  {}  the largest step, of {} that its arena holds",
            Mib(self.scratch_bytes as u64),
            Mib(self.scratch_retained_bytes as u64).to_string().trim()
        )?;
        match self.peak_rss_bytes {
            Some(bytes) => writeln!(f, "  peak RSS {}  the whole process", Mib(bytes as u64))?,
            None => writeln!(f, "  peak RSS   not known on this system")?,
        }
        match &self.heap_blocks_per_token {
            Some(blocks) => writeln!(
                f,
                "heap       {blocks} blocks per decoded token, in the whole process"
            )?,
            None => writeln!(f, "heap       not measured: too few tokens")?,
        }
        let sharing = &self.sharing;
        if self.texts.len() > 1 {
            writeln!(
                f,
                "sharing    {} of {} prompt tokens were there: {} blocks shared, {} copied",
                sharing.hit_tokens,
                sharing.prompt_tokens,
                sharing.shared_blocks,
                sharing.copied_blocks
            )?;
        }
        let made: usize = self.texts.iter().map(|text| text.made.tokens.len()).sum();
        write!(
            f,
            "speed      {} prompt tokens at {:.1}/s, {made} tokens",
            sharing.computed_tokens(),
            self.prompt_tokens_per_s
        )?;
        if let Some(speed) = self.tokens_per_s {
            write!(f, " at {speed:.1}/s")?;
        }
        writeln!(f, " ({} threads, {})", self.threads, self.kernels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_per_token_is_whole_where_it_is_whole() {
        assert_eq!(per_token(0, 0), None);
        assert_eq!(per_token(0, 5), Some(Value::from(0)));
        assert_eq!(per_token(15, 5), Some(Value::from(3)));
        assert_eq!(per_token(1, 4), Some(Value::from(0.25)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_high_water_mark_is_that_of_this_process() {
        let before = peak_rss_bytes().unwrap();
        let grown = std::hint::black_box(vec![1u8; 32 << 20]);
        assert!(peak_rss_bytes().unwrap() >= before.max(grown.len()));
    }
}
