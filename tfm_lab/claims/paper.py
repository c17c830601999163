"""The claims of "Trees from Marginals" (arXiv 2607.06763), each with what this project can say about it.

The paper's body could not be read for this list. What it states comes from its abstract, the model card, the README and
the released code; theory is restated from second hand. ``source`` says which.
"""

from tfm_lab.claims.records import Claim, Examined, MetricLink, Outcome, ResultLink, SpeedLink

CARD = "model card and README: Qwen3.6-27B, one B200, batch 1, temperature 1, means over eight data sets"
KERNEL_CARD = "model card and README: one B200, batch 1, one layer"
SECOND_HAND = "section 3.5, read at second hand"
REPLAYED = (
    "Whole decodes in the shape of the 27B model on one H200, with random weights and replayed acceptance: every step "
    "is real, and how much it accepts is drawn from what SmolLM2-135M accepted at temperature 0. "
)


def _gains(baseline: str) -> tuple[ResultLink, ...]:
    """Gains of TfM over ``baseline`` at 64 nodes: the hybrid over all contexts, SmolLM2 as mean of three suites."""
    links = list[ResultLink]()
    for temperature in ("0.0", "1.0"):
        choice, at = (
            f"temperature={temperature}; budget=64; baseline={baseline}",
            f"temperature {temperature[0]}, B = 64",
        )
        path = ("gains", choice, "gain")
        links.append(ResultLink("hybrid_mal.json", path, f"shipped hybrid, {at}", ("standard_error",), percent=True))
        path = ("gains", f"{choice}; shared_noise=False", "macro", "value")
        links.append(ResultLink("smollm2_mal.json", path, f"SmolLM2-135M, {at}", ("low", "high"), percent=True))
    return tuple(links)


def _cpu(method: str) -> ResultLink:
    path = ("comparisons", f"plan.method={method}", "macro", "value")
    return ResultLink("smollm2_wall_clock_cpu.json", path, f"{method} over plain decoding, times", ("low", "high"))


def _replayed(method: str, over: str, suites: tuple[str, ...]) -> tuple[SpeedLink, ...]:
    titles = {"ar": "plain decoding", "chain": "chain", "ddtree": "DDTree", "tfm": "TfM"}
    return tuple(
        SpeedLink(suite, method, over, f"speed, {titles[method]} over {titles[over]}, 27B shape, replayed {suite}")
        for suite in suites
    )


def _kernel(nodes: int, tile: int) -> ResultLink:
    path, (theirs, ours) = (
        ("results", f"batch=1; nodes={nodes}", "variants"),
        (("variant=" + name, "time", "median") for name in (f"SGLang recurrent BV={tile}", "fused verify+commit")),
    )
    what = f"SGLang's kernel over ours, {nodes} nodes" + (", its general setting" if tile == 32 else "")
    return ResultLink("kernel_h200.json", (*path, *theirs), what, ("p10", "p90"), over=(*path, *ours))


STEPS = {
    "chain": "chain B=15 batch=1 context=1024 gdn=triton",
    "tfm": "tfm B=63 batch=1 context=1024 gdn=triton",
    "recurrent": "tfm B=63 batch=1 context=1024 gdn=recurrent",
}
"""Steps of the full-size measurement by their key in the file: 16 rows of a chain, 64 of a tree."""


def _step_over_chain(step: str, what: str) -> ResultLink:
    path, over = (("records", f"key={STEPS[name]}", "step_ms", "median") for name in (step, "chain"))
    return ResultLink("model_h200.json", path, what, ("p10", "p90"), over=over)


def _share(step: str, part: str, what: str) -> ResultLink:
    entry = ("records", f"key={STEPS[step]}")
    return ResultLink(
        "model_h200.json", (*entry, "parts_ms", part, "median"), what, ("p10", "p90"), percent=True,
        over=(*entry, "step_ms", "median"),
    )  # fmt: skip


def _recorded_length(suite: str) -> ResultLink:
    paths = (
        ("summaries", f"kind={suite}; method={method}; budget=64; temperature=0.0", "mal", "value")
        for method in ("tfm", "chain")
    )
    path, over = paths
    what = f"accepted length, TfM over the chain, SmolLM2-135M, {suite}"
    return ResultLink("smollm2_mal.json", path, what, ("low", "high"), over=over)


