//! Each wrong variant of the code makes the models that name it fail.

use std::process::Command;

use tenslab::internals::{Mutant, VARIABLE};

/// The models that a variant has to fail.
fn killers(mutant: Mutant) -> &'static [&'static str] {
    match mutant {
        Mutant::SlabStaleNext => &[
            "slab::two_takers_get_two_blocks",
            "slab::a_stale_next_is_never_installed",
        ],
        Mutant::SlabPushTwoSteps => &["magazines::two_flushes_lose_no_block"],
        Mutant::SlabGrowTwoSteps => &["slab::two_takers_grow_one_segment_each"],
        Mutant::SeatNoBarrier | Mutant::SeatOwnerIgnoresStop | Mutant::SeatIgnoresOwner => &[
            "seats::the_owner_and_another_exclude_each_other",
            "seats::who_has_all_places_is_alone",
            "biased::one_thread_has_the_value_at_a_time",
            "magazines::what_another_magazine_has_is_stolen",
        ],
        Mutant::SeatOwnerRelaxed => &["seats::the_owner_and_another_exclude_each_other"],
        Mutant::SeatTwoSteps | Mutant::SeatTakeRelaxed => &[
            "seats::others_exclude_each_other",
            "magazines::a_magazine_is_one_threads_at_a_time",
            "pool::a_local_cache_is_one_threads_at_a_time",
        ],
        Mutant::SeatLeaveRelaxed => &[
            "seats::the_owner_and_another_exclude_each_other",
            "seats::others_exclude_each_other",
            "seats::closing_sees_what_was_done_there",
        ],
        Mutant::BiasLeavesOpen => &[
            "biased::one_thread_has_the_value_at_a_time",
            "biased::it_leans_from_one_thread_to_another",
            "kv_prefix::what_is_found_is_not_evicted_where_the_lock_leans",
        ],
        Mutant::SlabStealsNothing => &["magazines::what_another_magazine_has_is_stolen"],
        Mutant::SlabExhaustedEarly => &["magazines::nobody_is_refused_while_a_block_moves"],
        Mutant::SlabForgetsTrim => &["magazines::nobody_is_refused_for_a_trim"],
        Mutant::PoolLosesFlushed => &[
            "pool::what_another_cache_has_is_found_and_none_is_lost",
            "pool::a_flush_hides_nothing_from_who_is_at_the_cap",
            "pool::what_goes_through_the_depot_is_nobodys_loss",
        ],
        Mutant::PoolForgetsDepot => &["pool::what_goes_through_the_depot_is_nobodys_loss"],
        Mutant::PoolRefusesEarly => &[
            "pool::what_another_cache_has_is_found_and_none_is_lost",
            "pool::a_flush_hides_nothing_from_who_is_at_the_cap",
            "pool::a_trim_takes_no_page_from_anybody_and_nobody_is_refused_for_it",
        ],
        Mutant::PoolTrimsInPlace => {
            &["pool::a_trim_takes_no_page_from_anybody_and_nobody_is_refused_for_it"]
        }
        Mutant::GiveBackTwoSteps => &["magazines::one_of_two_that_give_back_an_id_succeeds"],
        Mutant::PeakTwoSteps => &["meter::a_smaller_peak_never_wins"],
        Mutant::BudgetFetchAdd => &["budget::what_fits_is_not_refused_because_of_what_does_not"],
        Mutant::BudgetTwoSteps => &[
            "budget::who_gets_bytes_finds_their_block_there",
            "budget::the_sum_is_never_above_the_limit",
        ],
        Mutant::BudgetGivesBackFirst => &["budget::who_gets_bytes_finds_their_block_there"],
        Mutant::BudgetPeakTwoSteps => &["budget::a_smaller_peak_never_wins"],
        Mutant::PressureUnderLock => &["budget::a_callback_may_use_the_limit_it_is_called_for"],
        Mutant::DecommitForgetsLate => &["budget::a_record_goes_before_its_block"],
        Mutant::DecommitCountTwoSteps => &["budget::who_releases_sees_what_another_decommitted"],
        Mutant::MeterCountsAfterRelease => &["meter::a_block_that_went_back_is_not_counted_twice"],
        Mutant::TraceRecordsAfterRelease => {
            &["meter::a_block_is_recorded_as_back_before_it_is_out_again"]
        }
        Mutant::LastViewRelaxed => &["storage::the_last_view_gives_back"],
        Mutant::LastViewTwoSteps => &[
            "kv::a_block_is_evicted_after_its_last_tensor",
            "storage::the_last_view_gives_back",
            "storage::a_clone_is_counted",
            "slab::a_shared_block_comes_back_through_the_meter",
        ],
        Mutant::SoleRelaxed | Mutant::SoleIgnoresHandles => {
            &["storage::the_sole_owner_sees_what_the_others_did"]
        }
        Mutant::ProtectionLooksFirst => {
            &["storage::what_is_read_only_is_writable_when_it_goes_back"]
        }
        Mutant::SoleFrozenFirst => &["storage::the_sole_owner_never_writes_frozen_bytes"],
        Mutant::ReaderIgnoresWriter | Mutant::WriterIgnoresReaders => {
            &["state::a_reader_and_a_writer_exclude_each_other"]
        }
        Mutant::ReaderTwoSteps => &["state::readers_read_together"],
        Mutant::ReaderRelaxed => &[
            "state::a_reader_and_a_writer_exclude_each_other",
            "state::freezing_publishes_the_bytes",
        ],
        Mutant::WriterRelaxed => &[
            "state::a_reader_and_a_writer_exclude_each_other",
            "state::writers_exclude_each_other",
        ],
        Mutant::ReleaseRelaxed => &[
            "state::a_reader_and_a_writer_exclude_each_other",
            "state::writers_exclude_each_other",
        ],
        Mutant::WriterTwoSteps => &["state::writers_exclude_each_other"],
        Mutant::FreezeIgnoresWriter => &["state::frozen_bytes_are_never_written"],
        Mutant::FreezeRelaxed => &["state::freezing_publishes_the_bytes"],
        Mutant::CloseForgetsSeats => &[
            "keep_alive::a_buffer_that_left_at_a_seat_is_not_lost",
            "keep_alive::the_last_at_a_seat_and_the_closer_agree",
            "pool::a_pool_lives_until_its_last_block_is_back",
        ],
        Mutant::CloseTwoSteps => {
            &["keep_alive::either_the_last_buffer_or_the_last_handle_destroys"]
        }
        Mutant::LeaveRelaxed => &[
            "keep_alive::either_the_last_buffer_or_the_last_handle_destroys",
            "keep_alive::the_last_of_two_buffers_destroys",
        ],
        Mutant::HandleRelaxed | Mutant::HandleTwoSteps => {
            &["keep_alive::the_last_of_two_handles_destroys"]
        }
        Mutant::GuardErasesLate => &["guarded::a_record_goes_before_its_block"],
        Mutant::ArenaEndsTwoSteps => &["arena::a_step_that_ended_has_nothing_out"],
        Mutant::ArenaResetsTwoSteps => &["arena::a_chunk_is_empty_when_the_last_of_it_came_back"],
        Mutant::ArenaParksTwoSteps => &["arena::a_chunk_that_was_parked_comes_back"],
        Mutant::ArenaSlotTwoSteps => &["arena::two_who_need_a_chunk_have_two"],
        Mutant::KvOpensTwoSteps => &[
            "kv_prefix::what_is_found_is_not_evicted",
            "kv_prefix::what_is_found_is_not_evicted_where_the_lock_leans",
            "kv::of_two_that_want_more_than_there_is_one_gets_all",
            "kv_prefix::a_beginning_is_copied_of_a_block_that_is_still_there",
        ],
        Mutant::KvGrowsTwoSteps => &[
            "kv::of_two_that_grow_beyond_what_there_is_one_does",
            "kv::of_two_forks_one_copies_and_one_stays",
        ],
        Mutant::KvTruncatesTwoSteps => &["kv::what_is_left_of_a_truncated_chain_is_held"],
        Mutant::KvPinTwoSteps => &["kv_prefix::what_is_pinned_is_not_evicted"],
        Mutant::KvCommitTwoSteps => &["kv_prefix::what_is_registered_is_not_evicted"],
        Mutant::KvSlotGoesFirst => &["kv_prefix::the_last_drop_and_a_lookup_agree"],
        Mutant::KvIdlesTwoSteps => &["kv_prefix::what_is_found_while_its_last_user_goes_is_used"],
        Mutant::KvSourceGoesFirst => &[
            "kv_prefix::a_beginning_is_copied_of_a_block_that_is_still_there",
            "kv::a_copy_is_made_of_a_block_that_is_still_there",
            "kv::of_two_forks_one_copies_and_one_stays",
        ],
        Mutant::KvLendsUnheld => &["kv::a_block_is_evicted_after_its_last_tensor"],
        Mutant::KvPutsBackFirst | Mutant::KvForgetsMoving | Mutant::KvLooksColdFirst => &[
            "kv_memory::blocks_whose_memory_goes_back_are_waited_for",
            "kv_memory::who_grows_waits_for_blocks_whose_memory_goes_back",
        ],
        Mutant::KvExchangesTwoSteps => &[
            "kv_memory::what_is_found_replaces_no_cold_block",
            "kv_memory::a_beginning_that_had_no_memory_for_its_copy_is_let_go_of",
        ],
        Mutant::KvForgoesHeld => {
            &["kv_memory::a_beginning_that_had_no_memory_for_its_copy_is_let_go_of"]
        }
        Mutant::KvWarmsUnheld => &[
            "kv_memory::a_beginning_is_held_until_there_is_memory_for_its_copy",
            "kv_memory::what_a_copy_had_no_memory_for_is_still_there",
        ],
        Mutant::KvChecksLate => &["kv::of_two_that_want_more_than_there_is_one_gets_all"],
        Mutant::KvRegistersEarly => &["kv_prefix::a_block_is_found_with_its_bytes"],
        Mutant::KvRegistersTwice => &["kv_prefix::of_two_that_commit_the_same_one_stays"],
        Mutant::KvWritesShared => &[
            "kv::a_copy_is_made_of_a_block_that_is_still_there",
            "kv::a_truncated_block_stays_as_it_is_for_its_sibling",
        ],
        Mutant::KvTruncatedKeepsKey => &["kv::a_truncated_block_stays_as_it_is_for_its_sibling"],
        // One thread shows them: tests/kv/mutants.rs.
        Mutant::KvIgnoresLastToken
        | Mutant::KvKeepsStaleKey
        | Mutant::KvHeadFirst
        | Mutant::KvMatchesWithoutPin
        | Mutant::KvNoRollback
        | Mutant::KvCopiesKeysOnly
        | Mutant::KvWatermarkForFirst => &[],
    }
}

/// Runs one model in a process of its own (loom aborts on some failures).
/// Returns whether it passed, and what it printed.
fn run(model: &str, mutant: Option<Mutant>) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", model, "--nocapture"]);
    command.env_remove(VARIABLE);
    if let Some(mutant) = mutant {
        command.env(VARIABLE, format!("{mutant:?}"));
    }
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(
        printed.contains("running 1 test"),
        "no model {model}: {printed}"
    );
    (output.status.success(), printed)
}

#[test]
fn every_mutant_dies() {
    for mutant in Mutant::ALL {
        for model in killers(mutant) {
            let (passed, printed) = run(model, Some(mutant));
            assert!(!passed, "{mutant:?} survived {model}:\n{printed}");
            let why = printed
                .lines()
                .find(|line| {
                    line.contains("ausality")
                        || line.contains("assertion")
                        || line.contains("panicked")
                })
                .unwrap_or("aborted");
            println!("{mutant:?} died in {model}: {why}");
        }
    }
}

/// What dies above dies of the mutant and not of the harness.
#[test]
fn the_same_models_pass_without_one() {
    for model in Mutant::ALL.into_iter().flat_map(killers) {
        let (passed, printed) = run(model, None);
        assert!(passed, "{model}:\n{printed}");
    }
}
