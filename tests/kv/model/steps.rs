//! A step of the model: one append, from the taking of its blocks to its end.

use tenslab::kv::{BlockFill, BlockId, KvCounters, KvError, KvSpec, KvStats, Part, Step};
use tenslab::memory::AllocError;

use super::op::{End, Write};
use super::pressure::Room;
use super::{Lab, WIDTH};
use crate::{Number, element, prefix_salts, rows};

/// What there was before the append.
struct Before {
    stats: KvStats,
    counters: KvCounters,
    blocks: Vec<BlockId>,
    /// The last block, if it is partly filled.
    tail: Option<usize>,
    /// Has another sequence that block too?
    is_shared: bool,
    room: Room,
}

/// What a step is to do.
struct Plan {
    before: Before,
    start: usize,
    salts: Vec<u64>,
    write: Write,
    end: End,
    /// Where the slots begin that hold what blocks are filled with.
    untouched_from: usize,
}

/// What it did.
struct Done {
    committed: usize,
    copied: bool,
    warmed: bool,
}

impl Lab {
    fn before(&self, index: usize) -> Before {
        let twin = &self.twins[index];
        let blocks: Vec<_> = twin.real.block_ids().collect();
        let (len, block_tokens) = (twin.tokens.len(), self.block_tokens());
        let tail = (len % block_tokens > 0).then(|| len / block_tokens);
        let has = |tail: usize| {
            let others = self.twins.iter().enumerate();
            others
                .filter(|&(other, _)| other != index)
                .any(|(_, twin)| twin.real.block_ids().any(|id| id == blocks[tail]))
        };
        let stats = self.cache.stats();
        Before {
            room: self.room(&stats, stats.blocks_idle),
            stats,
            counters: self.cache.counters(),
            is_shared: tail.is_some_and(has),
            blocks,
            tail,
        }
    }

    pub(super) fn append<T: Number>(
        &mut self,
        index: usize,
        new: &[u32],
        write: Write,
        end: End,
    ) -> bool {
        let before = self.before(index);
        let block_tokens = self.block_tokens();
        let twin = &mut self.twins[index];
        let start = twin.tokens.len();
        let all = [&twin.tokens[..], new].concat();
        let plan = Plan {
            before,
            start,
            salts: prefix_salts(&all),
            write,
            end,
            untouched_from: twin.untouched_from,
        };
        let cut = twin.cut;
        // One append: what it takes and copies is what is written and committed.
        let done = match twin.real.append(new).map(|step| plan.drive::<T>(step, cut)) {
            Ok(done) => done,
            Err(error) => {
                self.assert_refused(&error, &plan.before, index, new.len());
                self.seen.refused_memory += u64::from(matches!(error, KvError::Alloc(_)));
                return false;
            }
        };
        let is_leaked = matches!(end, End::Forget);
        let blocks: Vec<_> = twin.real.block_ids().collect();
        let had = plan.before.blocks.len();
        if !is_leaked {
            let filled = (start + done.committed).div_ceil(block_tokens);
            assert_eq!(blocks.len(), had.max(filled), "what a step took goes back");
        }
        if done.committed == 0 && !is_leaked {
            let copied = done.copied.then_some(()).and(plan.before.tail);
            for (entry, pair) in blocks.iter().zip(&plan.before.blocks).enumerate() {
                assert!(pair.0 == pair.1 || copied == Some(entry), "entry {entry}");
            }
        }
        twin.leaked = is_leaked;
        twin.cut = false;
        twin.untouched_from = (twin.untouched_from.max(all.len())).min(blocks.len() * block_tokens);
        let committed = done.committed;
        self.seen.copied_and_committed += u64::from(done.copied && committed > 0);
        self.seen.warmed += u64::from(done.warmed);
        self.commit(index, &all[..start + committed]);
        true
    }

