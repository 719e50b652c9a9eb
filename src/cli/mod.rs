//! The command line: what is asked, and how answers and errors are given.
//!
//! An answer goes to stdout, through one lock and one buffer. An error is one line
//! on stderr that says what is wrong and what to do, and exit code 2. A reader that
//! goes away (`tenslab inspect … | head`) is no error: what it wanted it has.

mod chart;
mod heap;
mod inspect;
mod load;
mod plan;
mod pool;
mod progress;
mod replay;
mod size;
mod table;
mod text;

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tenslab::kv::KvError;
use tenslab::weights::WeightsError;

use self::replay::trace::TraceError;

/// The memory layer of an LLM inference engine, from the command line
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the tensors of a checkpoint, from its headers alone
    Inspect {
        /// A .safetensors file, a .safetensors.index.json, or a directory with either
        path: PathBuf,
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Bring a checkpoint into memory, and say what that took
    Load(load::Args),
    /// Say how many blocks, tokens and sequences of a model's KV cache fit into a budget
    Plan(plan::PlanArgs),
    /// Replay a recorded trace of allocations into a caching pool: what it needs, how tight it is
    Pool(pool::Args),
    /// Replay a trace of requests against the KV cache: hits, evictions, occupancy
    Replay(replay::Args),
}

/// Why there is no answer.
#[derive(Debug)]
enum Failure {
    Weights(WeightsError),
    /// A whole sentence: what is wrong, where, and what to do.
    Said(String),
    Trace(TraceError),
    Kv(KvError),
    Output(io::Error),
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Self {
        Self::Weights(error)
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}

impl From<KvError> for Failure {
    fn from(error: KvError) -> Self {
        Self::Kv(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Does what the arguments ask for.
pub(crate) fn run() -> ExitCode {
    let args = Args::parse();
    let mut out = BufWriter::new(io::stdout().lock());
    let answered = match args.command {
        Command::Inspect { path, json } => inspect::inspect(&path, json, &mut out),
        Command::Load(args) => load::load(&args, &mut out),
        Command::Plan(args) => plan::plan(&args, &mut out),
        Command::Pool(args) => pool::pool(&args, &mut out),
        Command::Replay(args) => replay::replay(&args, &mut out),
    };
    let message = match answered.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            // The buffer's drop would try to write the rest once more.
            std::mem::forget(out);
            return ExitCode::SUCCESS;
        }
        Err(Failure::Output(error)) => format!("cannot write the answer: {error}"),
        Err(Failure::Weights(error)) => error.to_string(),
        Err(Failure::Said(message)) => message,
        Err(Failure::Trace(error)) => error.to_string(),
        Err(Failure::Kv(error)) => error.to_string(),
    };
    // Nobody is left to tell if stderr is closed, too.
    let _ = writeln!(io::stderr(), "tenslab: {}", text::one_line(&message));
    ExitCode::from(2)
}
