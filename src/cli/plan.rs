//! `tenslab plan`: how many tokens of a model's keys and values fit into a budget.
//!
//! For people a few lines in 80 columns; for programs one JSON object, in which all
//! sizes are bytes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use tenslab::kv::{KvError, KvFormat, KvSpec, Layout, ModelConfig, Plan, PlanError};

use super::Failure;
use super::size;
use super::table::COLUMNS;
use super::text::{binary_bytes, escaped, wrapped};

/// No config is longer than this: what is, is another file.
const MOST_CONFIG_BYTES: u64 = 16 << 20;

/// What a plan is made of.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// A model's config.json, or the Hugging Face directory it is in
    #[arg(long, value_name = "PATH")]
    config: PathBuf,
    /// Memory for keys and values: 4GiB, 512MiB, 8GB, or plain bytes
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = size::bytes)]
    budget: usize,
    /// Tokens in a block
    #[arg(long, value_name = "N", default_value_t = 16)]
    block_tokens: usize,
    /// What keys and values are kept as: f32, f16 or bf16 [default: the config's dtype]
    #[arg(long, value_name = "DTYPE", value_parser = format)]
    kv_dtype: Option<KvFormat>,
    /// How the region is laid out
    #[arg(long, value_parser = PossibleValuesParser::new(Layout::ALL.map(Layout::name)), default_value = Layout::default().name())]
    layout: String,
    /// Tokens of one sequence [default: the config's max_position_embeddings]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

fn format(name: &str) -> Result<KvFormat, PlanError> {
    KvFormat::from_name(name).ok_or_else(|| PlanError::UnknownFormat { name: name.into() })
}