    fn assert_refused(&self, error: &KvError, before: &Before, index: usize, new: usize) {
        let (real, block_tokens) = (&self.twins[index].real, self.block_tokens());
        let tokens = self.twins[index].tokens.len() + new;
        let more = (tokens.div_ceil(block_tokens)).saturating_sub(before.blocks.len());
        let may_copy = usize::from(before.tail.is_some());
        match *error {
            KvError::EmptyStep => assert_eq!(new, 0),
            KvError::SequenceTooLong { tokens: asked, max } => {
                assert_eq!((asked, max), (tokens, WIDTH * block_tokens));
                assert!(tokens > max);
            }
            KvError::OutOfBlocks {
                need,
                free,
                evictable,
                total,
            } => {
                let stats = before.stats;
                assert_eq!((free, evictable), (stats.blocks_free, stats.blocks_idle));
                assert!(need > free + evictable && total == self.blocks);
                let copies = need - more;
                assert!(copies <= may_copy && copies >= usize::from(before.is_shared));
            }
            // Blocks there are, and no memory for them. Idle ones may have been forgotten for
            // those that it was asked for first, and the sequence is as it was.
            KvError::Alloc(AllocError::OverBudget { .. }) => {
                assert!(before.room.lacks_memory_for(more + may_copy));
                self.assert_only_forgot(before.stats);
            }
            ref other => panic!("{other:?}"),
        }
        if !matches!(error, KvError::Alloc(_)) {
            assert_eq!(self.cache.stats(), before.stats);
        }
        assert!(real.block_ids().eq(before.blocks.iter().copied()));
    }

    fn commit(&mut self, index: usize, all: &[u32]) {
        let block_tokens = self.block_tokens();
        let twin = &mut self.twins[index];
        // The beginnings of what it had are there since it had them.
        for len in twin.tokens.len() + 1..=all.len() {
            let beginning = (twin.namespace, all[..len].to_vec());
            if len % block_tokens == 0 {
                self.whole.insert(beginning.clone());
            }
            self.known.insert(beginning);
        }
        twin.tokens = all.to_vec();
    }
}

impl Plan {
    fn drive<T: Number>(&self, mut step: Step<'_>, cut: bool) -> Done {
        let spec = *step.committed().cache().spec();
        let (copied, taken) = self.assert_room(&step, cut);
        let room = &self.before.room;
        assert!(!room.lacks_memory_for(taken), "{taken} blocks of {room:?}");
        assert_eq!(step.committed().fork().unwrap_err(), KvError::StepOpen);
        assert_eq!(step.start(), self.start);
        let new = step.tokens();
        let mut done = Done {
            committed: 0,
            copied,
            warmed: room.takes_cold(taken),
        };
        if matches!(self.end, End::Probe) {
            return done;
        }
        // Layers are not written in order, and not all of them unless it is to be committed.
        let skip = new % spec.layers();
        for layer in (0..spec.layers()).rev() {
            if matches!(self.end, End::RollBack | End::Missing) && layer == skip {
                continue;
            }
            self.write_layer::<T>(&mut step, &spec, layer, copied);
            assert_step_reads::<T>(&step, &spec, &self.salts, layer);
        }
        match self.end {
            End::Commit => {
                step.commit().unwrap();
                done.committed = new;
            }
            End::CommitFirst(tokens) if tokens <= new => {
                step.commit_first(tokens).unwrap();
                done.committed = tokens;
            }
            End::CommitFirst(asked) => {
                let error = step.commit_first(asked).unwrap_err();
                assert_eq!(error, KvError::NotThatLong { asked, tokens: new });
            }
            End::RollBack | End::Probe => drop(step),
            End::Missing => {
                let error = step.commit().unwrap_err();
                let KvError::LayersNotWritten { missing, layers } = error else {
                    panic!("{error:?}");
                };
                assert_eq!(layers, spec.layers());
                assert_eq!(missing.iter().collect::<Vec<_>>(), [skip]);
            }
            End::Forget => std::mem::forget(step),
        }
        done
    }

    /// The step has the blocks that it needs and took no others. Returns whether the last one
    /// was exchanged for a copy, and how many it took. The last one is: it must be if others have it, and may be only then or if
    /// the sequence was `cut`, for what is behind its end then is others' to find.
    fn assert_room(&self, step: &Step<'_>, cut: bool) -> (bool, usize) {
        let (before, cache) = (&self.before, step.committed().cache());
        let blocks: Vec<_> = step.committed().block_ids().collect();
        let had = before.blocks.len();
        assert_eq!(blocks.len(), step.block_count().max(had));
        let copied = before
            .tail
            .is_some_and(|tail| blocks[tail] != before.blocks[tail]);
        assert!(copied || !before.is_shared, "others read that block");
        assert!(!copied || before.is_shared || cut, "nobody else has it");
        for (entry, (now, then)) in blocks.iter().zip(&before.blocks).enumerate() {
            assert!(now == then || Some(entry) == before.tail, "entry {entry}");
        }
        let counters = cache.counters();
        let copies = counters.copied_blocks - before.counters.copied_blocks;
        assert_eq!(copies, u64::from(copied));
        let taken = blocks.len() - had + usize::from(copied);
        let counted = counters.taken_blocks - before.counters.taken_blocks;
        assert_eq!(counted, taken as u64);
        (copied, taken)
    }

