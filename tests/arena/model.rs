//! Random steps against a naive model.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tenslab::memory::{
    Allocator, Buffer, Limit, Request, SharedAllocator, StepArena, StepError, Tag,
};

use super::{add_up, both};

#[derive(Debug, Clone)]
enum Operation {
    Allocate {
        bytes: usize,
        align: usize,
        zeroed: bool,
        tag: Tag,
    },
    /// One of those that are out.
    Drop(usize),
    DropAll,
    End,
    Retire,
    Trim,
    Reserve(usize),
    Limit(usize),
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![0..200_usize, 0..5000_usize, 0..100_000_usize]
}

fn operation() -> impl Strategy<Value = Operation> {
    let tags = prop::sample::select(Tag::ALL.to_vec());
    prop_oneof![
        12 => (sizes(), 0..15_u32, any::<bool>(), tags).prop_map(|(bytes, log, zeroed, tag)| {
            Operation::Allocate { bytes, align: 1 << log, zeroed, tag }
        }),
        8 => any::<usize>().prop_map(Operation::Drop),
        1 => Just(Operation::DropAll),
        2 => Just(Operation::End),
        1 => Just(Operation::Retire),
        1 => Just(Operation::Trim),
        1 => sizes().prop_map(Operation::Reserve),
        1 => (0..1_000_000_usize).prop_map(Operation::Limit),
    ]
}

/// What the arena should know: which bytes are out, of which step, for whom.
#[derive(Default)]
struct Model {
    step: u64,
    allocations: u64,
    out: Vec<Out>,
    ranges: BTreeMap<usize, usize>,
}

struct Out {
    buffer: Buffer,
    /// Of which step.
    step: u64,
    pattern: u8,
}

impl Model {
    fn enter(&mut self, mut buffer: Buffer) {
        let (start, end) = (
            buffer.as_ptr().addr(),
            buffer.as_ptr().addr() + buffer.len(),
        );
        let below = self.ranges.range(..end).next_back();
        assert!(
            below.is_none_or(|(_, &before)| before <= start),
            "two have a byte"
        );
        let pattern = self.allocations as u8 ^ 0x5a;
        buffer.as_mut_slice().fill(pattern);
        if !buffer.is_empty() {
            self.ranges.insert(start, end);
            self.allocations += 1;
        }
        let step = self.step;
        self.out.push(Out {
            buffer,
            step,
            pattern,
        });
    }

    fn leave(&mut self, out: Out) {
        let bytes = out.buffer.as_slice();
        assert!(
            bytes.iter().all(|&byte| byte == out.pattern),
            "written by another"
        );
        self.ranges.remove(&out.buffer.as_ptr().addr());
    }

    /// Allocations that keep the step from ending. A retired step's chunk may be used by
    /// nobody any more, so these are those of this step.
    fn live(&self) -> impl Iterator<Item = &Out> {
        let live = |out: &&Out| out.step == self.step && !out.buffer.is_empty();
        self.out.iter().filter(live)
    }

    fn ended(&mut self) {
        self.step += 1;
        self.allocations = 0;
    }
}

