//! The command line.

use std::num::ParseIntError;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use tenslab::DType;

use crate::trouble::Trouble;

/// More threads than this only wait for each other.
const MOST_THREADS: usize = 256;

/// Where the weights are. The tokens do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// Read into one slab
    Load,
    /// Where they lie: in the files, which nobody may write to or cut meanwhile
    Map,
    /// In memory that is sealed, as workers of one machine would share it; Linux only
    Sealed,
}

/// Text from a Llama whose every byte of weights, keys, values and activations is
/// tenslab's. Without --model it makes itself a small one: its text is noise, its
/// memory report is real.
///
/// Exit codes: 0 done, 2 one line on stderr says what is wrong, 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "generate", version)]
pub(crate) struct Args {
    /// A Hugging Face directory: config.json, tokenizer.json, safetensors
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,

    /// The text to continue; no special tokens are added. Give several: what they begin with
    /// in common is computed once
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "Once upon a time",
        conflicts_with = "prompt_ids"
    )]
    pub(crate) prompt: Vec<String>,

    /// The same as token ids: 504,3575,282
    #[arg(long, allow_negative_numbers = true, value_name = "IDS")]
    pub(crate) prompt_ids: Option<Vec<Ids>>,

    /// Text in front of every prompt, as it is: no space, line break or template is added
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_ids")]
    pub(crate) system: Option<String>,

    /// Texts for each prompt, which is computed once for all of them. The first draws with
    /// --seed, each further one with a seed one higher. More than one needs a --temperature:
    /// without, all would be the same
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "N",
        default_value_t = 1
    )]
    pub(crate) n: usize,

    /// Tokens to make for each text
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "N",
        default_value_t = 64
    )]
    pub(crate) max_tokens: usize,

    /// Tokens that a text has room for in the KV cache, prompt included [default: what the model was made for]
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,

    /// Go on behind an end-of-sequence token
    #[arg(long)]
    pub(crate) ignore_eos: bool,

    /// Threads that compute; the tokens do not depend on it [default: one for each core, at most 8]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Where the weights are; the tokens do not depend on it
    #[arg(long, value_enum, value_name = "WHERE", default_value = "load")]
    pub(crate) weights: Place,

    /// What weights are cast to while they are loaded [default: nothing, they stay as in the file]
    #[arg(long, value_name = "f32|f16|bf16", value_parser = dtype)]
    pub(crate) dtype: Option<DType>,

    /// What keys and values are kept as
    #[arg(long, value_name = "f32|f16|bf16", value_parser = dtype, default_value = "f32")]
    pub(crate) kv_dtype: DType,

    /// Prompt tokens in one forward pass; the logits do not depend on it
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) chunk: usize,

    /// 0 takes the most likely token, always; above it samples
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "T",
        default_value_t = 0.0
    )]
    pub(crate) temperature: f32,

    /// Sample from the most likely tokens that have this share together
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        requires = "temperature"
    )]
    pub(crate) top_p: f32,

    /// Where sampling starts; the same seed gives the same text
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "N",
        default_value_t = 0
    )]
    pub(crate) seed: u64,

    /// With --json: the five highest logits of each step
    #[arg(long, requires = "json")]
    pub(crate) logits: bool,

    /// Print one JSON object at the end instead of text and report
    #[arg(long)]
    pub(crate) json: bool,

    /// Feed these tokens instead of the chosen ones, to compare logits step by step
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(crate) force_ids: Option<Vec<u32>>,

    /// Make N heap blocks in each decode step, to see that they are counted
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) plant_allocations: u64,
}

/// The ids of one prompt.
#[derive(Debug, Clone)]
pub(crate) struct Ids(pub(crate) Vec<u32>);

impl FromStr for Ids {
    type Err = ParseIntError;

    fn from_str(list: &str) -> Result<Self, ParseIntError> {
        let ids = list.split(',').map(|id| id.trim().parse());
        ids.collect::<Result<_, _>>().map(Self)
    }
}

impl Args {
    /// Reads the command line. `Err` holds the exit code when there is nothing to run:
    /// --help was asked for, or a line on stderr says what is wrong.
    pub(crate) fn read() -> Result<Self, u8> {
        match Self::try_parse() {
            Ok(args) => Ok(args),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
                ) =>
            {
                // A closed pipe is no reason to complain.
                let _ = error.print();
                Err(0)
            }
            Err(error) => {
                let text = error.to_string();
                let line = text
                    .split("\n\n")
                    .next()
                    .unwrap_or_default()
                    .split_whitespace()
                    .collect::<Vec<_>>()
                    .join(" ");
                eprintln!("{line}; --help lists what there is");
                Err(2)
            }
        }
    }

    /// Refuses numbers that mean nothing.
    ///
    /// # Errors
    ///
    /// The first such number.
    pub(crate) fn check(&self) -> Result<(), Trouble> {
        for (name, value) in [
            ("--threads", self.threads.unwrap_or(1)),
            ("--context", self.context.unwrap_or(1)),
            ("--max-tokens", self.max_tokens),
            ("--chunk", self.chunk),
            ("--n", self.n),
        ] {
            if value == 0 {
                return Err(Trouble::new(format!("{name} is 0; give at least 1")));
            }
        }
        let threads = self.threads.unwrap_or(1);
        if threads > MOST_THREADS {
            return Err(Trouble::new(format!(
                "--threads is {threads}; give at most {MOST_THREADS}"
            )));
        }
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(Trouble::new(format!(
                "--temperature is {}; give 0 or a positive number",
                self.temperature
            )));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Trouble::new(format!(
                "--top-p is {}; give a number above 0 and at most 1",
                self.top_p
            )));
        }
        if let (Place::Map, Some(dtype)) = (self.weights, self.dtype) {
            return Err(Trouble::new(format!(
                "--dtype {dtype} is not for --weights map, which leaves the bytes in their files; use --weights load"
            )));
        }
        if self.n > 1 && self.temperature == 0.0 {
            return Err(Trouble::new(format!(
                "--n is {}, and without --temperature all texts of a prompt are the same; give --temperature, or --n 1",
                self.n
            )));
        }
        Ok(())
    }

    /// How many threads compute.
    pub(crate) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8));
        self.threads.unwrap_or_else(cores)
    }
}

/// The short name of a dtype that the kernels read.
fn dtype(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err("it is one of f32, f16, bf16".into()),
    }
}
