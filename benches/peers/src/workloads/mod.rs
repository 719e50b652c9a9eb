//! What is done with the memory.
//!
//! | name | what | after |
//! |---|---|---|
//! | `pair` | take one, give it back | Arrow's allocator bench |
//! | `larson` | replace a random one of many; threads swap what they hold now and then | larson |
//! | `xmalloc` | one thread takes, another gives back | xmalloc-test |
//! | `scratch` | write much to a small block that lay beside another thread's | Hoard's cache-scratch |
//! | `mstress` | threads are born, take, swap, leave survivors, and die | mimalloc's mstress |
//! | `mleak` | a thread leaves one block behind when it dies | mleak |
//! | `rptest` | replace a random one; every second one is given back by the other thread | rptest |
//! | `random` | random sizes, 73 takes in 100, at most so much out | RMM's random allocations |
//! | `churn` | fill one of 20 places anew with 5 to 25 MiB | mimalloc-bench's malloc-large |
//! | `prefill`, `drift` | prompts of varying length and what stays; a batch that grows | PyTorch's notes |
//! | `recorded` | what a CSV has recorded | RMM's replay |
//! | `steps`, `take@N`, `end@N` | scratch that all goes back at the end of a step | bumpalo |

mod many;
mod pair;
mod passed;
mod play;
mod scratch;
mod short_lived;
pub mod steps;

pub use self::many::Larson;
pub use self::pair::Pair;
pub use self::passed::{Rptest, Xmalloc};
pub use self::play::{Play, Script};
pub use self::scratch::Scratch;
pub use self::short_lived::{Mleak, Mstress};
pub use self::steps::{Part, Step, Steps};

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::contender::{self, Contender, Shape};
use crate::pace::Pace;
use crate::race::Settings;
use crate::report;

/// What a workload is called in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// What is done.
    pub workload: Cow<'static, str>,
    /// Bytes of a request.
    pub bytes: usize,
    /// Is one byte of every page written before the block goes back?
    pub touched: bool,
    /// Threads that do it at once.
    pub threads: usize,
}

impl Cell {
    /// `pair/64KiB/untouched/1`.
    pub fn name(&self) -> String {
        let touched = if self.touched { "touched" } else { "untouched" };
        let size = report::size(self.bytes).replace(' ', "");
        format!("{}/{size}/{touched}/{}", self.workload, self.threads)
    }
}

/// Something that threads do with a contender.
pub trait Workload: Sync + 'static {
    /// What the threads share besides the contender. It outlives the turns.
    type Shared<C: Contender>: Sync;

    /// What this is.
    fn cell(&self) -> Cell;

    /// What a contender has to be ready for.
    fn shape(&self) -> Shape;

    /// Threads that the race starts.
    fn seats(&self) -> usize {
        self.cell().threads
    }

    /// Are those threads pinned, each to a core?
    fn pins(&self) -> bool {
        true
    }

    /// Makes `contender` do once what the race will ask of it.
    fn warm<C: Contender>(&self, contender: &C) {
        contender::warm(contender, self.shape(), self.cell().touched);
    }

    /// What the threads will share.
    fn prepare<C: Contender>(&self, contender: &C) -> Self::Shared<C>;

    /// One thread's part, until `pace` says that it is over.
    fn work<C: Contender>(
        &self,
        contender: &C,
        hand: &mut C::Hand<'_>,
        shared: &Self::Shared<C>,
        seat: usize,
        settings: &Settings,
        pace: &mut Pace<'_>,
    );

    /// Gives back what is still held, after all turns.
    fn settle<C: Contender>(&self, contender: &C, shared: &Self::Shared<C>);
}

