//! `tenslab load PATH`: brings a checkpoint into memory as an engine would, and says what that
//! took: for choosing a mode, for finding a bad file, for comparing machines.
//!
//! It is over when the report is printed: the weights go with the process.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tenslab::memory::Advice;
use tenslab::tensor::TensorError;
use tenslab::types::Element;
use tenslab::weights::{
    Checkpoint, Choice, FileDigest, LoadOptions, LoadProgress, LoadReport, MapOptions, Misaligned,
    NonFinite, NonFiniteTensor, Sha256Digest, Weights, WeightsError,
};
use tenslab::{DType, Tensor, bf16, f16};

use super::Failure;

mod report;

use self::report::Report;

/// Where the weights are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Read into one slab
    Slab,
    /// In the mapped files, without a copy: nobody may write to them meanwhile
    Map,
    /// Read into memory that is sealed and can be shared with other processes (Linux)
    Sealed,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Floats {
    #[value(alias = "float32")]
    F32,
    #[value(alias = "float16")]
    F16,
    #[value(alias = "bfloat16")]
    Bf16,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Advise {
    Willneed,
    Random,
    Sequential,
    Populate,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Unaligned {
    /// Copied to where they are aligned
    Realign,
    /// An error that names them
    Error,
    /// Left where they are, as bytes
    BytesOnly,
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A .safetensors file, a .safetensors.index.json, or a directory with either
    path: PathBuf,
    /// Where the weights are to be
    #[arg(long, value_enum, default_value_t = Mode::Slab)]
    mode: Mode,
    /// Cast float tensors on the way (slab, sealed)
    #[arg(long, value_enum)]
    dtype: Option<Floats>,
    /// Threads that read (slab, sealed); as many as there are cores, up to 4, if not given
    #[arg(long)]
    threads: Option<usize>,
    /// Only tensors of such names, * and ? standing for any letters (slab, sealed); repeatable
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Also compute the SHA-256 of each file, and count NaNs and infinities. They are reported,
    /// and no error
    #[arg(long)]
    verify: bool,
    /// Compare the files with these SHA-256, in a file as sha256sum prints it; implies --verify
    #[arg(long, value_name = "SUMS")]
    sha256: Option<PathBuf>,
    /// Make the pages read-only, so that a stray write traps (slab)
    #[arg(long)]
    protect: bool,
    /// Drop the files from the page cache afterwards (slab, sealed)
    #[arg(long)]
    drop_page_cache: bool,
    /// What the system is told about the mapping (map)
    #[arg(long, value_enum)]
    advice: Option<Advise>,
    /// What becomes of tensors that are not aligned in the file (map)
    #[arg(long, value_enum, default_value_t = Unaligned::Realign)]
    misaligned: Unaligned,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--verify` found.
#[derive(Debug, Default)]
struct Verified {
    digests: Vec<FileDigest>,
    non_finite: Vec<NonFiniteTensor>,
}

/// Loads and prints what that took.
pub(super) fn load(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    refuse_idle_flags(args)?;
    let sums = args.sha256.as_deref().map(sums).transpose()?;
    let began = Instant::now();
    let checkpoint = Checkpoint::open(&args.path)?;
    if let Some(sums) = &sums {
        all_are_files(sums, &checkpoint, args)?;
    }
    let verify = args.verify || sums.is_some();
    let sums = verify.then(|| sums.unwrap_or_default());
    let tensor_bytes = checkpoint.tensor_bytes();
    let (report, verified) = match args.mode {
        Mode::Slab => slab(checkpoint, &options(args, sums))?,
        Mode::Map => map(checkpoint, args, sums)?,
        Mode::Sealed => sealed(&checkpoint, &options(args, sums))?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let report = Report {
        path: &args.path,
        mode: args
            .mode
            .to_possible_value()
            .map_or_else(String::new, |value| value.get_name().into()),
        load: &report,
        tensor_bytes,
        seconds,
        verified: verify.then_some(&verified),
    };
    if args.json {
        report.print_json(out)?;
    } else {
        report.print(out)?;
    }
    Ok(())
}

/// A flag that another mode has and this one would ignore is an error: who gave it expects
/// something of it.
fn refuse_idle_flags(args: &Args) -> Result<(), Failure> {
    let copies = args.mode != Mode::Map;
    let idle = [
        ("--dtype", args.dtype.is_some() && !copies),
        ("--threads", args.threads.is_some() && !copies),
        ("--only", !args.only.is_empty() && !copies),
        ("--drop-page-cache", args.drop_page_cache && !copies),
        ("--protect", args.protect && args.mode != Mode::Slab),
        ("--advice", args.advice.is_some() && copies),
        (
            "--misaligned",
            !matches!(args.misaligned, Unaligned::Realign) && copies,
        ),
    ];
    match idle.into_iter().find(|(_, is_idle)| *is_idle) {
        None => Ok(()),
        Some((flag, _)) if copies => Err(Failure::Said(format!(
            "{flag} is not for this mode; see --help, or use --mode {}",
            if flag == "--protect" { "slab" } else { "map" }
        ))),
        Some((flag, _)) => Err(Failure::Said(format!(
            "{flag} is not for --mode map, which leaves the bytes in their files; use --mode slab"
        ))),
    }
}

fn options(args: &Args, sums: Option<BTreeMap<String, Sha256Digest>>) -> LoadOptions {
    let usual = LoadOptions::default();
    LoadOptions {
        dtype: args.dtype.map(|dtype| match dtype {
            Floats::F32 => DType::F32,
            Floats::F16 => DType::F16,
            Floats::Bf16 => DType::BF16,
        }),
        threads: args.threads.unwrap_or(usual.threads),
        choice: match args.only.as_slice() {
            [] => Choice::all(),
            patterns => Choice::matching(patterns),
        },
        protect: args.protect,
        drop_page_cache: args.drop_page_cache,
        non_finite: match sums {
            Some(_) => NonFinite::Report,
            None => NonFinite::Ignore,
        },
        sha256: sums,
        ..usual
    }
}

fn slab(
    checkpoint: Checkpoint,
    options: &LoadOptions,
) -> Result<(LoadReport, Verified), WeightsError> {
    let bar = Bar::new();
    let weights = Weights::load_checkpoint(checkpoint, options, &mut |at| bar.draw(at));
    bar.clear();
    Ok(reported(weights?.report().clone()))
}

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
fn sealed(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<(LoadReport, Verified), WeightsError> {
    let bar = Bar::new();
    let sealed = Weights::seal_checkpoint(checkpoint, options, &mut |at| bar.draw(at));
    bar.clear();
    let sealed = sealed?;
    let report = sealed.report().clone();
    // As the processes do that it is for.
    let weights = Weights::map_sealed(sealed)?;
    let mapped_bytes = weights.report().mapped_bytes;
    let (mut report, verified) = reported(report);
    report.mapped_bytes = mapped_bytes;
    Ok((report, verified))
}

#[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
fn sealed(_: &Checkpoint, _: &LoadOptions) -> Result<(LoadReport, Verified), Failure> {
    let text = "memory that is sealed is to be had on Linux only; use --mode slab or map";
    Err(Failure::Said(text.into()))
}

/// What the report of a load says of what was verified.
fn reported(mut report: LoadReport) -> (LoadReport, Verified) {
    let verified = Verified {
        digests: std::mem::take(&mut report.digests),
        non_finite: std::mem::take(&mut report.non_finite),
    };
    (report, verified)
}

fn map(
    checkpoint: Checkpoint,
    args: &Args,
    sums: Option<BTreeMap<String, Sha256Digest>>,
) -> Result<(LoadReport, Verified), WeightsError> {
    let mut verified = Verified::default();
    if sums.is_some() {
        // A load of nothing: of all that it does, the digests are left.
        let nothing = LoadOptions {
            choice: Choice::by(|_| false),
            sha256: sums.clone(),
            ..LoadOptions::default()
        };
        (_, verified) = slab(checkpoint.clone(), &nothing)?;
    }
    let options = MapOptions {
        advice: args.advice.map(|advice| match advice {
            Advise::Willneed => Advice::WillNeed,
            Advise::Random => Advice::Random,
            Advise::Sequential => Advice::Sequential,
            Advise::Populate => Advice::Populate,
        }),
        misaligned: match args.misaligned {
            Unaligned::Realign => Misaligned::Realign,
            Unaligned::Error => Misaligned::Error,
            Unaligned::BytesOnly => Misaligned::BytesOnly,
        },
        ..MapOptions::default()
    };
    // SAFETY: that nobody writes to the files or cuts them is what the user promises by asking
    // for this mode, whose help says so.
    let weights = unsafe { Weights::map_checkpoint(checkpoint, &options) }?;
    if sums.is_some() {
        verified.non_finite = non_finite(&weights)?;
    }
    Ok((weights.report().clone(), verified))
}

/// The tensors of mapped weights with values that are no finite numbers.
fn non_finite(weights: &Weights) -> Result<Vec<NonFiniteTensor>, WeightsError> {
    let mut found = Vec::new();
    for name in weights.names() {
        let tensor = match weights.get(name) {
            Ok(tensor) => tensor,
            // Bytes: nobody can say what they stand for.
            Err(WeightsError::UnsupportedDType { .. } | WeightsError::Misaligned { .. }) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        let counted = match tensor.dtype() {
            DType::F32 => count(&tensor, |value: f32| value.is_finite()),
            DType::F64 => count(&tensor, |value: f64| value.is_finite()),
            DType::F16 => count(&tensor, |value: f16| value.is_finite()),
            DType::BF16 => count(&tensor, |value: bf16| value.is_finite()),
            _ => Ok(None),
        };
        let counted = counted.map_err(|source| WeightsError::Tensor {
            name: name.into(),
            source,
        })?;
        found.extend(counted.map(|(count, first)| NonFiniteTensor {
            name: name.into(),
            count,
            first,
        }));
    }
    Ok(found)
}

fn count<T: Element>(
    tensor: &Tensor,
    is_finite: impl Fn(T) -> bool,
) -> Result<Option<(u64, usize)>, TensorError> {
    let values = tensor.read::<T>()?;
    let mut odd = (values.iter().enumerate()).filter(|(_, value)| !is_finite(**value));
    let first = odd.next().map(|(at, _)| at);
    Ok(first.map(|first| (1 + odd.count() as u64, first)))
}

/// Digests by file name, from lines as `sha256sum` prints them.
fn sums(path: &Path) -> Result<BTreeMap<String, Sha256Digest>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::Said(format!("{}: cannot read: {error}", path.display())))?;
    let mut sums = BTreeMap::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let parts = line.split_once(char::is_whitespace);
        let parsed = parts.and_then(|(digest, name)| {
            let name = name.trim_start().trim_start_matches('*').trim_end();
            let name = Path::new(name).file_name()?.to_str()?;
            Some((name.to_owned(), digest.parse().ok()?))
        });
        let Some((name, digest)) = parsed else {
            return Err(Failure::Said(format!(
                "{}: line {} is not a SHA-256 and a file name, as sha256sum prints them",
                path.display(),
                number + 1
            )));
        };
        if let Some(other) = sums.insert(name.clone(), digest)
            && other != digest
        {
            return Err(Failure::Said(format!(
                "{}: two different SHA-256 of {name}",
                path.display()
            )));
        }
    }
    Ok(sums)
}

/// A sum for no file of the checkpoint would be compared with nothing.
fn all_are_files(
    sums: &BTreeMap<String, Sha256Digest>,
    checkpoint: &Checkpoint,
    args: &Args,
) -> Result<(), Failure> {
    let has = |name: &str| {
        let mut files = checkpoint.files().iter();
        files.any(|file| file.path().file_name().is_some_and(|own| own == name))
    };
    let compared = sums.keys().filter(|name| has(name)).count();
    if compared == checkpoint.files().len() {
        return Ok(());
    }
    let path = args.sha256.as_deref().unwrap_or(Path::new(""));
    Err(Failure::Said(format!(
        "{}: has a SHA-256 for {compared} of the {} files of {}",
        path.display(),
        checkpoint.files().len(),
        args.path.display()
    )))
}

/// A bar on stderr, where that is a terminal; elsewhere one that draws nothing.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let template = "{bar:40} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}";
        let style = ProgressStyle::with_template(template);
        Self(
            ProgressBar::with_draw_target(Some(0), target)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
        )
    }

    fn draw(&self, at: LoadProgress) -> ControlFlow<()> {
        self.0.set_length(at.total_bytes);
        self.0.set_position(at.done_bytes);
        ControlFlow::Continue(())
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}