THEORY = (
    Claim(
        name="acceptance-is-overlap",
        statement="A drafted token is accepted with probability 1 minus the total-variation distance between the "
        "drafter's law and the target's.",
        figure="1 - TV",
        source=SECOND_HAND,
        examined=Examined.PROVED,
        outcome=Outcome.HOLDS,
        because="Both sides are computed from their definitions and differ by rounding alone.",
        evidence=(
            MetricLink("01_lossless_by_construction", "acceptance.minus_overlap", "largest difference of both sides"),
        ),
    ),
    Claim(
        name="lossless",
        statement="The text has the target's own law: trees change the speed and nothing else.",
        figure="",
        source="abstract",
        examined=Examined.PROVED,
        outcome=Outcome.HOLDS,
        because="Every pair of tree and rule that is called lossless is enumerated on small vocabularies: the law of "
        "the emitted tokens is the target's within rounding. Not every pair is lossless, and those that are not are "
        "refused. On the shipped hybrid, about 200,000 sampled tokens of each pair show no deviation, and greedy "
        "texts of 200 prompts are those of plain decoding in float32. In bfloat16 near ties fall either way, and about "
        "one greedy text in eight is another one: the law holds up to rounding.",
        evidence=(
            MetricLink("07_verifying_trees", "bias.of_lossless", "largest distance from the target's law"),
            ResultLink(
                "hybrid_chi_squared.json",
                ("tests", "source=steps; contender=tfm, target_sample", "p_value"),
                "p value, TfM with the target's own sample",
            ),
            ResultLink(
                "hybrid_divergence.json",
                ("comparisons", "method=tfm; dtype=float32", "identical"),
                "of 200 greedy texts identical, float32",
            ),
        ),
    ),
    Claim(
        name="factorised-ceiling",
        statement="A drafter that guesses all positions at once is capped: even the true marginals are accepted only "
        "as often as they overlap with the conditionals.",
        figure="",
        source=SECOND_HAND,
        examined=Examined.TOY,
        outcome=Outcome.HOLDS,
        because="In a Markov world the acceptance of the true marginals is computed exactly and falls with the "
        "depth. No drafter found by optimisation passes the ceiling of the best factorised law.",
        evidence=(
            MetricLink("02_parallel_ceiling", "ceiling.marginal.2", "ceiling at depth 2"),
            MetricLink("02_parallel_ceiling", "ceiling.marginal.8", "ceiling at depth 8"),
            MetricLink("02_parallel_ceiling", "ceiling.excess", "largest excess over the ceiling"),
        ),
    ),
    Claim(
        name="point-mass-at-depth",
        statement="Deep in the block one should not sample the marginal: its likeliest token alone is accepted more "
        "often.",
        figure="from depth 2 to 4 on",
        source=SECOND_HAND,
        examined=Examined.TOY,
        outcome=Outcome.PARTLY,
        because="It depends on how concentrated the target is. In the most concentrated toy world the crossover "
        "comes at the depth shown; in the two more diffuse ones it never comes (0).",
        evidence=(
            MetricLink("02_parallel_ceiling", "crossover.0_02", "crossover depth, c = 0.02"),
            MetricLink("02_parallel_ceiling", "crossover.0_05", "crossover depth, c = 0.05"),
            MetricLink("02_parallel_ceiling", "crossover.0_1", "crossover depth, c = 0.1"),
        ),
    ),
    Claim(
        name="best-first-is-optimal",
        statement="Taking the likeliest frontier node next gives the tree of that size with the largest expected "
        "length under the drafter's law.",
        figure="",
        source="DDTree and DySpec, which the method builds on",
        examined=Examined.PROVED,
        outcome=Outcome.HOLDS,
        because="Compared with every tree of up to six nodes in a toy world.",
        evidence=(
            MetricLink("03_chain_to_tree", "brute_force.minus_best_first", "largest difference from the best of all"),
        ),
    ),
)

