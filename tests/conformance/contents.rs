//! Whose bytes are whose: seeded programs against a map of address ranges.
//!
//! Every buffer is filled with bytes of its own and looked at before it goes; every range
//! is looked up among those that are out. Two threads share one map, which each enters
//! after it got a buffer and leaves before it gives it back.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tenslab::memory::{Buffer, SharedAllocator};

use super::probe::Dice;
use super::{is_long, stacks};

/// Start and end of what is out.
#[derive(Default)]
struct Ranges(Mutex<BTreeMap<usize, usize>>);

impl Ranges {
    fn enter(&self, buffer: &Buffer, what: &str) {
        let start = buffer.as_ptr().addr();
        let end = start + buffer.len();
        let mut ranges = self.0.lock().unwrap();
        let below = ranges.range(..end).next_back();
        assert!(
            below.is_none_or(|(_, &before)| before <= start),
            "{what}: two have the bytes from {start:#x} to {end:#x}"
        );
        assert!(ranges.insert(start, end).is_none(), "{what}");
    }

    fn leave(&self, buffer: &Buffer) {
        self.0.lock().unwrap().remove(&buffer.as_ptr().addr());
    }
}

/// Bytes at each end that are all looked at; in between one in so many is.
const EDGE: usize = 256;
const STEP: usize = 1021;

/// Where fill patterns are written and looked at.
fn places(len: usize) -> impl Iterator<Item = usize> {
    // Where the edges meet, everything is.
    let edge = if len <= 2 * EDGE { 0 } else { EDGE };
    let step = if edge == 0 { 1 } else { STEP };
    (0..edge)
        .chain((edge..len - edge).step_by(step))
        .chain(len - edge..len)
}

fn fill(buffer: &mut Buffer, pattern: u8) {
    let len = buffer.len();
    let bytes = buffer.as_mut_slice();
    for at in places(len) {
        bytes[at] = pattern.wrapping_add(at as u8);
    }
}

fn holds(buffer: &Buffer, pattern: u8) -> bool {
    let bytes = buffer.as_slice();
    places(buffer.len()).all(|at| bytes[at] == pattern.wrapping_add(at as u8))
}

/// `steps` random steps: a buffer comes, or one goes. `most` are out at a time.
fn program(
    allocator: &SharedAllocator,
    ranges: &Ranges,
    dice: &mut Dice,
    steps: usize,
    most: usize,
    name: &str,
) {
    let mut live: Vec<(Buffer, u8)> = Vec::with_capacity(most);
    for step in 0..steps {
        let what = || format!("{name}, step {step}");
        if live.len() < most && dice.below(5) < 3 {
            let scale = 1 << (1 + dice.below(18));
            let (bytes, align) = (1 + dice.below(scale), 1 << dice.below(13));
            let zeroed = dice.below(8) == 0;
            let found = if zeroed {
                allocator.allocate_zeroed(bytes, align)
            } else {
                allocator.allocate(bytes, align)
            };
            let mut buffer = found.unwrap_or_else(|error| panic!("{}: {error}", what()));
            assert!(buffer.as_ptr().addr().is_multiple_of(align), "{}", what());
            ranges.enter(&buffer, name);
            if zeroed {
                assert!(buffer.as_slice().iter().all(|&b| b == 0), "{}", what());
            }
            let pattern = dice.roll() as u8;
            fill(&mut buffer, pattern);
            live.push((buffer, pattern));
        } else if !live.is_empty() {
            let (buffer, pattern) = live.swap_remove(dice.below(live.len()));
            assert!(holds(&buffer, pattern), "{}", what());
            ranges.leave(&buffer);
        }
    }
    for (buffer, pattern) in live {
        assert!(holds(&buffer, pattern), "{name}, at the end");
        ranges.leave(&buffer);
    }
}

