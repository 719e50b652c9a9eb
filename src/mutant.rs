//! Mutants: known wrong variants of a protocol, for the loom and ThreadSanitizer lanes.
//!
//! A model proves something only if it fails when the code is wrong. Each variant is
//! such a wrong line, kept beside the right one and chosen at run time by the
//! environment, so that one build runs them all: `loom_tests/mutants.rs` sees each
//! of them die, `tests/races.rs` those that are wrong orderings of real threads, and
//! `cargo kv-mutants` those of the KV cache that one thread is enough for. In every
//! other build [`is`] is the constant `false` and the wrong lines are not compiled in.

/// The wrong variants. The line that each replaces names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// `SlabAllocator`: finds the next blocks under one lock, takes them under another.
    SlabStaleNext,
    /// `SlabAllocator`: links blocks under one lock, makes them the head under another.
    SlabPushTwoSteps,
    /// `SlabAllocator`: finds a fresh block under one lock, counts it under another.
    SlabGrowTwoSteps,
    /// Seat: its owner says that it is there and looks, without a barrier between.
    SeatNoBarrier,
    /// Seat: its owner does not look whether another is there.
    SeatOwnerIgnoresStop,
    /// Seat: its owner does not see what the last other one did there.
    SeatOwnerRelaxed,
    /// Seat: another does not look whether the owner is there.
    SeatIgnoresOwner,
    /// Seat: another takes it with a load and a store.
    SeatTwoSteps,
    /// Seat: another does not see what the last one did there.
    SeatTakeRelaxed,
    /// Seat: it is left without publishing what was done there.
    SeatLeaveRelaxed,
    /// Biased lock: who has the lock does not shut the door that is open.
    BiasLeavesOpen,
    /// `SlabAllocator`: what is in other magazines is not looked for.
    SlabStealsNothing,
    /// `SlabAllocator`: exhausted is said while somebody is moving blocks.
    SlabExhaustedEarly,
    /// `SlabAllocator`: who is refused does not wait for the blocks that a trim has.
    SlabForgetsTrim,
    /// `CachingPool`: a block is lost where a cache is emptied.
    PoolLosesFlushed,
    /// `CachingPool`: refuses although others are in the middle of a call.
    PoolRefusesEarly,
    /// `CachingPool`: what is between the caches is not looked for.
    PoolForgetsDepot,
    /// `CachingPool`: a trim leaves what it gives back in the index.
    PoolTrimsInPlace,
    /// `SlabAllocator`: a raw id is checked and given back in two steps.
    GiveBackTwoSteps,
    /// `Meter`: finds the new peak under one lock, writes it under another.
    PeakTwoSteps,
    /// `Limit`: an addition that is taken back where it was too much.
    BudgetFetchAdd,
    /// `Limit`: finds room under one lock, uses it under another.
    BudgetTwoSteps,
    /// `Budget`: bytes go back before their block does.
    BudgetGivesBackFirst,
    /// `Limit`: finds the peak under one lock, writes it under another.
    BudgetPeakTwoSteps,
    /// `Limit`: a callback is called with the lock held.
    PressureUnderLock,
    /// `Budget`: forgets what of a block is decommitted only after the block went back.
    DecommitForgetsLate,
    /// `Budget`: counts blocks that are decommitted after the lock, with a load and a store.
    DecommitCountTwoSteps,
    /// `Meter`: counts a block as back only after it went back.
    MeterCountsAfterRelease,
    /// `Trace`: records a release only after the block went back.
    TraceRecordsAfterRelease,
    /// `Storage`: the last handle frees without seeing what the others did.
    LastViewRelaxed,
    /// `Storage`: a load and a store where one subtraction belongs.
    LastViewTwoSteps,
    /// `Storage`: who asks whether it is the only handle does not see what the others did.
    SoleRelaxed,
    /// `Storage`: who asks whether it is the only handle is told that it is.
    SoleIgnoresHandles,
    /// `Storage`: looks whether it is frozen before it counts the handles.
    SoleFrozenFirst,
    /// Storage: whether pages are read-only is seen before the handle is counted out.
    ProtectionLooksFirst,
    /// State word: a reader does not look for a writer.
    ReaderIgnoresWriter,
    /// State word: a reader counts itself with a load and a store.
    ReaderTwoSteps,
    /// State word: a reader does not see what the last writer published.
    ReaderRelaxed,
    /// State word: a writer does not look for readers.
    WriterIgnoresReaders,
    /// State word: a writer takes the word with a load and a store.
    WriterTwoSteps,
    /// State word: a writer does not see what was done before it.
    WriterRelaxed,
    /// State word: `freeze` does not look for a writer.
    FreezeIgnoresWriter,
    /// State word: a borrow ends without publishing what it did.
    ReleaseRelaxed,
    /// State word: `freeze` does not pass on what the last writer published.
    FreezeRelaxed,
    /// Keep-alive: closing does not ask what was counted at the seats.
    CloseForgetsSeats,
    /// Keep-alive: closing looks at the word and sets the bit in two steps.
    CloseTwoSteps,
    /// Keep-alive: the last one out does not see what the others did.
    LeaveRelaxed,
    /// `SharedAllocator`: a handle goes away without publishing what was done with it.
    HandleRelaxed,
    /// `SharedAllocator`: a load and a store where one subtraction belongs.
    HandleTwoSteps,
    /// `Guarded`: gives a block back first and forgets it afterwards.
    GuardErasesLate,
    /// `StepArena`: looks whether something is out under one lock, ends the step under another.
    ArenaEndsTwoSteps,
    /// `StepArena`: counts a chunk's last block as back under one lock, empties it under another.
    ArenaResetsTwoSteps,
    /// `StepArena`: finds a chunk that is in use under one lock, parks it under another.
    ArenaParksTwoSteps,
    /// `StepArena`: finds a slot for a chunk under one lock, fills it under another.
    ArenaSlotTwoSteps,
    /// KV index: the last token of a block does not count.
    KvIgnoresLastToken,
    /// KV index: a block that is evicted stays findable.
    KvKeepsStaleKey,
    /// KV blocks: a chain becomes idle from its head on.
    KvHeadFirst,
    /// KV ledger: what is there is held only after blocks were taken for the rest.
    KvMatchesWithoutPin,
    /// KV ledger: who is refused keeps what it found.
    KvNoRollback,
    /// KV ledger: blocks are taken before it is known that there are enough.
    KvChecksLate,
    /// KV ledger: a block is findable before its tokens are committed.
    KvRegistersEarly,
    /// KV ledger: a block is registered though the same is there.
    KvRegistersTwice,
    /// KV ledger: a block that several tables have is written in place.
    KvWritesShared,
    /// KV ledger: a registered block that was cut is written in place.
    KvTruncatedKeepsKey,
    /// KV cache: a block is copied without its values.
    KvCopiesKeysOnly,
    /// KV admission: the watermark counts for the only request, too.
    KvWatermarkForFirst,
    /// KV cache: a request is planned under one lock, its blocks are taken under another.
    KvOpensTwoSteps,
    /// KV cache: room to grow is found under one lock, used under another.
    KvGrowsTwoSteps,
    /// KV cache: the new end of a table is held under another lock than the old one let go.
    KvTruncatesTwoSteps,
    /// KV cache: a prefix is found under one lock, pinned under another.
    KvPinTwoSteps,
    /// KV cache: a block is registered under one lock, held under another.
    KvCommitTwoSteps,
    /// KV cache: a slot is free before its blocks are back.
    KvSlotGoesFirst,
    /// KV cache: the last use of a block ends under one lock, it becomes idle under another.
    KvIdlesTwoSteps,
    /// KV cache: a block that is copied is let go before the copy is made.
    KvSourceGoesFirst,
    /// KV cache: a block's tensor is no use of it.
    KvLendsUnheld,
    /// KV cache: a block is free before its memory went back.
    KvPutsBackFirst,
    /// KV cache: who is refused does not wait for blocks whose memory is going back.
    KvForgetsMoving,
    /// KV cache: whether a block is cold is seen under one lock, it is taken under another.
    KvLooksColdFirst,
    /// KV cache: an idle block is found under one lock, it replaces a cold one under another.
    KvExchangesTwoSteps,
    /// KV cache: a block that is copied is not held until there is memory for the copy.
    KvWarmsUnheld,
    /// KV ledger: a block that was to be copied stays held when there is no memory for the copy.
    KvForgoesHeld,
}