WEAVER = (
    Claim(
        name="weaver-conditions",
        statement="Weaver gives back what the block drafter lost: its law depends on the tokens that were really "
        "drafted.",
        figure="",
        source="abstract",
        examined=Examined.MEASURED,
        outcome=Outcome.HOLDS,
        because="Measured on the shipped hybrid, at all nodes of the trees of four held-out texts: the overlap with "
        "the target's law is larger for Weaver than for the marginal. The ceiling is what the pool would allow.",
        evidence=(
            MetricLink("04_weaver_conditionals", "texts.tfm.marginal", "overlap of the marginal, nodes of TfM's trees"),
            MetricLink("04_weaver_conditionals", "texts.tfm.weaver", "overlap of Weaver, the same nodes"),
            MetricLink("04_weaver_conditionals", "texts.tfm.ceiling", "what the pool would allow"),
        ),
    ),
    Claim(
        name="trained-on-a-frozen-drafter",
        statement="A light Weaver, trained by teacher forcing on top of a drafter that stays as it is, is enough for "
        "trees that are accepted longer.",
        figure="",
        source="model card and released code",
        examined=Examined.TRAINED,
        outcome=Outcome.HOLDS,
        because="Trained in the notebook in a tiny world, where lengths are exact. The inequality held with each of "
        "the losses in ten worlds, one training in each. How large the gain is there says nothing about a real model.",
        evidence=(
            MetricLink("05_train_the_weaver", "trained.lk.minus_ddtree", "tokens per call over DDTree, LK loss"),
            MetricLink(
                "05_train_the_weaver", "trained.lk.share_of_ideal", "share of the length of perfect conditionals"
            ),
            MetricLink("05_train_the_weaver", "frozen.drafter_changed", "change of the drafter's weights"),
        ),
    ),
    Claim(
        name="path-attention",
        statement="One pass over all nodes of a tree, with a mask that lets each see its own ancestors, equals one "
        "pass for every path.",
        figure="",
        source="released code",
        examined=Examined.PROVED,
        outcome=Outcome.HOLDS,
        because="Both are computed in float64 on the shipped Weaver.",
        evidence=(MetricLink("04_weaver_conditionals", "mask.minus_path", "largest difference"),),
    ),
    Claim(
        name="pool-instead-of-vocabulary",
        statement="Scoring a pool of 512 candidates replaces the projection to the full vocabulary, and loses little.",
        figure="K = 512",
        source="model card and released code",
        examined=Examined.MEASURED,
        outcome=Outcome.PARTLY,
        because="The bytes that a tree reads are computed from the published sizes. That little is lost holds for "
        "Weaver's overlap on the shipped hybrid, whose 1,024 candidates hardly do better than 512; the target's mass "
        "outside the pool is not small, though. A pool of another model may cover more.",
        evidence=(
            MetricLink("04_weaver_conditionals", "bytes.ratio", "bytes of the vocabulary over bytes of the pool"),
            MetricLink("04_weaver_conditionals", "ceiling.weaver.k_512", "overlap of Weaver, all trees, K = 512"),
            MetricLink("04_weaver_conditionals", "ceiling.weaver.k_1024", "overlap of Weaver, all trees, K = 1,024"),
            MetricLink("04_weaver_conditionals", "ceiling.k_512", "target's mass on the pool, K = 512"),
        ),
    ),
    Claim(
        name="calls",
        statement="A tree of B nodes grown w at a time needs B / w sequential calls of Weaver, rounded up.",
        figure="⌈B / w⌉",
        source="abstract and released code",
        examined=Examined.PROVED,
        outcome=Outcome.HOLDS,
        because="Counted on real trees. It takes fewer calls where the depth runs out, as near the end of a text, and "
        "more where a node may have fewer than w children.",
        evidence=(MetricLink("06_growing_trees", "calls.is_ceiling", "difference from the formula"),),
    ),
    Claim(
        name="width-is-nearly-free",
        statement="Growing several nodes at a time costs hardly any accepted length.",
        figure="w = ⌈B / 16⌉",
        source="released code",
        examined=Examined.MEASURED,
        outcome=Outcome.PARTLY,
        because="At the released rule the loss is small on the shipped hybrid. Far wider rounds lose much, most of "
        "all for a target that accepts long paths: B / w rounds cannot grow deeper than B / w levels.",
        evidence=(
            MetricLink("06_growing_trees", "width.rule.loss", "share of the length lost at w = ⌈B / 16⌉"),
            MetricLink("06_growing_trees", "width.1.expected", "expected length, w = 1"),
            MetricLink("06_growing_trees", "width.8.expected", "expected length, w = 8"),
        ),
    ),
    Claim(
        name="length-over-ddtree",
        statement="At the same size, TfM's trees are accepted longer than DDTree's.",
        figure="+32 %",
        source=CARD,
        examined=Examined.MEASURED,
        outcome=Outcome.FALLS_SHORT,
        because="The direction holds in every setting. The size of the gain is not reached, with small models that "
        "were trained for minutes to hours; at temperature 1 it is far from reached, and with the 8 children per node "
        "of the released code in place of 32 the hybrid's gain there is half as large.",
        evidence=_gains("ddtree"),
        threshold=0.32,
    ),
    Claim(
        name="length-over-chain",
        statement="TfM's trees are accepted longer than the block drafter's chain.",
        figure="+77 %",
        source=CARD,
        examined=Examined.MEASURED,
        outcome=Outcome.PARTLY,
        because="Reached at temperature 0 on both models, not at temperature 1, which is the paper's setting.",
        evidence=_gains("chain"),
        threshold=0.77,
    ),
)