fn run(operations: Vec<Operation>, arena: &StepArena, room: &SharedAllocator, limit: &Limit) {
    let mut model = Model::default();
    for operation in operations {
        match operation {
            Operation::Allocate {
                bytes,
                align,
                zeroed,
                tag,
            } => {
                let room = room.with_tag(tag);
                let found = if zeroed {
                    room.allocate_zeroed(bytes, align)
                } else {
                    room.allocate(bytes, align)
                };
                match found {
                    Ok(buffer) => {
                        assert!(buffer.as_ptr().addr().is_multiple_of(align));
                        assert!(!zeroed || buffer.as_slice().iter().all(|&byte| byte == 0));
                        model.enter(buffer);
                    }
                    Err(_) => {
                        // Never while a chunk that just holds it would fit the limit.
                        let request = Request::new(bytes, align).unwrap();
                        let least = (StepArena::footprint(&request) + 128).next_multiple_of(4096);
                        assert!(limit.available_bytes() < least, "{bytes} at {align}");
                    }
                }
            }
            Operation::Drop(which) => {
                if !model.out.is_empty() {
                    let out = model.out.swap_remove(which % model.out.len());
                    model.leave(out);
                }
            }
            Operation::DropAll => {
                for out in std::mem::take(&mut model.out) {
                    model.leave(out);
                }
            }
            Operation::End => match arena.end_step() {
                Ok(stats) => {
                    assert_eq!(model.live().count(), 0);
                    assert_eq!(
                        (stats.step, stats.allocations),
                        (model.step, model.allocations)
                    );
                    model.ended();
                }
                Err(StepError::Live {
                    step,
                    allocations,
                    by_tag,
                }) => {
                    assert_eq!((step, allocations), (model.step, model.live().count()));
                    for tag in Tag::ALL {
                        let of = model.live().filter(|out| out.buffer.tag() == tag).count();
                        assert_eq!(by_tag[tag], of, "{tag}");
                    }
                    assert!(allocations > 0);
                }
                Err(error) => panic!("{error}"),
            },
            Operation::Retire => {
                let stats = arena.retire_step();
                assert_eq!(
                    (stats.step, stats.allocations),
                    (model.step, model.allocations)
                );
                model.ended();
                let out = model.out.iter().filter(|out| !out.buffer.is_empty());
                assert_eq!(stats.parked_allocations, out.count());
            }
            Operation::Trim => {
                let before = arena.stats().reserved_bytes;
                assert_eq!(arena.trim(), before - arena.stats().reserved_bytes);
            }
            Operation::Reserve(bytes) => {
                let _ = arena.reserve(&[Request::new(bytes, 64).unwrap()]);
            }
            Operation::Limit(bytes) => limit.set_limit_bytes(bytes),
        }
        let (stats, out) = (arena.stats(), || {
            model.out.iter().map(|out| out.buffer.len())
        });
        add_up(stats);
        assert_eq!(stats.requested_bytes, out().sum::<usize>());
        let rounded = out().map(|bytes| bytes.next_multiple_of(64));
        assert_eq!(stats.live_bytes, rounded.sum::<usize>());
        assert_eq!(limit.used_bytes(), stats.reserved_bytes);
        assert_eq!(arena.live(), model.live().count());
    }
    for out in std::mem::take(&mut model.out) {
        model.leave(out);
    }
    arena.end_step().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_steps_are_as_a_naive_model_says(operations in vec(operation(), 1..150)) {
        let limit = Limit::new(1_000_000);
        let (arena, room) = both(StepArena::new().with_limit(&limit));
        run(operations, &arena, &room, &limit);
        drop((arena, room));
        prop_assert_eq!(limit.used_bytes(), 0);
    }

    /// Lessons row 42: what was planned is there, whatever its alignments, its order, and
    /// where the arena stands.
    #[test]
    fn what_was_reserved_never_fails(
        before in vec((sizes(), 0..15_u32), 0..5),
        plan in vec((sizes(), 0..20_u32), 1..30),
        order in vec(any::<usize>(), 30),
        drops in vec(any::<bool>(), 30),
    ) {
        let limit = Limit::unlimited();
        let (arena, room) = both(StepArena::new().with_limit(&limit));
        let allocate = |bytes, log: u32| room.allocate(bytes, 1_usize << log).unwrap();
        let _before: Vec<_> = before.into_iter().map(|(bytes, log)| allocate(bytes, log)).collect();
        let mut plan: Vec<_> = plan
            .into_iter()
            .map(|(bytes, log)| Request::new(bytes, 1 << log).unwrap())
            .collect();
        arena.reserve(&plan).unwrap();
        let used = limit.used_bytes();
        limit.set_limit_bytes(0);
        let mut held = Vec::new();
        for (which, gives_back) in order.into_iter().zip(drops) {
            if plan.is_empty() {
                break;
            }
            let request = plan.swap_remove(which % plan.len());
            held.push(room.allocate(request.bytes(), request.align()).unwrap());
            if gives_back {
                held.swap_remove(which % held.len());
            }
        }
        prop_assert_eq!(limit.used_bytes(), used);
    }
}