/// A million steps over all stacks; in the long run, for each.
#[test]
fn buffers_that_are_out_never_share_a_byte() {
    const STEPS: usize = 1_000_000;
    let each = if is_long() {
        STEPS
    } else {
        STEPS / stacks().count() + 1
    };
    let mut steps = 0;
    for (seed, stack) in (0..).zip(stacks()) {
        let ranges = Ranges::default();
        program(
            &stack.allocator,
            &ranges,
            &mut Dice(seed),
            each,
            48,
            &stack.name,
        );
        assert_eq!(stack.allocator.outstanding(), 0, "{}", stack.name);
        assert_eq!(stack.allocator.stats().live_bytes, 0, "{}", stack.name);
        steps += each;
    }
    assert!(steps >= STEPS);
}

/// Two threads, one map.
#[test]
fn two_threads_never_have_the_same_byte() {
    let steps = if is_long() { 200_000 } else { 3_000 };
    for (seed, stack) in (0..).zip(stacks()) {
        let ranges = Ranges::default();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (allocator, ranges, name) = (stack.allocator.clone(), &ranges, &stack.name);
                scope.spawn(move || {
                    let mut dice = Dice(1000 * seed + thread);
                    program(&allocator, ranges, &mut dice, steps, 24, name);
                });
            }
        });
        assert_eq!(stack.allocator.outstanding(), 0, "{}", stack.name);
        assert_eq!(stack.allocator.stats().live_bytes, 0, "{}", stack.name);
    }
}

/// Threads fill what they get, hand half of it on, and look at what they kept. Who gets
/// the rest never allocated anything.
#[test]
fn buffers_cross_threads_and_keep_what_was_written() {
    for stack in stacks() {
        let (to_other, from_other) = std::sync::mpsc::sync_channel::<(Buffer, u8)>(16);
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (allocator, to_other) = (stack.allocator.clone(), to_other.clone());
                scope.spawn(move || {
                    let mut dice = Dice(seed);
                    let mut kept: Vec<(Buffer, u8)> = Vec::new();
                    for _ in 0..200 {
                        let mut buffer = allocator.allocate(1 + dice.below(3000), 64).unwrap();
                        let pattern = dice.roll() as u8;
                        fill(&mut buffer, pattern);
                        if dice.below(2) == 0 {
                            to_other.send((buffer, pattern)).unwrap();
                        } else {
                            kept.push((buffer, pattern));
                        }
                        if kept.len() > 10 {
                            let (buffer, pattern) = kept.swap_remove(dice.below(kept.len()));
                            assert!(holds(&buffer, pattern));
                        }
                    }
                });
            }
            drop(to_other);
            scope.spawn(move || {
                for (buffer, pattern) in from_other {
                    assert!(holds(&buffer, pattern));
                }
            });
        });
        assert_eq!(stack.allocator.outstanding(), 0, "{}", stack.name);
        assert_eq!(stack.allocator.stats().live_bytes, 0, "{}", stack.name);
    }
}

/// The map sees an overlap, and the pattern a byte that somebody else wrote.
#[test]
fn the_oracle_can_fail() {
    let allocator = SharedAllocator::new(tenslab::CpuAllocator::new());
    let mut buffer = allocator.allocate(100_000, 64).unwrap();
    for len in [
        0,
        1,
        EDGE - 1,
        EDGE,
        EDGE + 1,
        2 * EDGE,
        2 * EDGE + 1,
        100_000,
    ] {
        let mut last = None;
        for at in places(len) {
            assert!(
                at < len && last.is_none_or(|before| before < at),
                "{at} of {len}"
            );
            last = Some(at);
        }
        assert_eq!(last, len.checked_sub(1));
    }
    fill(&mut buffer, 7);
    assert!(holds(&buffer, 7));
    buffer.as_mut_slice()[99_999] ^= 1;
    assert!(!holds(&buffer, 7));
    let ranges = Ranges::default();
    ranges.enter(&buffer, "once");
    let again = std::panic::AssertUnwindSafe(|| ranges.enter(&buffer, "twice"));
    assert!(std::panic::catch_unwind(again).is_err());
}