KERNEL = (
    Claim(
        name="masked-solve",
        statement="A whole tree passes through a Gated DeltaNet layer in one masked triangular solve.",
        figure="",
        source="released code",
        examined=Examined.PROVED,
        outcome=Outcome.HOLDS,
        because="Compared with the recurrence along every path of random trees, in float64.",
        evidence=(
            MetricLink("08_matrix_memory", "solve.float64", "largest difference, float64"),
            MetricLink("08_matrix_memory", "solve.paths", "paths compared"),
        ),
    ),
    Claim(
        name="no-rollback",
        statement="The state is committed after acceptance, in closed form, so nothing has to be rolled back and no "
        "state per node is kept.",
        figure="",
        source="abstract and released code",
        examined=Examined.PROVED,
        outcome=Outcome.HOLDS,
        because="The committed state equals the recurrence's along every path. The bytes follow from the published "
        "sizes.",
        evidence=(
            MetricLink("08_matrix_memory", "commit.float64", "largest difference of the committed state"),
            MetricLink("08_matrix_memory", "model.commit_minus_plain", "the same through the shipped hybrid"),
            MetricLink("08_matrix_memory", "bytes.ratio", "bytes of node states over bytes that are kept, 128 nodes"),
        ),
    ),
    Claim(
        name="kernel-is-right",
        statement="A fused kernel computes the same outputs as the layer's recurrence.",
        figure="",
        source="released code",
        examined=Examined.PROVED,
        outcome=Outcome.HOLDS,
        because="Our kernels, not the paper's, in Triton's interpreter and float32: the error is that of float32.",
        evidence=(
            MetricLink("09_fused_kernel", "error.verify_tree", "largest error, float32"),
            MetricLink("09_fused_kernel", "closure.minus_whole", "blocks of a tree against the whole, float64"),
        ),
    ),
    Claim(
        name="kernel-is-fast",
        statement="The fused kernel beats the recurrence that keeps a state for every node.",
        figure="1.5, 2.7, 4.6, 7.1 times at 16, 32, 64, 128 nodes",
        source=KERNEL_CARD,
        examined=Examined.MEASURED,
        outcome=Outcome.PARTLY,
        because="Our kernels on one H200, commit included, beside SGLang's recurrent kernel, which keeps a state per "
        "node and whose commit, a copy, is left out. Ours are faster at every size. With SGLang's setting for trees "
        "the ratio reaches the paper's figure at 16 nodes and stays below it from 32 on; with its general setting "
        "it is far above. Which baseline the paper timed is not at hand.",
        evidence=(
            *(_kernel(nodes, 4) for nodes in (17, 33, 65, 129)),
            _kernel(65, 32),
            MetricLink("09_fused_kernel", "traffic.bytes.per_branch", "bytes per layer and head, one branch at a time"),
            MetricLink("09_fused_kernel", "traffic.bytes.fused", "bytes per layer and head, fused"),
        ),
    ),
    Claim(
        name="bfloat16-state",
        statement="States may be kept in bfloat16: acceptance changes by next to nothing.",
        figure="+0.018 % over 192 contexts",
        source="README",
        examined=Examined.NOT_REPRODUCED,
        outcome=Outcome.OPEN,
        because="Our states are float32 throughout, so there is nothing to compare.",
    ),
)

