"""Seventeen reports by users of speculative decoding, and the tests that answer each.

A report is a public thread told in one sentence. What it describes must not happen here; ``tests`` name the proof, in
this folder or where the property is tested anyway.

====== ====================================================
report what went wrong
====== ====================================================
1-5    acceptance: reused draws, biased ratios, false alarms
6-8    stops and lengths
9-15   recurrent state and the gated delta rule
16-17  kernels, and what a decode leaves behind
====== ====================================================
"""

from dataclasses import dataclass

HERE = "tests/user_reports/"
ACCEPTANCE = f"{HERE}test_reports_on_acceptance.py::"
LENGTHS = f"{HERE}test_reports_on_lengths.py::"
STATE = f"{HERE}test_reports_on_state.py::"
RESIDUE = f"{HERE}test_reports_on_residue.py::"
LAWS = "tests/test_verification.py::"
EDGES = "tests/test_verification_edges.py::"
LOOP = "tests/test_decoding.py::"
RULE = "tests/test_gdn_delta_rule.py::"
TREE = "tests/test_gdn_tree.py::"
HAZARDS = "tests/test_gdn_hazards.py::"
TARGET = "tests/models/test_target.py::"
SHIPPED = "tests/test_shipped_bundle.py::"
DIVERGENCE = "tests/test_divergence.py::"
GITHUB = "https://github.com/"


@dataclass(frozen=True, slots=True)
class Report:
    """One report.

    Attributes:
        symptom: what users saw, in a sentence.
        thread: where.
        tests: ids of the tests that would fail if it happened here, without parameters.
    """

    symptom: str
    thread: str
    tests: tuple[str, ...]


