//! What handles, sequences and tensors share: the region, and the ledger under its lock. The
//! lock is taken here and nowhere else, and payload is touched outside of it.

use std::ops::Range;
use std::ptr::NonNull;

use crate::memory::poison::unpoison;
use crate::memory::{AllocError, Biased, Buffer};
use crate::mutant::{self, Mutant};
use crate::sync::Patience;
use crate::types::Device;

use super::layout::Part;
use super::ledger::{Ask, Grown, Ledger, Opened, PendingCopy, TableRows};
use super::payload::Payload;
use super::{BlockFill, KvError, KvLimits, KvOptions, KvSpec, RegionLayout};

/// What all handles, sequences and tensors of a cache share.
pub(super) struct Shared {
    pub(super) spec: KvSpec,
    pub(super) limits: KvLimits,
    /// Tokens a sequence can have: its table, full.
    pub(super) max_tokens: usize,
    /// Where the planes lie in `region`, whose length is its `bytes`.
    pub(super) layout: RegionLayout,
    /// `blocks` x `block_bytes` bytes. Only ever reached through `as_ptr`: sequences
    /// write disjoint parts of it at the same time, so no reference to the whole of
    /// it may exist.
    pub(super) region: Buffer,
    pub(super) rows: TableRows,
    /// For loom, which does not see the region.
    pub(super) payload: Payload,
    pub(super) options: KvOptions,
    pub(super) ledger: Biased<Ledger>,
}

impl Shared {
    pub(super) fn device(&self) -> Device {
        self.region.device()
    }

    /// Blocks that a table of `tokens` tokens has, if a table can be so long.
    pub(super) fn table_blocks(&self, tokens: usize) -> Result<u32, KvError> {
        let too_long = KvError::SequenceTooLong {
            tokens,
            max: self.max_tokens,
        };
        if tokens > self.max_tokens {
            return Err(too_long);
        }
        u32::try_from(self.spec.blocks_for(tokens)).map_err(|_| too_long)
    }

    /// A slot for who asks.
    #[inline]
    pub(super) fn open(&self, ask: &Ask<'_>, opened: &mut Opened) -> Result<(), KvError> {
        if mutant::is(Mutant::KvOpensTwoSteps) {
            return self.open_in_two_steps(ask, opened);
        }
        if mutant::is(Mutant::KvLooksColdFirst) {
            return self.open_after_looking_for_cold(ask, opened);
        }
        self.patiently(|ledger| ledger.open(ask, &self.rows, opened))
    }

    /// Has the memory of a slot's new blocks counted again. The slot is closed if that fails.
    #[cold]
    pub(super) fn warm_opened(&self, opened: &Opened) -> Result<(), AllocError> {
        let slot = opened.slot;
        let open = OpenSlot { of: self, slot };
        let entries = opened.fresh..opened.held;
        let undo = |ledger: &mut Ledger| {
            let whole = opened.fresh as usize * self.spec.block_tokens();
            ledger.forgo_beginning(slot, whole, opened.copy, &self.rows);
        };
        match opened.copy {
            Some(copy) if mutant::is(Mutant::KvWarmsUnheld) => {
                self.warm_unheld(copy, slot, entries, undo)?
            }
            _ => self.warm(slot, entries, undo)?,
        }
        std::mem::forget(open);
        Ok(())
    }

    /// Room for `new` tokens behind the committed ones of the slot's sequence, whose table
    /// holds `held` blocks and is to hold `blocks`; all or nothing.
    #[inline]
    pub(super) fn grow(
        &self,
        slot: u32,
        new: &[u32],
        held: u32,
        blocks: u32,
    ) -> Result<(), KvError> {
        let is_mutant = mutant::is(Mutant::KvGrowsTwoSteps)
            || mutant::is(Mutant::KvLooksColdFirst)
            || mutant::is(Mutant::KvRegistersEarly);
        // By itself, for it is done in a quarter of the instructions: what the other cases need
        // would be made ready for it, too.
        if blocks == held + 1
            && !is_mutant
            && (self.ledger)
                .with(move |ledger| ledger.grow_by_a_free_block(slot, new, blocks, &self.rows))
        {
            self.fill(slot, held..blocks);
            return Ok(());
        }
        self.grow_any(slot, new, held, blocks)
    }

