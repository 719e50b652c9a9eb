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

mod many;
mod pair;
mod passed;
mod scratch;
mod short_lived;

pub use self::many::Larson;
pub use self::pair::Pair;
pub use self::passed::{Rptest, Xmalloc};
pub use self::scratch::Scratch;
pub use self::short_lived::{Mleak, Mstress};

use crate::contender::{Contender, Shape};
use crate::pace::Pace;
use crate::race::Settings;

/// What a workload is called in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Cell {
    /// What is done.
    pub workload: &'static str,
    /// Bytes of a request.
    pub bytes: usize,
    /// Is one byte of every page written before the block goes back?
    pub touched: bool,
    /// Threads that do it at once.
    pub threads: usize,
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
