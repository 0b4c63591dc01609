"""What only `make test-all` runs: no law, golden or unit, and never the only text of a method.

`make test` leaves these tests out: of 2,322 seconds of tests, where programs are compiled, 1,400
are left. A name is a file, a test, or one test's parameters, as pytest prints them. Each took at
least 4 seconds (`--durations=0`); most of them measure, serve, train or run a notebook.
"""

SLOW: tuple[str, ...] = (
    "tests/ab/test_calibration.py::test_intervals_cover_the_truth_in_at_least_93_of_100_runs",
    "tests/ab/test_calibration.py::test_the_harness_adds_less_than_a_millisecond_at_concurrency_32",
    "tests/ab/test_calibration.py::test_the_harness_recovers_known_rates_within_two_percent",
    "tests/audit/test_bitwise.py::test_a_comparison_tells_bitwise_from_near_ties",
    "tests/audit/test_bitwise.py::test_a_server_prints_logprobs_whole",
    "tests/audit/test_bitwise.py::test_plain_and_drafted_servers_are_bitwise_the_same",
    "tests/audit/test_bitwise.py::test_servers_that_round_otherwise_part_at_near_ties",
    "tests/audit/test_joint.py::test_requests_of_every_kind_have_the_distribution_of_plain_decoding",
    "tests/audit/test_zoo.py::test_the_audit_catches_every_bug_and_only_bugs",
    "tests/bench/test_drafters.py::test_every_size_has_its_row",
    "tests/bench/test_methods.py::test_a_run_writes_rows_and_its_section",
    "tests/bench/test_peers.py::test_every_engine_writes_our_text",
    "tests/bench/test_prompts.py::test_most_shipped_prompts_do_not_degenerate",
    "tests/bench/test_step.py::test_json_rows_carry_name_value_unit_peer_and_ratio",
    "tests/bench/test_verify.py::test_every_rule_is_compared_with_one_sample_per_node",
    "tests/checkpoints/test_cycle.py::test_a_head_grows_trees_that_are_accepted_and_the_text_stays",
    "tests/cli/test_cli.py::test_prompts_come_from_files_too",
    "tests/cli/test_cli.py::test_speculation_never_changes_the_text",
    "tests/cli/test_cli.py::test_streamed_and_whole_completions_are_the_same_text",
    "tests/cli/test_demo.py::test_the_demo_measures_the_bundled_pair_and_writes_its_section",
    "tests/cli/test_wheel.py::test_the_installed_command_line_completes_a_prompt",
    "tests/cli/test_wheel.py::test_the_installed_package_is_the_one_that_runs",
    "tests/engine/test_compositions.py::test_neither_two_drafters_nor_k_by_request_change_the_text",
    "tests/engine/test_corpus.py::test_a_corpus_is_saved_and_started_from",
    "tests/engine/test_corpus.py::test_a_full_corpus_forgets_the_oldest_and_stays_within_its_capacity",
    "tests/engine/test_corpus.py::test_a_slot_taken_over_keeps_nothing_of_the_request_before",
    "tests/engine/test_corpus.py::test_no_draft_holds_a_word_of_anothers_prompt",
    "tests/engine/test_corpus.py::test_only_outputs_are_shared_and_the_text_is_plain_text",
    "tests/engine/test_corpus.py::test_requests_of_two_streams_may_take_turns",
    "tests/engine/test_invariance.py::test_the_option_changes_nothing_where_it_is_kept",
    "tests/engine/test_llm.py::test_any_prompt_gives_the_same_text_drafted_and_plain",
    "tests/engine/test_llm.py::test_hot_text_is_identical_for_the_same_seed",
    "tests/engine/test_llm.py::test_two_devices_share_the_weights_and_say_the_same",
    "tests/engine/test_scheduler.py::test_a_service_has_few_programs",
    "tests/engine/test_service.py::test_nothing_is_compiled_after_the_warm_up",
    "tests/engine/text/test_vocabulary.py::test_a_draft_model_that_is_only_numbered_otherwise_drafts_the_same",
    "tests/engine/text/test_vocabulary.py::test_another_vocabulary_never_changes_the_text",
    "tests/guides/test_notebooks.py::test_notebook_runs",
    "tests/guides/test_snippets.py::test_snippets_written_like_the_guides_run",
    "tests/npu_bridge/test_executor.py::test_the_bundled_model_writes_the_same_texts",
    "tests/npu_bridge/test_executor.py::test_the_certificate_says_what_was_and_was_not_run",
    "tests/npu_bridge/test_executor.py::test_the_lowered_loop_writes_the_same_text",
    "tests/npu_bridge/test_lower.py::test_a_program_exports_and_compiles_as_one_graph",
    "tests/npu_bridge/test_lower.py::test_the_lowered_forward_is_the_jitted_one",
    "tests/server/test_ab_job.py::test_the_ascend_job_runs_dry_against_our_own_server",
    "tests/server/test_bench.py::test_the_client_hears_the_offline_texts_and_the_servers_times",
    "tests/server/test_clients.py::test_our_own_audit_passes_on_our_own_server",
    "tests/server/test_load.py::test_slow_readers_and_half_open_connections_stall_nobody",
    "tests/server/test_load.py::test_two_thousand_requests_with_random_aborts",
    "tests/server/test_poison.py::test_poison_fails_the_request_and_not_the_server",
    "tests/server/test_process.py::test_the_guides_words_start_it_and_a_signal_drains_it",
    "tests/server/test_process.py::test_two_signals_stop_it_and_only_its_owner_may_reach_its_socket",
    "tests/simulate/test_calibrate.py::test_the_simulated_gain_falls_with_concurrency_in_all_six_datasets",
    "tests/simulate/test_chain.py::test_plain_python_writes_the_same_text",
    "tests/simulate/test_serving.py::test_a_step_proportional_to_its_batch_shares_the_processor",
    "tests/test_docs.py::test_python_blocks_run_one_after_the_other",
    "tests/theory/test_modelled.py::test_in_random_worlds_the_schedule_loses_against_no_change_in_fewer_than_1_percent",
    "tests/train/test_checkpoint.py::test_a_run_killed_with_sigkill_ends_with_the_same_bits",
    "tests/train/test_checkpoint.py::test_a_time_budget_becomes_steps_once",
    "tests/train/test_train_heads.py::test_steps_reduce_the_loss_and_the_head_that_is_written_loads",
)


def is_slow(name: str) -> bool:
    """Return whether a test's node id is, or lies in, one of ``SLOW``."""
    return any(name == one or name.startswith((f"{one}::", f"{one}[")) for one in SLOW)
