//! `spike/…`: a gibibyte came and went; is the process small again?
//!
//! ```text
//!   take 1 GiB in blocks, and 64 MiB of others among them, all touched      spike
//!   give the gibibyte back; the 64 MiB stay out                             back
//!   100 steps: eight small blocks each, touched, given back                 steps
//!   trim                                                                    trimmed
//! ```
//!
//! Each column is by how much resident memory had grown then. The blocks that stay lie
//! between those that went, as survivors of a spike do.

use std::time::Instant;

use crate::contender::{Contender, Hand, Shape, touch};
use crate::report::{KIB, size};
use crate::solo::{Figures, Task};
use crate::system;

/// Behind so many blocks that go lies one that stays.
const GOING: usize = 16;

/// A spike of blocks of one size.
pub struct Spike {
    /// Bytes of a block.
    pub bytes: usize,
    /// Bytes that come and go.
    pub spike_bytes: usize,
}

impl Task for Spike {
    fn name(&self) -> String {
        format!("spike/{}", size(self.bytes).replace(' ', ""))
    }

    fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            blocks: 2 * self.spike_bytes / self.bytes,
        }
    }

    fn measure<C: Contender>(&self, make: impl FnOnce() -> C) -> Figures {
        let blocks = self.spike_bytes / self.bytes;
        let mut going = Vec::with_capacity(blocks);
        let mut staying = Vec::with_capacity(blocks / GOING);
        let before = system::settled_bytes();
        let grown = || (system::resident_bytes() - before) as f64;
        let contender = make();
        let mut hand = contender.hand();
        let mut take = |bytes| {
            let held = hand.take(bytes);
            touch::<C::Hand<'_>>(&held, bytes);
            held
        };
        for _ in 0..blocks / GOING {
            going.extend((0..GOING).map(|_| take(self.bytes)));
            staying.push(take(self.bytes));
        }
        let live = (staying.len() * self.bytes) as f64;
        let spike = grown();
        going.into_iter().for_each(|held| hand.give(held));
        let back = grown();
        for _ in 0..100 {
            let small = [4, 8, 12, 16, 24, 32, 48, 64].map(|kib| {
                let held = hand.take(kib * KIB);
                touch::<C::Hand<'_>>(&held, kib * KIB);
                held
            });
            small.into_iter().for_each(|held| hand.give(held));
        }
        let steps = grown();
        let began = Instant::now();
        contender.trim();
        let took = began.elapsed();
        let trimmed = grown();
        staying.into_iter().for_each(|held| hand.give(held));
        Figures::from([
            ("live_bytes".to_owned(), live),
            ("spike_bytes".to_owned(), spike),
            ("back_bytes".to_owned(), back),
            ("steps_bytes".to_owned(), steps),
            ("trimmed_bytes".to_owned(), trimmed),
            ("trimmed_ratio".to_owned(), trimmed / live),
            ("trim_ns".to_owned(), took.as_nanos() as f64),
        ])
    }
}
