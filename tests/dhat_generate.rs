//! The heap that tenslab takes in a run of the example is what a file says, or less.
//!
//! ```text
//!   weights, cache, arena, a prompt, 24 tokens ─▶ dhat, every stack ─▶ those with tenslab in
//!   tests/golden/heap_budget.json               ◀── compared ──        them, by layer
//! ```
//!
//! Each heap block is counted for the layer whose function is the innermost of its stack. Blocks of
//! the example itself, the tokenizer and the thread pool have no such function. Memory that comes
//! from the system's pages (slabs, large blocks) is no heap.
//!
//! To write the file anew: `TENSLAB_UPDATE_BUDGET=1 cargo test --all-features --test dhat_generate`.
//! dhat is the global allocator of this binary and counts every thread, so it has no test
//! harness. Where the heap stands in for pages there is more of it, and a sanitizer has a heap
//! of its own: nothing is compared there.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails should panic, and one that passes says so"
)]
#![allow(
    dead_code,
    unused_imports,
    reason = "main.rs, which uses all of the parts, is not here"
)]
#![allow(
    clippy::disallowed_types,
    reason = "the library's door to std::sync is not for what stands outside it"
)]

/// Parts of the example, under the names that they have there.
macro_rules! parts {
    ($($path:literal $name:ident,)*) => {
        $(
            #[cfg(not(any(loom, tenslab_asan, tenslab_portable)))]
            #[path = $path]
            mod $name;
        )*
    };
}

parts! {
    "../examples/generate/args.rs" args,
    "../examples/generate/attention.rs" attention,
    "../examples/generate/config.rs" config,
    "../examples/generate/embedded.rs" embedded,
    "../examples/generate/kernels/mod.rs" kernels,
    "../examples/generate/model.rs" model,
    "../examples/generate/run.rs" run,
    "../examples/generate/sampler.rs" sampler,
    "../examples/generate/text.rs" text,
    "../examples/generate/threads.rs" threads,
    "../examples/generate/trouble.rs" trouble,
    "../examples/generate/view.rs" view,
    "../examples/generate/weights.rs" weights,
}

/// In the place of the example's own counting allocator: there is one for a process.
mod counting {
    pub(crate) fn blocks() -> u64 {
        dhat::HeapStats::get().total_blocks
    }

    pub(crate) fn plant(_count: u64) {}
}

#[cfg(not(any(loom, tenslab_asan, tenslab_portable)))]
mod budget {
    use std::collections::BTreeMap;
    use std::fmt::Write;
    use std::path::Path;
    use std::sync::Arc;

    use clap::Parser;
    use serde_json::Value;
    use tenslab::kv::{KvCache, KvDims, KvLimits, KvSpec};
    use tenslab::memory::{self, Storage};
    use tenslab::{SharedAllocator, SlabAllocator, StepArena};

    use crate::args::Args;
    use crate::attention::BLOCK_TOKENS;
    use crate::config::Config;
    use crate::kernels::Kernels;
    use crate::model::{Model, Room};
    use crate::run::{Outcome, Run};
    use crate::text::Vocabulary;
    use crate::threads::Team;

    const BUDGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/heap_budget.json");

