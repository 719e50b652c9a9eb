//! One copy of the weights for two processes.
//!
//! ```text
//!   cargo run --release --example sealed                  # 64 MiB made up for it
//!   cargo run --release --example sealed -- MODEL         # a checkpoint: file, index, directory
//!
//!   parent   Weights::seal ──▶ memory ── descriptor, as standard input ──▶ two workers
//!   worker   Weights::map_sealed ──▶ tensors ──▶ a checksum, and what the kernel counts
//! ```
//!
//! The kernel says how often the memory is there. A page that two processes have counts half to
//! each in `Pss`, so the `Pss` of both workers together is the memory's length, once. A worker
//! trusts neither the parent nor the checkpoint: `map_sealed` is safe, and checks the seals.
//!
//! A worker's standard input is the memory, so the two talk through its standard output, which
//! is a socket: a worker says that it touched all of it, is told that the other one did too,
//! and says what it counted.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
mod here {
    use std::error::Error;
    use std::ffi::OsStr;
    use std::fs::{self, File};
    use std::io::{self, BufRead, BufReader, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use tenslab::memory::{self, Storage};
    use tenslab::weights::{LoadOptions, Weights, save};
    use tenslab::{DType, Tensor};

    type Outcome<T> = Result<T, Box<dyn Error>>;

    /// The argument that makes a process a worker.
    const WORKER: &str = "--worker";

    pub(super) fn main() -> Outcome<()> {
        let argument = std::env::args_os().nth(1);
        match argument.as_deref() {
            Some(word) if word == OsStr::new(WORKER) => work(),
            Some(word) if word.as_encoded_bytes().starts_with(b"-") => {
                Err("usage: sealed [MODEL], a safetensors file, an index or a directory".into())
            }
            Some(path) => lead(Path::new(path)),
            None => {
                let directory = tempfile::tempdir()?;
                let path = directory.path().join("model.safetensors");
                make_up(&path)?;
                lead(&path)
            }
        }
    }

    /// The parent: seals, starts two workers, and adds up what they say.
    fn lead(path: &Path) -> Outcome<()> {
        let before = shared_memory()?;
        let sealed = Weights::seal(path, &LoadOptions::default())?;
        let bytes = sealed.bytes();
        println!("sealed {bytes} bytes of {}", path.display());
        let file = File::from(sealed.try_clone()?);
        let pages = file.metadata()?.blocks() * 512;
        let workers = [
            Worker::start(sealed.try_clone()?),
            Worker::start(sealed.into()),
        ];
        let mut workers = workers.into_iter().collect::<Outcome<Vec<_>>>()?;
        for worker in &mut workers {
            worker.hear("touched")?;
        }
        // Now both have all pages.
        let machine = shared_memory()?.saturating_sub(before);
        let mut together = 0;
        for (number, worker) in workers.iter_mut().enumerate() {
            worker.tell("count")?;
            let line = worker.hear("counted")?;
            println!("worker {number}: {line}");
            together += field(&line, "Pss")?;
        }
        for worker in workers {
            worker.end()?;
        }
        let later = file.metadata()?.blocks() * 512;
        println!("both workers together: Pss {together}");
        println!("pages of the memory: {pages} when it was sealed, {later} with two workers");
        println!("shared memory of the machine: {machine} more than before");
        Ok(())
    }

    /// A worker: takes the memory from its standard input, and reads all of it.
    fn work() -> Outcome<()> {
        let memory = io::stdin().as_fd().try_clone_to_owned()?;
        let talk = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
        let (mut hear, mut say) = (BufReader::new(talk.try_clone()?), talk);
        let weights = Weights::map_sealed(memory)?;
        let mut sum = 0_u64;
        for name in weights.names() {
            for &byte in weights.raw(name)?.read_bytes()?.iter() {
                sum = sum.wrapping_mul(31).wrapping_add(u64::from(byte));
            }
        }
        let mut line = String::new();
        writeln!(say, "touched {} tensors", weights.names().count())?;
        hear.read_line(&mut line)?;
        let (rss, pss) = counted(&weights.storages()[0])?;
        writeln!(say, "counted checksum {sum:016x} Rss {rss} Pss {pss}")?;
        // Until the parent hangs up: so long the pages belong to both.
        line.clear();
        hear.read_line(&mut line)?;
        Ok(())
    }

    struct Worker {
        process: Child,
        hear: BufReader<UnixStream>,
        say: UnixStream,
    }

    impl Worker {
        fn start(memory: OwnedFd) -> Outcome<Self> {
            let (ours, theirs) = UnixStream::pair()?;
            let process = Command::new(std::env::current_exe()?)
                .arg(WORKER)
                .stdin(Stdio::from(memory))
                .stdout(Stdio::from(OwnedFd::from(theirs)))
                .spawn()?;
            let hear = BufReader::new(ours.try_clone()?);
            Ok(Self {
                process,
                hear,
                say: ours,
            })
        }

        fn tell(&mut self, word: &str) -> Outcome<()> {
            Ok(writeln!(self.say, "{word}")?)
        }

        /// The rest of its next line, which begins with this word.
        fn hear(&mut self, word: &str) -> Outcome<String> {
            let mut line = String::new();
            self.hear.read_line(&mut line)?;
            let rest = line.strip_prefix(word).ok_or("a worker ended early")?;
            Ok(rest.trim().to_owned())
        }

        fn end(mut self) -> Outcome<()> {
            drop((self.hear, self.say));
            match self.process.wait()?.success() {
                true => Ok(()),
                false => Err("a worker failed".into()),
            }
        }
    }

    /// Of the mapping that a storage is: resident bytes, and this process's share of them.
    fn counted(storage: &Storage) -> Outcome<(u64, u64)> {
        let smaps = fs::read_to_string("/proc/self/smaps")?;
        let begins = format!("{:x}-", storage.as_ptr().addr());
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&begins));
        let mut kib = |name: &str| {
            let line = lines.find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
            let number = number.ok_or("the kernel does not count the mapping")?;
            Outcome::Ok(number.trim().parse::<u64>()? << 10)
        };
        Ok((kib("Rss:")?, kib("Pss:")?))
    }

    /// Shared memory of the whole machine, in bytes.
    fn shared_memory() -> Outcome<u64> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let line = text.lines().find(|line| line.starts_with("Shmem:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(kib.ok_or("/proc/meminfo has no Shmem")?.parse::<u64>()? << 10)
    }

    /// The number behind a name.
    fn field(line: &str, name: &str) -> Outcome<u64> {
        let mut words = line.split(' ').skip_while(|word| *word != name);
        Ok(words.nth(1).ok_or("a number is missing")?.parse()?)
    }

    /// A checkpoint of 64 MiB, no page of which is zero.
    fn make_up(path: &Path) -> Outcome<()> {
        let names: Vec<_> = (0..16)
            .map(|layer| format!("layers.{layer}.weight"))
            .collect();
        let mut tensors = Vec::new();
        for (name, layer) in names.iter().zip(1..) {
            let weight = Tensor::zeros([1024, 1024], DType::F32, memory::cpu())?;
            for (value, at) in weight.write::<f32>()?.iter_mut().zip(0_u16..=u16::MAX) {
                *value = f32::from(at) + layer as f32;
            }
            weight.write::<f32>()?[65_536..].fill(layer as f32);
            tensors.push((name.as_str(), weight));
        }
        save(path, &tensors, &Default::default())?;
        Ok(())
    }
}

#[cfg(all(target_os = "linux", not(tenslab_portable)))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    here::main()
}

#[cfg(not(all(target_os = "linux", not(tenslab_portable))))]
fn main() {
    println!("sealed memory is Linux only");
}