    fn grow_any(&self, slot: u32, new: &[u32], held: u32, blocks: u32) -> Result<(), KvError> {
        let mut grown = Grown::default();
        match mutant::is(Mutant::KvGrowsTwoSteps) {
            true => self.grow_in_two_steps(slot, new, blocks, &mut grown)?,
            false if mutant::is(Mutant::KvLooksColdFirst) => {
                self.grow_after_looking_for_cold(slot, new, blocks, &mut grown)?
            }
            false => {
                self.patiently(|ledger| ledger.grow(slot, new, blocks, &self.rows, &mut grown))?
            }
        }
        // Looked at where it lies: see `Opened`.
        if grown.cold {
            self.warm_grown(slot, grown.copy, held..blocks)?;
        }
        self.fill(slot, held..blocks);
        if let Some(copy) = &grown.copy {
            self.fill(slot, copy.entry..copy.entry + 1);
            self.copy(slot, *copy);
        }
        Ok(())
    }

    /// Has the memory of the table's new `entries` counted again, and that of a copy's target.
    #[cold]
    fn warm_grown(
        &self,
        slot: u32,
        copy: Option<PendingCopy>,
        entries: Range<u32>,
    ) -> Result<(), AllocError> {
        let target = copy.map(|copy| copy.entry);
        let all = target.into_iter().chain(entries.clone());
        let undo = |ledger: &mut Ledger| {
            if let Some(copy) = copy {
                ledger.undo_copy(slot, copy, &self.rows);
            }
            ledger.give_back_tail(slot, entries.start, &self.rows);
        };
        match copy {
            Some(copy) if mutant::is(Mutant::KvWarmsUnheld) => {
                self.warm_unheld(copy, slot, all, undo)
            }
            _ => self.warm(slot, all, undo),
        }
    }

    /// Asks the ledger, again and again while it has too few blocks only because others are
    /// giving the memory of some back.
    #[inline]
    pub(super) fn patiently(
        &self,
        mut ask: impl FnMut(&mut Ledger) -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        let mut patience = Patience::default();
        loop {
            // Out of the way of who is not refused: an error is large.
            let mut refused = None;
            self.ledger.with(|ledger| {
                if let Err(error) = ask(ledger) {
                    refused = Some((error, ledger.must_wait(&error)));
                }
            });
            match refused {
                None => return Ok(()),
                Some((error, false)) => return Err(error),
                Some((error, true)) if mutant::is(Mutant::KvForgetsMoving) => return Err(error),
                Some((_, true)) => {}
            }
            patience.wait();
        }
    }

    /// Gives back the blocks behind the first `keep` of the slot's table, the last one first.
    #[inline]
    pub(super) fn give_back_tail(&self, slot: u32, keep: u32) {
        (self.ledger).with(move |ledger| ledger.give_back_tail(slot, keep, &self.rows));
    }

    /// Counts `tokens` more tokens of the slot as committed.
    pub(super) fn commit(&self, slot: u32, tokens: usize) {
        if mutant::is(Mutant::KvCommitTwoSteps) {
            return self.commit_in_two_steps(slot, tokens);
        }
        (self.ledger).with(|ledger| ledger.commit(slot, tokens, &self.rows));
    }

    /// Shortens the slot's sequence. Returns the blocks that it has then.
    pub(super) fn truncate(&self, slot: u32, tokens: usize) -> u32 {
        if mutant::is(Mutant::KvTruncatesTwoSteps) {
            return self.truncate_in_two_steps(slot, tokens);
        }
        (self.ledger).with(|ledger| ledger.truncate(slot, tokens, &self.rows))
    }

    /// A slot with the committed tokens of another.
    pub(super) fn fork(&self, slot: u32) -> Result<u32, KvError> {
        self.ledger.with(|ledger| ledger.fork(slot, &self.rows))
    }

    /// Ends the slot's sequence.
    pub(super) fn close(&self, slot: u32) {
        if mutant::is(Mutant::KvSlotGoesFirst) {
            return self.close_in_two_steps(slot);
        }
        if mutant::is(Mutant::KvIdlesTwoSteps) {
            return self.idle_in_two_steps(slot);
        }
        self.ledger.with(|ledger| ledger.close(slot, &self.rows));
    }

    /// One more use of a registered block, which somebody else uses meanwhile.
    pub(super) fn hold_outside(&self, block: u32) {
        self.ledger.with(|ledger| ledger.hold_outside(block));
    }

    /// The end of a use from [`hold_outside`](Self::hold_outside) or a pin.
    pub(super) fn release_outside(&self, block: u32) {
        self.ledger.with(|ledger| ledger.release_outside(block));
    }

    /// Makes a copy that the ledger wants, and lets go of its source.
    pub(super) fn copy(&self, slot: u32, copy: PendingCopy) {
        let to = self.rows.get(slot, copy.entry as usize);
        if mutant::is(Mutant::KvSourceGoesFirst) {
            self.release_outside(copy.from);
        }
        self.payload.read(|| copy.from);
        self.payload.write(|| to);
        self.copy_slots(copy, to);
        if mutant::is(Mutant::KvCopiesKeysOnly) && self.layout.values_offset().is_some() {
            self.spoil_values(to);
        }
        if !mutant::is(Mutant::KvSourceGoesFirst) {
            self.release_outside(copy.from);
        }
    }