    /// A layer's heap blocks and their bytes, over the whole run.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    struct Heap {
        blocks: u64,
        bytes: u64,
    }

    /// By layer.
    type Heaps = BTreeMap<String, Heap>;

    /// What `work` takes of the heap.
    fn profile<T>(work: impl FnOnce() -> T) -> (Heaps, T) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("heap.json");
        let counting = dhat::Profiler::builder()
            .file_name(&file)
            .trim_backtraces(None)
            .build();
        let done = work();
        drop(counting);
        (heaps(&std::fs::read_to_string(file).unwrap()), done)
    }

    /// The layer that a frame's function is of: `0x1234: tenslab::kv::cache::… (src/kv/…)`.
    fn layer(frame: &str) -> Option<&str> {
        let function = frame
            .split_once(": ")
            .map_or(frame, |(_, function)| function);
        let path = function.trim_start_matches(['<', '&']);
        let rest = path.strip_prefix("tenslab")?;
        // Both manglings: `tenslab::kv` and `tenslab[0123456789abcdef]::kv`.
        let rest = match rest.strip_prefix('[') {
            Some(hash) => hash.split_once(']')?.1,
            None => rest,
        };
        let name = rest.strip_prefix("::")?;
        Some(name.split("::").next().unwrap_or(name))
    }

    /// dhat's report, by layer.
    fn heaps(report: &str) -> Heaps {
        let report: Value = serde_json::from_str(report).unwrap();
        let frames = report["ftbl"].as_array().unwrap();
        let mut heaps = Heaps::new();
        for point in report["pps"].as_array().unwrap() {
            // The innermost comes first.
            let stack = point["fs"].as_array().unwrap().iter();
            let mut stack = stack.map(|at| {
                frames[usize::try_from(at.as_u64().unwrap()).unwrap()]
                    .as_str()
                    .unwrap()
            });
            if let Some(layer) = stack.find_map(layer) {
                let heap = heaps.entry(layer.to_owned()).or_default();
                heap.blocks += point["tbk"].as_u64().unwrap();
                heap.bytes += point["tb"].as_u64().unwrap();
            }
        }
        heaps
    }

    fn as_json(heaps: &Heaps) -> String {
        let mut text = "{\n".to_owned();
        for (at, (layer, heap)) in heaps.iter().enumerate() {
            let comma = if at + 1 == heaps.len() { "" } else { "," };
            let (blocks, bytes) = (heap.blocks, heap.bytes);
            writeln!(
                text,
                "  \"{layer}\": {{ \"blocks\": {blocks}, \"bytes\": {bytes} }}{comma}"
            )
            .unwrap();
        }
        text + "}\n"
    }

    fn read_budget() -> Heaps {
        let text =
            std::fs::read_to_string(BUDGET).unwrap_or_else(|error| panic!("{BUDGET}: {error}"));
        let budget: BTreeMap<String, BTreeMap<String, u64>> = serde_json::from_str(&text).unwrap();
        let heap = |of: BTreeMap<String, u64>| Heap {
            blocks: of["blocks"],
            bytes: of["bytes"],
        };
        budget
            .into_iter()
            .map(|(layer, of)| (layer, heap(of)))
            .collect()
    }

    /// What is above the budget, a line each.
    fn above(heaps: &Heaps, budget: &Heaps) -> Vec<String> {
        let mut lines = Vec::new();
        for (layer, heap) in heaps {
            let most = budget.get(layer).copied().unwrap_or_default();
            if heap.blocks > most.blocks || heap.bytes > most.bytes {
                lines.push(format!(
                    "{layer}: {} blocks of {} bytes, where {} of {} are allowed",
                    heap.blocks, heap.bytes, most.blocks, most.bytes
                ));
            }
        }
        lines
    }

    /// What `main.rs` does, on one thread, and nothing printed.
    fn generate(directory: &Path) -> Outcome {
        let line =
            "generate --threads 1 --json --max-tokens 24 --context 256 --prompt-ids 1,2,3,4,5";
        let args = Args::parse_from(line.split(' '));
        let config = Config::read(directory).unwrap();
        let weights = crate::weights::bring(directory, &args).unwrap();
        let model = Model::new(config, &weights).unwrap();
        drop(weights);
        let team = Team::new(args.threads()).unwrap();
        let config = model.config();
        let dims = KvDims {
            layers: config.layers,
            kv_heads: config.kv_heads,
            key_dim: config.head_dim,
            value_dim: config.head_dim,
            block_tokens: BLOCK_TOKENS,
        };
        let limits = KvLimits {
            blocks: 8,
            max_sequences: 1,
            max_blocks_per_sequence: 8,
        };
        let spec = KvSpec::new(dims, args.kv_dtype).unwrap();
        let cache = KvCache::new(spec, limits, memory::cpu()).unwrap();
        let prompts = [args.prompt_ids.as_ref().unwrap()[0].0.clone()];
        let step_bytes = model.step_bytes(prompts[0].len()).unwrap();
        let arena = Arc::new(StepArena::new().with_room(step_bytes));
        let logits = SlabAllocator::new(model.logits_bytes(), 1).unwrap();
        let room = Room::new(
            &SharedAllocator::new(Arc::clone(&arena)),
            &SharedAllocator::new(logits),
        );
        let run = Run {
            args: &args,
            model: &model,
            kernels: Kernels::best(),
            team: &team,
            cache: &cache,
            arena: &arena,
            room: &room,
            vocabulary: &Vocabulary::Bytes,
            prompts: &prompts,
            context: 256,
        };
        run.go::<f32>().unwrap()
    }

    pub(crate) fn a_run_takes_no_more_heap_than_its_budget() {
        // The parser can fail: what it does not know is not counted, and what it knows is.
        assert_eq!(
            layer("0x1: tenslab::kv::cache::open (src/kv/cache.rs:1:2)"),
            Some("kv")
        );
        assert_eq!(
            layer("0x1: <tenslab[0af]::memory::x::Y as Z>::new (a:1:2)"),
            Some("memory")
        );
        assert_eq!(layer("0x1: core::ops::f<tenslab::kv::Cache> (a:1:2)"), None);
        assert_eq!(layer("0x1: tenslabs::kv::f (a:1:2)"), None);

        // A buffer of the process's heap and the header of its storage: two, and their bytes.
        let cpu = memory::cpu();
        let (planted, storage) = profile(|| Storage::from(cpu.allocate(100, 64).unwrap()));
        drop(storage);
        let two = Heap {
            blocks: 2,
            bytes: 100 + 64,
        };
        assert_eq!(planted, Heaps::from([("memory".to_owned(), two)]));

        // Names of files are heap, too: a folder with a short name of always the same length.
        let embedded = crate::embedded::write().unwrap();
        std::env::set_current_dir(embedded.path()).unwrap();
        let (heaps, outcome) = profile(|| generate(Path::new(".")));
        assert_eq!(outcome.texts[0].made.tokens.len(), 24);
        assert_eq!(outcome.heap_blocks, 0, "after the first token");

        if std::env::var_os("TENSLAB_UPDATE_BUDGET").is_some() {
            std::fs::write(BUDGET, as_json(&heaps)).unwrap();
        }
        let budget = read_budget();
        let problems = above(&heaps, &budget);
        let advice = "if that is meant, write the budget anew: TENSLAB_UPDATE_BUDGET=1 cargo test \
                  --all-features --test dhat_generate";
        assert!(
            problems.is_empty(),
            "{}\n{advice}\nnow: {}",
            problems.join("\n"),
            as_json(&heaps)
        );
        // One block more is above it.
        for layer in budget.keys() {
            let mut more = budget.clone();
            more.get_mut(layer).unwrap().blocks += 1;
            assert_eq!(above(&more, &budget).len(), 1);
        }
    }
}

#[cfg(not(any(loom, tenslab_asan, tenslab_portable)))]
#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

fn main() {
    #[cfg(not(any(loom, tenslab_asan, tenslab_portable)))]
    {
        budget::a_run_takes_no_more_heap_than_its_budget();
        println!("a run of the example takes no more heap than its budget: ok");
    }
    #[cfg(any(loom, tenslab_asan, tenslab_portable))]
    println!("nothing is compared in this build: its heap is another one");
}
