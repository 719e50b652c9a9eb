//! Loading a checkpoint beside `pread` of the same bytes, and beside what a reader would use.
//!
//! ```text
//!   fresh    tensors in new memory, in the file's dtype: page faults are most of it
//!   warm     tensors in memory that was touched before: ours from a pool with one block
//!   cast     the file's bf16 as f32, fresh and warm
//! ```
//!
//! All of a cell's contenders take turns, another one first in each round: **compare within a
//! cell only.** The file is in the page cache. What is timed is from a path to usable tensors;
//! giving back is not. A second pass runs each contender in a process of its own and prints by
//! how much its peak of resident memory rose, as a multiple of the tensors' bytes.
//!
//! - `pread` is what there is to reach: threads that read 4 MiB at a time into one mapping.
//!   Into what it reads nobody can look: it stands for the bytes, not for tensors.
//! - `bytes moved` is that for casts: the file is read, 256 KiB at a time, into memory that
//!   stays in the cache, and twice as many bytes are set in the target.
//! - `safetensors` is `std::fs::read` and its views; for f32 a `Vec` for each tensor.
//! - `candle` (`--features candle`) is its `safetensors::load`, and `to_dtype` for f32.
//!
//! Each contender's values are summed up once and have to be the same.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use clap::Parser;
use safetensors::SafeTensors;
use tenslab::memory::{HugePages, SharedAllocator, SlabAllocator};
use tenslab::weights::{Checkpoint, LoadOptions, NonFinite, Weights};
use tenslab::{CpuAllocator, DType};

/// Loading beside `pread`, safetensors and candle.
#[derive(Parser, Debug)]
struct Options {
    /// A bf16 checkpoint; by default SmolLM2, where `.ci/run model` puts it.
    #[arg(long, default_value = "target/models/bf16/model.safetensors")]
    file: PathBuf,
    /// MiB of the checkpoint that is generated; 0 for none.
    #[arg(long, default_value_t = 2048)]
    generate: usize,
    /// Where the generated one is.
    #[arg(long, default_value = "target/generated.safetensors")]
    at: PathBuf,
    /// Threads, a list.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Rounds for each cell.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Only cells whose name has this in it.
    #[arg(long, default_value = "")]
    filter: String,
    /// A cell and a contender, to be run once and measured.
    #[arg(long, hide = true)]
    child: Option<String>,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Something loaded: the sum of its values, if it has any, and what keeps it alive.
trait Loaded {
    fn sum(&mut self) -> Option<u64>;
}

struct Contender<'a> {
    name: &'static str,
    load: Box<dyn FnMut() -> Outcome<Box<dyn Loaded>> + 'a>,
}

fn contender<'a, L: Loaded + 'static>(
    name: &'static str,
    mut load: impl FnMut() -> Outcome<L> + 'a,
) -> Contender<'a> {
    Contender {
        name,
        load: Box::new(move || Ok(Box::new(load()?))),
    }
}

/// The bits of all values as f32, added up.
fn sum_f32(values: impl Iterator<Item = f32>) -> u64 {
    values.fold(0, |sum, value| sum.wrapping_add(value.to_bits().into()))
}

fn sum_bf16(bytes: &[u8]) -> u64 {
    let halves = bytes.as_chunks().0.iter();
    sum_f32(halves.map(|half| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16)))
}