#[cfg(any(loom, tenslab_tsan, tenslab_mutants))]
impl Mutant {
    /// Every variant.
    pub const ALL: [Mutant; 81] = [
        Mutant::SlabStaleNext,
        Mutant::SlabPushTwoSteps,
        Mutant::SlabGrowTwoSteps,
        Mutant::SeatNoBarrier,
        Mutant::SeatOwnerIgnoresStop,
        Mutant::SeatOwnerRelaxed,
        Mutant::SeatIgnoresOwner,
        Mutant::SeatTwoSteps,
        Mutant::SeatTakeRelaxed,
        Mutant::SeatLeaveRelaxed,
        Mutant::BiasLeavesOpen,
        Mutant::SlabStealsNothing,
        Mutant::SlabExhaustedEarly,
        Mutant::SlabForgetsTrim,
        Mutant::PoolLosesFlushed,
        Mutant::PoolRefusesEarly,
        Mutant::PoolForgetsDepot,
        Mutant::PoolTrimsInPlace,
        Mutant::GiveBackTwoSteps,
        Mutant::PeakTwoSteps,
        Mutant::BudgetFetchAdd,
        Mutant::BudgetTwoSteps,
        Mutant::BudgetGivesBackFirst,
        Mutant::BudgetPeakTwoSteps,
        Mutant::PressureUnderLock,
        Mutant::DecommitForgetsLate,
        Mutant::DecommitCountTwoSteps,
        Mutant::MeterCountsAfterRelease,
        Mutant::TraceRecordsAfterRelease,
        Mutant::LastViewRelaxed,
        Mutant::LastViewTwoSteps,
        Mutant::SoleRelaxed,
        Mutant::SoleIgnoresHandles,
        Mutant::SoleFrozenFirst,
        Mutant::ProtectionLooksFirst,
        Mutant::ReaderIgnoresWriter,
        Mutant::ReaderTwoSteps,
        Mutant::ReaderRelaxed,
        Mutant::WriterIgnoresReaders,
        Mutant::WriterTwoSteps,
        Mutant::WriterRelaxed,
        Mutant::FreezeIgnoresWriter,
        Mutant::ReleaseRelaxed,
        Mutant::FreezeRelaxed,
        Mutant::CloseForgetsSeats,
        Mutant::CloseTwoSteps,
        Mutant::LeaveRelaxed,
        Mutant::HandleRelaxed,
        Mutant::HandleTwoSteps,
        Mutant::GuardErasesLate,
        Mutant::ArenaEndsTwoSteps,
        Mutant::ArenaResetsTwoSteps,
        Mutant::ArenaParksTwoSteps,
        Mutant::ArenaSlotTwoSteps,
        Mutant::KvIgnoresLastToken,
        Mutant::KvKeepsStaleKey,
        Mutant::KvHeadFirst,
        Mutant::KvMatchesWithoutPin,
        Mutant::KvNoRollback,
        Mutant::KvChecksLate,
        Mutant::KvRegistersEarly,
        Mutant::KvRegistersTwice,
        Mutant::KvWritesShared,
        Mutant::KvTruncatedKeepsKey,
        Mutant::KvCopiesKeysOnly,
        Mutant::KvWatermarkForFirst,
        Mutant::KvOpensTwoSteps,
        Mutant::KvGrowsTwoSteps,
        Mutant::KvTruncatesTwoSteps,
        Mutant::KvPinTwoSteps,
        Mutant::KvCommitTwoSteps,
        Mutant::KvSlotGoesFirst,
        Mutant::KvIdlesTwoSteps,
        Mutant::KvSourceGoesFirst,
        Mutant::KvLendsUnheld,
        Mutant::KvPutsBackFirst,
        Mutant::KvForgetsMoving,
        Mutant::KvLooksColdFirst,
        Mutant::KvExchangesTwoSteps,
        Mutant::KvWarmsUnheld,
        Mutant::KvForgoesHeld,
    ];
}

/// Is this wrong variant the one that runs?
#[cfg(not(any(loom, tenslab_tsan, tenslab_mutants)))]
pub(crate) const fn is(_mutant: Mutant) -> bool {
    false
}

/// The variable of the environment that chooses.
#[cfg(any(loom, tenslab_tsan, tenslab_mutants))]
pub const VARIABLE: &str = "TENSLAB_MUTANT";

/// Is this wrong variant the one that runs?
#[cfg(any(loom, tenslab_tsan, tenslab_mutants))]
pub(crate) fn is(mutant: Mutant) -> bool {
    // For each thread anew, so that nothing is shared that a sanitizer could see.
    thread_local! {
        static CHOSEN: std::cell::Cell<Option<Option<Mutant>>> = const { std::cell::Cell::new(None) };
    }
    let ask = || {
        let name = std::env::var(VARIABLE).ok()?;
        (Mutant::ALL.into_iter()).find(|mutant| name == format!("{mutant:?}"))
    };
    CHOSEN.with(|chosen| {
        let mutant_or_none = chosen.get().unwrap_or_else(ask);
        chosen.set(Some(mutant_or_none));
        mutant_or_none == Some(mutant)
    })
}