    fn write_layer<T: Number>(
        &self,
        step: &mut Step<'_>,
        spec: &KvSpec,
        layer: usize,
        copied: bool,
    ) {
        let (new, block_tokens) = (&self.salts[self.start..], spec.block_tokens());
        let fill = filled_with::<T>(step.committed().cache().options().fill());
        let mut target = step.layer_mut(layer).unwrap();
        match self.write {
            Write::Native | Write::Twice => {
                if matches!(self.write, Write::Twice) {
                    let (keys, values) = (new.len() * spec.key_dim(), new.len() * spec.value_dim());
                    let other = vec![T::of(77.0); spec.kv_heads() * keys.max(values)];
                    let (keys, values) = (spec.kv_heads() * keys, spec.kv_heads() * values);
                    target.write(&other[..keys], &other[..values]).unwrap();
                }
                let keys = rows::<T>(spec, new, layer, Part::Keys);
                let values = rows::<T>(spec, new, layer, Part::Values);
                target.write(&keys, &values).unwrap();
            }
            Write::FromF32 => {
                let keys = rows::<f32>(spec, new, layer, Part::Keys);
                let values = rows::<f32>(spec, new, layer, Part::Values);
                target.write(&keys, &values).unwrap();
            }
            Write::InPlace => {
                // A copy is filled behind its tokens; reserved blocks are as they were.
                let tail = copied.then_some(self.start / block_tokens);
                for run in target.runs::<T>().unwrap() {
                    assert!(run.part == Part::Keys || spec.has_values());
                    for (row, data) in run.data.chunks_exact_mut(run.dim).enumerate() {
                        let (token, head) =
                            (run.token + row / run.heads, run.head + row % run.heads);
                        let position = self.start + token;
                        let untouched = position >= self.untouched_from
                            || Some(position / block_tokens) == tail;
                        for (dim, slot) in data.iter_mut().enumerate() {
                            if let Some(fill) = fill.filter(|_| untouched) {
                                assert_eq!(slot.bits(), fill, "what a block is filled with");
                            }
                            *slot = T::of(element(new[token], layer, run.part, head, dim));
                        }
                    }
                }
            }
        }
    }
}

/// The bits of each element of a block that was filled, if it was.
fn filled_with<T>(fill: BlockFill) -> Option<u32> {
    match fill {
        BlockFill::Leave => None,
        BlockFill::Zero => Some(0),
        BlockFill::Poison => Some(u32::MAX >> (32 - 8 * size_of::<T>())),
    }
}

/// The step reads old and new tokens of a layer that it wrote.
fn assert_step_reads<T: Number>(step: &Step<'_>, spec: &KvSpec, salts: &[u64], layer: usize) {
    for (position, &salt) in salts.iter().enumerate() {
        let (block, slot) = (
            position / spec.block_tokens(),
            position % spec.block_tokens(),
        );
        let keys = step.keys::<T>(layer, block).unwrap();
        let values = step.values::<T>(layer, block);
        assert_eq!(keys.tokens(), step.block_filled(block));
        assert_eq!(
            values.is_ok(),
            spec.has_values(),
            "values only where there are some"
        );
        for head in 0..spec.kv_heads() {
            let rows = [
                Some((Part::Keys, keys.row(head, slot).unwrap())),
                values
                    .ok()
                    .map(|values| (Part::Values, values.row(head, slot).unwrap())),
            ];
            for (part, row) in rows.into_iter().flatten() {
                for (dim, found) in row.iter().enumerate() {
                    let expected = T::of(element(salt, layer, part, head, dim));
                    assert_eq!(found.bits(), expected.bits());
                }
            }
        }
    }
}