/// Marsaglia's xorshift: a seeded sequence, the same for every contender.
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn new(seed: usize) -> Self {
        Self(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed as u64 + 1))
    }

    /// A number below `sides`.
    #[inline]
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper half, scaled: no division.
        let upper = self.0 >> 32;
        usize::try_from((upper * sides as u64) >> 32).expect("below `sides`")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::contender::Shared;
    use crate::pool_workloads::PoolWorkload;
    use crate::race::Field;
    use crate::roster::Entrants;

    /// Knows which blocks are out.
    #[derive(Default)]
    struct Books {
        out: HashSet<usize>,
        taken: u64,
        most_out: usize,
    }

    struct Ledger(Arc<Mutex<Books>>);

    struct Held(Box<[u8]>);

    impl Shared for Ledger {
        type Held = Held;

        fn take(&self, bytes: usize) -> Held {
            let held = Held(vec![0; bytes].into_boxed_slice());
            let mut books = self.0.lock().unwrap();
            assert!(books.out.insert(held.0.as_ptr().addr()));
            books.taken += 1;
            books.most_out = books.most_out.max(books.out.len());
            held
        }

        fn give(&self, held: Held) {
            let mut books = self.0.lock().unwrap();
            assert!(books.out.remove(&held.0.as_ptr().addr()), "given twice");
        }

        fn start(held: &Held) -> *mut u8 {
            held.0.as_ptr().cast_mut()
        }
    }

    /// Every block comes back once, and no more are out than contenders were told.
    fn keeps_books(workload: &impl Workload) {
        let settings = Settings {
            rounds: 3,
            slice: Duration::from_millis(2),
            warm_up: Duration::from_millis(2),
            cores: crate::system::cores(),
            contenders: Vec::new(),
        };
        let cell = workload.cell();
        let books = Arc::new(Mutex::new(Books::default()));
        let mut field = Field::new(workload, &settings);
        field.add("ledger", 1, |shape| {
            books.lock().unwrap().out.reserve(2 * shape.blocks);
            Ledger(Arc::clone(&books))
        });
        let rows = field.race();
        let books = books.lock().unwrap();
        assert_eq!(books.out.len(), 0, "{cell:?} keeps blocks");
        assert!(
            books.most_out <= workload.shape().blocks,
            "{cell:?}: {} blocks are out at once",
            books.most_out
        );
        let [row] = &rows[..] else {
            panic!("one contender, one row: {rows:?}");
        };
        assert!(row.batches >= 3, "{row:?}");
        assert!(row.min_ns > 0.0 && row.min_ns <= row.p50_ns && row.p50_ns <= row.p99_ns);
        // A ledger's blocks are the heap's: one for each that is taken.
        assert!(row.heap_blocks >= 0.9, "{row:?}");
    }

    #[test]
    fn every_block_that_is_taken_is_given_back_once() {
        let bytes = 4096;
        for threads in [1, 2] {
            for touched in [false, true] {
                keeps_books(&Pair {
                    bytes,
                    touched,
                    threads,
                });
            }
            keeps_books(&Larson { bytes, threads });
            keeps_books(&Mstress { bytes, threads });
            keeps_books(&Scratch { bytes: 8, threads });
        }
        for threads in [1, 2] {
            keeps_books(&Xmalloc { bytes, threads });
        }
        keeps_books(&Rptest { bytes });
        keeps_books(&Mleak { bytes });
        for touched in [false, true] {
            keeps_books(&Steps::new(20, touched));
            keeps_books(&Play {
                name: "prefill",
                script: Script::new(&PoolWorkload::Prefill.events()[..300], 256),
                bytes,
                touched,
            });
        }
        for part in [Part::Take, Part::End] {
            keeps_books(&Step { blocks: 50, part });
        }
    }

    #[test]
    fn a_script_gives_back_what_its_events_leave_out_and_uses_places_again() {
        let events = PoolWorkload::Churn.events();
        let script = Script::new(&events, 1);
        assert_eq!(script.blocks(), PoolWorkload::Churn.pins().blocks);
        assert_eq!(script.shape().blocks, 20);
        assert_eq!(
            script.peak_bytes(),
            PoolWorkload::Churn.pins().peak_live_bytes
        );
        let small = Script::new(&events, 1 << 30);
        assert_eq!(small.peak_bytes(), 20, "no block is empty");
    }

    #[test]
    fn steps_are_heavy_tailed() {
        let steps = steps::heavy_tailed(10_000);
        let mut sizes: Vec<usize> = steps.iter().map(|step| step.iter().sum()).collect();
        assert!(steps.iter().flatten().all(|&bytes| bytes > 0));
        sizes.sort_unstable();
        let all: usize = sizes.iter().sum();
        let largest: usize = sizes[9_900..].iter().sum();
        assert!(
            largest * 4 > all,
            "a hundredth of the steps is a quarter of the bytes or more"
        );
        assert!(
            sizes[5_000] < 128 << 10,
            "and half of them are small: {}",
            sizes[5_000]
        );
    }

    #[test]
    fn dice_reach_every_side_and_no_other() {
        let mut dice = Dice::new(0);
        let mut seen = [0_u32; 7];
        for _ in 0..7000 {
            seen[dice.below(7)] += 1;
        }
        assert!(seen.iter().all(|&times| times > 800), "{seen:?}");
    }
}