REPORTS: dict[int, Report] = {
    1: Report(
        "The draw that chose the draft also draws its replacement, and the text drifts.",
        f"{GITHUB}vllm-project/vllm/pull/54282",
        (
            f"{EDGES}test_seeded_draws_emit_the_target_frequencies",
            f"{ACCEPTANCE}test_one_source_of_draws_or_two_give_the_same_exact_law",
            f"{ACCEPTANCE}test_drafting_and_acceptance_draw_from_streams_of_their_own",
            f"{ACCEPTANCE}test_what_the_drafter_draws_never_moves_the_text",
        ),
    ),
    2: Report(
        "The ratio min(1, p/q) on children picked by top-k accepts too much.",
        f"{GITHUB}warpfront/hipfire/pull/483",
        (
            f"{LAWS}test_the_emitted_law_is_the_targets_or_the_pair_is_refused",
            f"{LAWS}test_top_two_siblings_with_the_ratio_rule_emit_one_half_one_half",
            f"{LAWS}test_planted_wrong_pairs_are_caught",
            f"{ACCEPTANCE}test_the_ratio_rule_refuses_the_fixed_trees_of_every_method",
        ),
    ),
    3: Report(
        "False alarms: argmax drafts above temperature 0, or trees with branches, are said to be lossy.",
        f"{GITHUB}SafeAILab/EAGLE/issues/221",
        (
            f"{LAWS}test_acceptance_of_one_draft",
            f"{LAWS}test_any_target_and_any_drafter_are_exact",
            f"{LAWS}test_a_drafter_that_is_always_wrong_costs_nothing_but_its_tokens",
            f"{ACCEPTANCE}test_greedy_text_survives_a_drafter_that_is_always_wrong",
            f"{ACCEPTANCE}test_sampled_text_survives_a_drafter_that_is_always_wrong",
        ),
    ),
    4: Report(
        "Probabilities become NaN, or uniform, when nothing is left after rejections.",
        f"{GITHUB}SafeAILab/EAGLE/issues/45",
        (
            f"{EDGES}test_no_rejection_ends_in_nan_or_in_a_token_that_the_target_rules_out",
            f"{EDGES}test_certain_outcomes_draw_nothing",
            f"{EDGES}test_siblings_without_any_probability_are_never_tried",
            f"{ACCEPTANCE}test_a_target_with_one_possible_token_is_followed_by_every_rule",
        ),
    ),
    5: Report(
        "Greedy text differs from plain decoding in bfloat16 only.",
        f"{GITHUB}vllm-project/vllm/issues/54928",
        (
            f"{DIVERGENCE}test_exact_decoding_never_diverges",
            f"{DIVERGENCE}test_the_shipped_bundle_in_bfloat16_differs_by_rounding_alone",
            f"{ACCEPTANCE}test_in_bfloat16_a_text_leaves_the_plain_one_at_near_ties_alone",
        ),
    ),
    6: Report(
        "A stop token accepted in the middle of a block is overrun.",
        f"{GITHUB}huggingface/transformers/issues/47912",
        (
            f"{LOOP}test_text_ends_at_the_first_stop_token_wherever_it_falls",
            f"{LOOP}test_a_stop_token_inside_an_accepted_path_clips_text_and_state",
            f"{LENGTHS}test_every_token_of_a_text_can_be_the_one_that_stops_it",
        ),
    ),
    7: Report(
        "A path that is accepted as a whole exceeds the requested length, or the context.",
        f"{GITHUB}turboderp-org/exllamav2/issues/274",
        (
            f"{LOOP}test_never_more_tokens_than_asked_for_even_when_everything_is_accepted",
            f"{LOOP}test_the_context_is_filled_and_never_overrun",
            f"{LENGTHS}test_a_drafter_that_is_always_right_gets_no_token_more",
            f"{LENGTHS}test_a_tree_deeper_than_what_is_left_gets_no_token_more",
            f"{LENGTHS}test_a_prompt_that_leaves_little_room_gets_no_token_more",
        ),
    ),
    8: Report(
        "Padding removed by value deletes a genuine token that equals the mask.",
        f"{GITHUB}NVIDIA-NeMo/Automodel/pull/3268",
        (
            f"{LOOP}test_a_text_that_holds_the_mask_token_loses_nothing",
            f"{LENGTHS}test_a_target_that_writes_the_mask_token_loses_nothing",
        ),
    ),
    9: Report(
        "After steps with drafts, a step without any reads an older recurrent state.",
        f"{GITHUB}vllm-project/vllm/issues/39273",
        (
            f"{LOOP}test_state_and_context_after_mixed_budgets_equal_plain_prefill",
            f"{SHIPPED}test_state_after_any_mixture_of_budgets_equals_plain_prefill",
            f"{STATE}test_steps_with_and_without_drafts_share_one_state",
        ),
    ),
    10: Report(
        "A layer without parent links verifies a tree as a chain.",
        f"{GITHUB}sgl-project/sglang/pull/27463",
        (
            f"{TARGET}test_every_path_of_a_tree_equals_a_plain_forward_of_prompt_and_path",
            f"{TARGET}test_sibling_order_changes_no_logits_and_a_changed_branch_moves_only_its_subtree",
            f"{TREE}test_changing_one_node_moves_its_subtree_alone",
            f"{TREE}test_the_order_of_siblings_changes_nothing",
            "tests/test_gdn_convolution.py::test_every_node_convolves_along_its_own_path",
            f"{SHIPPED}test_every_path_of_a_woven_tree_equals_transformers_plain_forward",
        ),
    ),
    11: Report(
        "A tree without branches accepts fewer tokens than the chain that it is.",
        f"{GITHUB}Luce-Org/lucebox/pull/415",
        (
            f"{LOOP}test_branches_beside_a_chain_take_nothing_from_it",
            f"{LAWS}test_a_larger_tree_never_lowers_greedy_acceptance",
            f"{STATE}test_a_tree_without_branches_is_the_chain",
            f"{STATE}test_more_nodes_never_lower_greedy_acceptance",
        ),
    ),
    12: Report(
        "The solved factors hold NaN for some gates.",
        f"{GITHUB}fla-org/flash-linear-attention/issues/99",
        (
            f"{HAZARDS}test_siblings_that_forget_and_keep_by_turns",
            f"{HAZARDS}test_gradients_beside_a_sibling_that_forgot_hard_are_finite",
        ),
    ),
    13: Report(
        "Is the state decayed before or after the correction?",
        f"{GITHUB}fla-org/flash-linear-attention/issues/885",
        (
            f"{RULE}test_recurrent_is_the_matrix_recurrence",
            f"{RULE}test_chunked_is_recurrent_at_any_length",
            f"{TREE}test_a_chain_is_the_chunked_rule",
            f"{STATE}test_the_state_decays_before_it_is_corrected",
        ),
    ),
    14: Report(
        "With more value heads than key heads the last ones are silently wrong.",
        f"{GITHUB}ohdearquant/lattice/issues/262",
        (
            f"{RULE}test_recurrent_is_the_matrix_recurrence",
            f"{RULE}test_value_heads_must_be_a_multiple_of_key_heads",
            f"{TREE}test_every_head_layout",
            f"{TREE}test_value_heads_must_be_a_multiple_of_key_heads",
            f"{STATE}test_value_head_h_reads_key_head_h_over_the_group",
        ),
    ),
    15: Report(
        "Gates are rounded on one path only, and the state drifts with every step.",
        f"{GITHUB}1CatAI/1Cat-vLLM/pull/267",
        (
            f"{HAZARDS}test_forced_rejections_do_not_let_the_state_drift",
            f"{STATE}test_rejections_do_not_let_the_state_drift",
        ),
    ),
    16: Report(
        "The interpreter multiplies the bit patterns of bfloat16, and without Triton nothing starts.",
        f"{GITHUB}triton-lang/triton/issues/11584",
        (
            "tests/kernels/test_gdn_tree_dense.py::test_bfloat16_is_refused_in_the_interpreter",
            "tests/kernels/test_gdn_tree_dense.py::test_a_machine_without_triton_is_told",
            "tests/test_import.py::test_the_package_works_without_triton",
        ),
    ),
    17: Report(
        "The first request is fine, the second one crashes: the drafter's books survived.",
        f"{GITHUB}ggml-org/llama.cpp/pull/22105",
        (
            f"{LOOP}test_a_decode_leaves_no_residue",
            f"{LOOP}test_two_sessions_taken_in_turns_do_not_disturb_each_other",
            f"{RESIDUE}test_a_second_decode_is_that_of_a_fresh_process",
        ),
    ),
}

PROMISES: dict[str, tuple[str, ...]] = {
    "random numbers are drawn only when used": (
        f"{EDGES}test_certain_outcomes_draw_nothing",
        f"{EDGES}test_sibling_order_is_drawn_only_while_it_is_open",
        f"{RESIDUE}test_a_decode_draws_one_number_per_token_and_none_where_nothing_is_open",
    ),
    "the same seed and settings give the same trace": (
        f"{RESIDUE}test_the_same_seed_and_settings_give_the_same_trace",
    ),
    "budget 0 with a seed is plain sampling with that seed": (
        f"{LOOP}test_budget_zero_is_plain_sampling_with_the_same_seed",
        f"{RESIDUE}test_budget_zero_with_a_seed_is_plain_sampling_with_that_seed",
    ),
}
"""What the reports together ask of any decode."""