SECONDS = (
    Claim(
        name="speed-over-plain",
        statement="TfM decodes several times as fast as plain decoding.",
        figure="4.37 times (392.8 against 89.9 tokens/s); the chain 3.50 times",
        source=CARD,
        examined=Examined.MEASURED,
        outcome=Outcome.FALLS_SHORT,
        because=REPLAYED + "About three times, not more than four. On word problems, where most is accepted, TfM was "
        "not reached in the time of the measurement. With the lengths of the paper's own models, which are not "
        "published, the same steps would give another figure.",
        evidence=_replayed("tfm", "ar", ("chat", "code")),
        threshold=4.37,
    ),
    Claim(
        name="speed-over-chain",
        statement="TfM is faster than the chain, by much less than its accepted length suggests.",
        figure="+24.7 %",
        source=CARD,
        examined=Examined.MEASURED,
        outcome=Outcome.PARTLY,
        because=REPLAYED
        + "There the gain is larger than reported, because a TfM step lasts fewer chain steps than the "
        "paper's two gains imply. Word problems were not reached. On a CPU with SmolLM2-135M, each method at its own "
        "best settings, the chain is faster.",
        evidence=(
            *_replayed("tfm", "chain", ("chat", "code")),
            _step_over_chain("tfm", "TfM steps over chain steps, 27B shape"),
            MetricLink("10_tokens_to_seconds", "derived.step_ratio", "the same, derived from the paper's gains"),
            _cpu("tfm"),
            _cpu("chain"),
        ),
        threshold=1.247,
    ),
    Claim(
        name="speed-over-ddtree",
        statement="TfM is faster than DDTree at the same size.",
        figure="+10 to +30 %",
        source=CARD,
        examined=Examined.MEASURED,
        outcome=Outcome.PARTLY,
        because=REPLAYED
        + "There the gain lies in the range, and with chat its error reaches below; word problems were not reached. "
        "On a CPU with two cores and SmolLM2-135M, each method at its own best settings, DDTree is faster: "
        "calls of the Weaver cost more there than the nodes they improve.",
        evidence=(*_replayed("tfm", "ddtree", ("chat", "code")), _cpu("tfm"), _cpu("ddtree"), _cpu("chain")),
        threshold=1.1,
    ),
    Claim(
        name="kernel-makes-the-tree-pay",
        statement="With a state per node, a tree of 64 nodes would not pay.",
        figure="195.0 against 42.8 microseconds a layer",
        source="derived from the model card",
        examined=Examined.MEASURED,
        outcome=Outcome.FALLS_SHORT,
        because="By arithmetic on the published times it would not, under one reading of where verification's share "
        "goes: the chain then has the MAL shown, and the tree 1.77 times that, which lies between the two bars. The "
        "steps measured in the 27B model's shape say otherwise: with SGLang's kernel a TfM step lasts more chain "
        "steps, but still fewer than the tree brings in accepted length. The kernel makes the tree faster, and it "
        "pays without.",
        evidence=(
            _step_over_chain("tfm", "TfM steps over chain steps, fused kernels"),
            _step_over_chain("recurrent", "the same with a state per node (SGLang)"),
            _recorded_length("chat"),
            _recorded_length("code"),
            MetricLink("10_tokens_to_seconds", "derived.chain_mal", "MAL of the chain under that reading"),
            MetricLink("10_tokens_to_seconds", "break_even.fused", "MAL that a tree needs with the fused kernel"),
            MetricLink("10_tokens_to_seconds", "break_even.state_per_node", "MAL that it needs with a state per node"),
            MetricLink("10_tokens_to_seconds", "derived.kernel_extra_ms", "milliseconds added to a step"),
        ),
    ),
    Claim(
        name="verification-share",
        statement="Verification takes about an eighth of the decode time.",
        figure="12 %",
        source=CARD,
        examined=Examined.MEASURED,
        outcome=Outcome.PARTLY,
        because="Which stages count as verification is not published. In a TfM step of 64 rows in the 27B model's "
        "shape on one H200, the Gated DeltaNet layers' convolution, verification and commit take about half of that "
        "share, with the attention over the cache less than all of it, and with a state per node more.",
        evidence=(
            _share("tfm", "memories", "Gated DeltaNet in a TfM step, fused kernels"),
            _share("tfm", "attention", "attention over the cache in the same step"),
            _share("recurrent", "memories", "Gated DeltaNet with a state per node (SGLang)"),
        ),
    ),
    Claim(
        name="per-data-set",
        statement="The gains are reported for each of eight data sets.",
        figure="a table",
        source="model card, as a picture",
        examined=Examined.NOT_REPRODUCED,
        outcome=Outcome.OPEN,
        because="The table could not be read, so no figure of it is quoted or compared anywhere in this project.",
    ),
)

CLAIMS: tuple[Claim, ...] = (*THEORY, *WEAVER, *KERNEL, *SECONDS)