impl Loaded for Weights {
    fn sum(&mut self) -> Option<u64> {
        let sums = self.names().map(|name| {
            let tensor = self.get(name).expect("loaded");
            let bytes = tensor.read_bytes().expect("frozen");
            match tensor.dtype() {
                DType::F32 => sum_f32(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
                _ => sum_bf16(&bytes),
            }
        });
        Some(sums.fold(0, u64::wrapping_add))
    }
}

/// Pages that nobody has touched.
struct Mapping {
    base: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Self {
        // SAFETY: a new mapping, wherever the system wants it.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "no room");
        let base = base.cast();
        Self { base, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, readable and writable, zero where nobody wrote, and this mapping's
        // alone.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped when it was made, and nobody has its bytes any longer.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

impl Loaded for Mapping {
    fn sum(&mut self) -> Option<u64> {
        None
    }
}

/// Nothing to be kept: the memory is somebody else's.
struct Filled;

impl Loaded for Filled {
    fn sum(&mut self) -> Option<u64> {
        None
    }
}

/// Runs `work` on parts of `target` and their numbers, until there are none.
fn share(target: &mut [u8], part: usize, threads: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    let parts = Mutex::new(target.chunks_mut(part).enumerate());
    let run = || {
        loop {
            let next = parts.lock().expect("nobody panics").next();
            let Some((number, part)) = next else { break };
            work(number, part);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
}

fn pread(path: &Path, start: u64, target: &mut [u8], threads: usize) {
    const PART: usize = 4 << 20;
    let file = File::open(path).expect("the file");
    share(target, PART, threads, |number, bytes| {
        file.read_exact_at(bytes, start + (number * PART) as u64)
            .expect("the file is as long as it was");
    });
}

/// Reads the file through a piece of memory in the cache, and sets twice as many bytes.
fn move_bytes(path: &Path, start: u64, target: &mut [u8], threads: usize) {
    const PART: usize = 256 << 10;
    thread_local! {
        static SCRATCH: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; PART]);
    }
    let file = File::open(path).expect("the file");
    share(target, 2 * PART, threads, |number, bytes| {
        SCRATCH.with_borrow_mut(|scratch| {
            let scratch = &mut scratch[..bytes.len() / 2];
            file.read_exact_at(scratch, start + (number * PART) as u64)
                .expect("the file is as long as it was");
            bytes.fill(scratch[0]);
        });
    });
}

/// The file's bytes, and views of them.
struct Read(Vec<u8>);

impl Loaded for Read {
    fn sum(&mut self) -> Option<u64> {
        let tensors = SafeTensors::deserialize(&self.0).expect("read before");
        let sums = tensors.iter().map(|(_, view)| sum_bf16(view.data()));
        Some(sums.fold(0, u64::wrapping_add))
    }
}

/// A `Vec` for each tensor.
struct Vectors(Vec<Vec<f32>>);

impl Loaded for Vectors {
    fn sum(&mut self) -> Option<u64> {
        let sums = self.0.iter().map(|values| sum_f32(values.iter().copied()));
        Some(sums.fold(0, u64::wrapping_add))
    }
}

fn vectors(path: &Path) -> Outcome<Vectors> {
    let content = fs::read(path)?;
    let tensors = SafeTensors::deserialize(&content)?;
    let vectors = tensors.iter().map(|(_, view)| {
        let halves = view.data().as_chunks().0.iter();
        let wide = halves.map(|half| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16));
        wide.collect()
    });
    Ok(Vectors(vectors.collect()))
}

#[cfg(feature = "candle")]
mod candle {
    use std::path::Path;

    use candle_core::{DType, Device, Tensor};

    use super::{Loaded, Outcome, sum_f32};

    pub struct Tensors(Vec<Tensor>);

    impl Loaded for Tensors {
        fn sum(&mut self) -> Option<u64> {
            let values = |tensor: &Tensor| -> candle_core::Result<Vec<f32>> {
                tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
            };
            let sums = self
                .0
                .iter()
                .map(|t| sum_f32(values(t).expect("floats").into_iter()));
            Some(sums.fold(0, u64::wrapping_add))
        }
    }

    pub fn load(path: &Path, dtype: DType) -> Outcome<Tensors> {
        let tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
        // One after the other, so that it need not hold all of them twice.
        let tensors = tensors.into_values().map(|tensor| tensor.to_dtype(dtype));
        Ok(Tensors(tensors.collect::<candle_core::Result<_>>()?))
    }
}

/// A file to be loaded.
struct Subject {
    name: &'static str,
    path: PathBuf,
    start: u64,
    bytes: usize,
    slab_bytes: usize,
}

impl Subject {
    fn new(name: &'static str, path: &Path) -> Outcome<Self> {
        let checkpoint = Checkpoint::open(path)?;
        let bytes = usize::try_from(checkpoint.tensor_bytes())?;
        Ok(Self {
            name,
            path: path.into(),
            start: checkpoint.files()[0].data_start(),
            bytes,
            slab_bytes: bytes + 64 * checkpoint.entries().len(),
        })
    }

    /// Takes it into the page cache.
    fn warm(&self) {
        let mut buffer = vec![0; 1 << 20];
        let mut file = File::open(&self.path).expect("the file");
        while std::io::Read::read(&mut file, &mut buffer).expect("the file") > 0 {}
    }
}

fn options(threads: usize, dtype: Option<DType>, allocator: &SharedAllocator) -> LoadOptions {
    LoadOptions {
        allocator: allocator.clone(),
        dtype,
        threads,
        ..LoadOptions::default()
    }
}

/// A pool of one block, all of whose pages were touched.
fn pool(bytes: usize) -> SharedAllocator {
    let pool = SlabAllocator::new(bytes.next_multiple_of(4096), 1).expect("memory");
    let pool = SharedAllocator::new(pool);
    let mut block = pool.allocate(bytes, 64).expect("one block");
    block.as_mut_slice().fill(1);
    drop(block);
    pool
}

/// The contenders of one cell. The first is ours, the second what there is to reach.
fn contenders<'a>(kind: &str, subject: &'a Subject, threads: usize) -> Vec<Contender<'a>> {
    let (path, start, bytes) = (subject.path.as_path(), subject.start, subject.bytes);
    let load =
        move |options: &LoadOptions| -> Outcome<Weights> { Ok(Weights::load(path, options)?) };
    let cpu = SharedAllocator::new(CpuAllocator::new());
    let huge = SharedAllocator::new(CpuAllocator::new().with_huge_pages(HugePages::Dense));
    match kind {
        "fresh" => {
            let ours = options(threads, None, &cpu);
            let huge = options(threads, None, &huge);
            vec![
                contender("ours", move || load(&ours)),
                contender("pread", move || {
                    let mut mapping = Mapping::new(bytes);
                    pread(path, start, mapping.bytes(), threads);
                    Ok(mapping)
                }),
                contender("ours, 2 MiB pages", move || load(&huge)),
                contender("safetensors", move || Ok(Read(fs::read(path)?))),
                #[cfg(feature = "candle")]
                contender("candle", move || {
                    candle::load(path, candle_core::DType::BF16)
                }),
            ]
        }
        "warm" => {
            let ours = options(threads, None, &pool(subject.slab_bytes));
            let scan = LoadOptions {
                non_finite: NonFinite::Report,
                ..ours.clone()
            };
            let mut touched = Mapping::new(bytes);
            touched.bytes().fill(1);
            vec![
                contender("ours", move || load(&ours)),
                contender("pread", move || {
                    pread(path, start, touched.bytes(), threads);
                    Ok(Filled)
                }),
                contender("ours, NaNs counted", move || load(&scan)),
            ]
        }
        "cast" => {
            let ours = options(threads, Some(DType::F32), &cpu);
            vec![
                contender("ours", move || load(&ours)),
                contender("bytes moved", move || {
                    let mut mapping = Mapping::new(2 * bytes);
                    move_bytes(path, start, mapping.bytes(), threads);
                    Ok(mapping)
                }),
                contender("safetensors", move || vectors(path)),
                #[cfg(feature = "candle")]
                contender("candle", move || {
                    candle::load(path, candle_core::DType::F32)
                }),
            ]
        }
        _ => {
            let ours = options(threads, Some(DType::F32), &pool(2 * subject.slab_bytes));
            let mut touched = Mapping::new(2 * bytes);
            touched.bytes().fill(1);
            vec![
                contender("ours", move || load(&ours)),
                contender("bytes moved", move || {
                    move_bytes(path, start, touched.bytes(), threads);
                    Ok(Filled)
                }),
            ]
        }
    }
}

/// Takes turns and prints a row for each.
fn race(
    cell: &str,
    subject: &Subject,
    rounds: usize,
    contenders: &mut [Contender<'_>],
) -> Outcome<()> {
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    let mut sums = Vec::new();
    for round in 0..=rounds {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            let began = Instant::now();
            let mut loaded = (contenders[at].load)()?;
            let seconds = began.elapsed().as_secs_f64();
            if round > 0 {
                times[at].push(seconds);
            } else {
                sums.extend(loaded.sum());
            }
        }
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{cell}: {sums:?}");
    let figures: Vec<(f64, f64)> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            (times[0], times[times.len() / 2])
        })
        .collect();
    let ours = figures[0];
    let gib = subject.bytes as f64 / f64::from(1 << 30);
    for (contender, (min, median)) in contenders.iter().zip(&figures) {
        println!(
            "{cell:<28} {:<20} {:>9.1} {:>9.1} ms {:>6.2} GiB/s   x{:>5.2} x{:>5.2}",
            contender.name,
            min * 1e3,
            median * 1e3,
            gib / median,
            min / ours.0,
            median / ours.1
        );
    }
    Ok(())
}