/// Reads the config and prints what fits.
pub(super) fn plan(args: &PlanArgs, out: &mut impl Write) -> Result<(), Failure> {
    let answer = Answer::new(args)?;
    if args.json {
        serde_json::to_writer(&mut *out, &answer).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    answer.print(out)
}

/// The text of the config, and where it was.
fn read(path: &Path) -> Result<(PathBuf, String), Failure> {
    let path = if path.is_dir() {
        path.join("config.json")
    } else {
        path.to_path_buf()
    };
    let trouble = |what: String| {
        Failure::Said(format!(
            "{}: {what}; --config wants a Hugging Face config.json, or its directory",
            path.display()
        ))
    };
    let file = File::open(&path).map_err(|error| trouble(format!("cannot open: {error}")))?;
    let mut text = String::new();
    file.take(MOST_CONFIG_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| trouble(format!("cannot read: {error}")))?;
    if text.len() as u64 > MOST_CONFIG_BYTES {
        return Err(trouble(format!(
            "longer than any config ({MOST_CONFIG_BYTES} bytes)"
        )));
    }
    Ok((path, text))
}

/// The answer, with a field for each key of the JSON object.
#[derive(Serialize)]
struct Answer {
    config: String,
    layers: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    kv_dtype: &'static str,
    layout: &'static str,
    budget_bytes: usize,
    block_tokens: usize,
    bytes_per_token: usize,
    block_bytes: usize,
    blocks: usize,
    tokens: usize,
    region_bytes: usize,
    unused_bytes: usize,
    /// What one sequence would like to have; the rest is null if nobody said.
    context: Option<usize>,
    /// Null also if it passes the address space.
    context_bytes: Option<usize>,
    sequences: Option<usize>,
    longest_context: Option<usize>,
}

impl Answer {
    fn new(args: &PlanArgs) -> Result<Self, Failure> {
        let (path, text) = read(&args.config)?;
        let config = ModelConfig::from_json(&text).map_err(|error| in_file(&path, &error))?;
        let format = match args.kv_dtype {
            Some(format) => format,
            None => config.format().map_err(|error| {
                Failure::Said(format!(
                    "{}: {error}; give one with --kv-dtype f32, f16 or bf16",
                    path.display()
                ))
            })?,
        };
        let layout = Layout::ALL
            .into_iter()
            .find(|layout| layout.name() == args.layout)
            .unwrap_or_default();
        let spec = KvSpec::from_format(config.dims(args.block_tokens), format)
            .and_then(|spec| spec.with_layout(layout))
            .map_err(|error| in_file(&path, &error.into()))?;
        let plan = Plan::new(spec, args.budget).map_err(|error| hinted(&error))?;
        let context = match args.context {
            Some(0) => return Err(Failure::Said("--context must be at least 1 token".into())),
            Some(context) => Some(context),
            None => config.max_context,
        };
        Ok(Self {
            config: path.to_string_lossy().into_owned(),
            layers: spec.layers(),
            kv_heads: spec.kv_heads(),
            key_dim: spec.key_dim(),
            value_dim: spec.value_dim(),
            kv_dtype: spec.dtype().name(),
            layout: layout.name(),
            budget_bytes: plan.budget_bytes(),
            block_tokens: spec.block_tokens(),
            bytes_per_token: spec.bytes_per_token(),
            block_bytes: spec.block_bytes(),
            blocks: plan.blocks(),
            tokens: plan.tokens(),
            region_bytes: plan.region_bytes(),
            unused_bytes: plan.unused_bytes(),
            context,
            context_bytes: context.and_then(|tokens| spec.bytes_for(tokens)),
            sequences: context.map(|tokens| plan.sequences_of(tokens)),
            longest_context: context.map(|tokens| plan.longest(tokens)),
        })
    }

    fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let size = |bytes: usize| match bytes {
            0..1024 => format!("{bytes} bytes"),
            _ => format!("{bytes} bytes ({})", binary_bytes(bytes as u64)),
        };
        for line in wrapped(&escaped(&self.config), COLUMNS) {
            writeln!(out, "{line}")?;
        }
        let values = match self.value_dim {
            0 => "no values (one component)".into(),
            dim => format!("values of {dim}"),
        };
        let mut row = |name: &str, text: String| -> Result<(), Failure> {
            // The name has a column of its own, also on lines that go on.
            for (at, part) in wrapped(&text, COLUMNS - 11).into_iter().enumerate() {
                let name = if at == 0 { name } else { "" };
                writeln!(out, "{name:<9}  {part}")?;
            }
            Ok(())
        };
        row(
            "model",
            format!(
                "{} layers, {} kv heads, keys of {}, {values}",
                self.layers, self.kv_heads, self.key_dim
            ),
        )?;
        row("layout", format!("{}, {}", self.layout, self.kv_dtype))?;
        row("token", size(self.bytes_per_token))?;
        row(
            "block",
            format!("{} tokens, {}", self.block_tokens, size(self.block_bytes)),
        )?;
        row("budget", size(self.budget_bytes))?;
        row("blocks", format!("{}", self.blocks))?;
        row("tokens", format!("{}", self.tokens))?;
        row("unused", size(self.unused_bytes))?;
        let Some(context) = self.context else {
            return Ok(());
        };
        let needs = self
            .context_bytes
            .map_or_else(|| "more bytes than there are addresses".into(), size);
        row("context", format!("{context} tokens need {needs}"))?;
        let fits = match (self.sequences, self.longest_context) {
            (Some(0), Some(longest)) => format!("0: a sequence can have {longest} tokens"),
            (sequences, _) => format!("{} of that length", sequences.unwrap_or(0)),
        };
        row("sequences", fits)
    }
}

/// What is wrong with the sizes, and in which file they are.
fn in_file(path: &Path, error: &PlanError) -> Failure {
    let next = match error {
        PlanError::Kv(KvError::UnsupportedFormat { .. } | KvError::RaggedRows { .. }) => {
            "; give --kv-dtype f32, f16 or bf16"
        }
        PlanError::Kv(KvError::Zero { what } | KvError::TooLarge { what, .. })
            if *what == "block_tokens" =>
        {
            "; give another --block-tokens"
        }
        PlanError::NotAConfig { .. } => "; --config wants a Hugging Face config.json",
        PlanError::Missing { .. } | PlanError::NoHeadDim { .. } => {
            "; add it to the file (transformers has a default for it in the model's class)"
        }
        _ => "",
    };
    Failure::Said(format!("{}: {error}{next}", path.display()))
}

/// A budget that is too small, and what would do.
fn hinted(error: &PlanError) -> Failure {
    let next = match error {
        PlanError::BudgetTooSmall { block_bytes, .. } => {
            format!("; give --budget {block_bytes} or more, or smaller blocks with --block-tokens")
        }
        _ => String::new(),
    };
    Failure::Said(format!("{error}{next}"))
}