    /// Copies the slots of the copy's tokens to the block `to`, and no others.
    fn copy_slots(&self, copy: PendingCopy, to: u32) {
        let (layout, element) = (self.spec.block_layout(), self.spec.dtype().bytes());
        let parts = match self.spec.has_values() {
            true => &[Part::Keys, Part::Values][..],
            false => &[Part::Keys],
        };
        for layer in 0..self.spec.layers() {
            for &part in parts {
                let plane = layout.part(part);
                let heads = plane.heads_in_a_run();
                let bytes = copy.tokens as usize * heads * plane.dim * element;
                let from = self.plane_ptr(copy.from, layer, part);
                let to = self.plane_ptr(to, layer, part);
                for head in (0..plane.heads).step_by(heads) {
                    let at = plane.row(head, 0) * element;
                    let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
                    // SAFETY:
                    // - in bounds: slots of one plane of each of two blocks of this region,
                    //   which share no byte (the region's test), and no more than a plane has;
                    // - `from` is not written: its block is registered, or in several tables,
                    //   and this call's use of it keeps it so. What was written there happened
                    //   before, for its writer committed it under the ledger's lock;
                    // - `to` is this caller's alone: its block was taken for it, and is not
                    //   registered.
                    unsafe { to.copy_from_nonoverlapping(from, bytes) };
                }
            }
        }
    }

    /// What a copy has whose values were not copied.
    fn spoil_values(&self, block: u32) {
        let bytes =
            self.spec.block_layout().part(Part::Values).elements() * self.spec.dtype().bytes();
        for layer in 0..self.spec.layers() {
            let start = self.plane_ptr(block, layer, Part::Values);
            // SAFETY: a plane of a block that is the caller's alone, as in `copy`.
            unsafe { start.write_bytes(0, bytes) };
        }
    }

    /// Fills blocks that were taken just now, if they are to be filled.
    pub(super) fn fill(&self, slot: u32, entries: Range<u32>) {
        let byte = match self.options.fill() {
            BlockFill::Leave => return,
            BlockFill::Zero => 0,
            // A NaN in every dtype that a cache may have.
            BlockFill::Poison => 0xff,
        };
        for entry in entries {
            let block = self.rows.get(slot, entry as usize);
            self.payload.write(|| block);
            for (start, bytes) in self.pieces(block) {
                // SAFETY: a piece of a block of this region, which was taken for the caller
                // just now and is in no other table, so nobody else has its bytes.
                unsafe { start.write_bytes(byte, bytes) };
            }
        }
    }

    /// Marks all blocks at one time, when none is lent: before the first handle is given, and
    /// when nothing is left that keeps this. The ledger's shadow marks one.
    ///
    /// For AddressSanitizer alone: valgrind also knows bytes as defined or not, and would have
    /// those of an idle block that is found again as not defined.
    pub(super) fn mark_region(&self, mark: unsafe fn(NonNull<u8>, usize)) {
        if !cfg!(tenslab_asan) {
            return;
        }
        if let Some(start) = NonNull::new(self.region.as_ptr()) {
            // SAFETY: the region is mapped, and nobody has a block (see above).
            unsafe { mark(start, self.region.len()) };
        }
    }

    /// The pieces of one block: where each starts, and its bytes.
    fn pieces(&self, block: u32) -> impl Iterator<Item = (*mut u8, usize)> + use<> {
        let region = self.region.as_ptr();
        self.layout
            .block_pieces(block as usize)
            .map(move |piece| (region.wrapping_add(piece.start), piece.len()))
    }

    /// The address of one plane, which must exist. Pure arithmetic: what may be done with
    /// it is the caller's to argue.
    #[inline]
    pub(super) fn plane_ptr(&self, block: u32, layer: usize, part: Part) -> *mut u8 {
        let offset = self.layout.plane_at(block as usize, layer, part);
        self.region.as_ptr().wrapping_add(offset)
    }
}

/// A slot without a sequence yet; dropping closes it, also where an allocator panics.
struct OpenSlot<'a> {
    of: &'a Shared,
    slot: u32,
}

impl Drop for OpenSlot<'_> {
    fn drop(&mut self) {
        self.of.close(self.slot);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Sequences and pins hold a handle, and tensors the lender, which holds this: so there
        // are none any more. The region goes back to its allocator as it came.
        self.mark_region(unpoison);
    }
}