/// A field of `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("a number") << 10
}

/// Runs one contender once, in this process, and prints by how much its peak rose.
fn child(task: &str, subjects: &[Subject]) -> Outcome<()> {
    let words: Vec<&str> = task.split('/').collect();
    let [kind, name, threads, number] = words[..] else {
        return Err("a cell and a contender".into());
    };
    let subject = subjects
        .iter()
        .find(|subject| subject.name == name)
        .ok_or("a file")?;
    let mut contenders = contenders(kind, subject, threads.parse()?);
    let contender = &mut contenders[number.parse::<usize>()?];
    // "5" sets the peak back to what is resident now.
    fs::write("/proc/self/clear_refs", "5")?;
    let before = status("VmHWM:");
    let loaded = (contender.load)()?;
    println!("{}", status("VmHWM:") - before);
    drop(loaded);
    Ok(())
}

/// A row with the peak of each contender's own process.
fn peaks(cell: &str, kind: &str, subject: &Subject, contenders: &[Contender<'_>]) -> Outcome<()> {
    let wanted = subject.bytes as f64 * if kind == "cast" { 2.0 } else { 1.0 };
    let mut shown = Vec::new();
    for (number, contender) in contenders.iter().enumerate() {
        let output = Command::new(std::env::current_exe()?)
            .args(std::env::args().skip(1))
            .arg(format!("--child={cell}/{number}"))
            .output()?;
        let rise: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
        shown.push(format!("{} x{:.3}", contender.name, rise / wanted));
    }
    println!("{cell:<28} peak of resident memory: {}", shown.join(", "));
    Ok(())
}

/// Layers of matrices and norms in bf16, with values that are numbers.
fn generate(path: &Path, mib: usize) -> Outcome<()> {
    const SIDE: usize = 2048;
    let layers = (mib << 20) / (4 * SIDE * SIDE * 2);
    let (mut entries, mut begin) = (Vec::new(), 0);
    for layer in 0..layers {
        let sizes = [
            ("q", SIDE),
            ("k", SIDE),
            ("up", SIDE),
            ("down", SIDE),
            ("norm", 1),
        ];
        for (name, rows) in sizes {
            let end = begin + rows * SIDE * 2;
            entries.push(format!(
                r#""layers.{layer}.{name}":{{"dtype":"BF16","shape":[{rows},{SIDE}],"data_offsets":[{begin},{end}]}}"#
            ));
            begin = end;
        }
    }
    let mut json = format!("{{{}}}", entries.join(","));
    // As most writers align: to 8 bytes.
    while json.len() % 8 > 0 {
        json.push(' ');
    }
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&(json.len() as u64).to_le_bytes())?;
    out.write_all(json.as_bytes())?;
    let mut state = 1_u32;
    for _ in 0..begin / 2 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Between -2 and 2, all bits of the mantissa.
        let half = (state >> 16) & 0x807f | 0x3f80;
        out.write_all(&half.to_le_bytes()[..2])?;
    }
    out.into_inner()?.sync_all()?;
    Ok(())
}

fn main() -> Outcome<()> {
    let chosen = Options::parse();
    let mut subjects = Vec::new();
    match chosen.file.exists() {
        true => subjects.push(Subject::new("smollm2", &chosen.file)?),
        false => eprintln!("{} is not there: `.ci/run model`", chosen.file.display()),
    }
    if chosen.generate > 0 {
        if !chosen.at.exists() {
            generate(&chosen.at, chosen.generate)?;
        }
        subjects.push(Subject::new("generated", &chosen.at)?);
    }
    if let Some(task) = &chosen.child {
        return child(task, &subjects);
    }
    println!(
        "{:<28} {:<20} {:>9} {:>9}    {:>6}          x min   median",
        "cell", "", "min", "median", ""
    );
    for subject in &subjects {
        subject.warm();
        for kind in ["fresh", "warm", "cast", "cast warm"] {
            for &threads in &chosen.threads {
                let cell = format!("{kind}/{}/{threads}", subject.name);
                if !cell.contains(&chosen.filter) {
                    continue;
                }
                let mut contenders = contenders(kind, subject, threads);
                race(&cell, subject, chosen.rounds, &mut contenders)?;
                if !kind.ends_with("warm") {
                    peaks(&cell, kind, subject, &contenders)?;
                }
            }
        }
    }
    Ok(())
}
