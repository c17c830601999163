"""Benchmarks: the tables count what was decoded, and replayed drafters answer like the live ones. No time is judged."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tfm_lab.bench import decode as bench
from tfm_lab.bench.decode import (
    ReplaySession,
    Spread,
    bench_building,
    bench_decode,
    markdown_stages,
    replayed_source,
    save_bench,
)
from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import Draft, DraftSource, OpenNode, Proposal, TreeConfig, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.evaluation import Context
from tfm_lab.methods import make_speculator
from tfm_lab.metrics import mean_accepted_length
from tfm_lab.models.weaver import WeaverSession
from tfm_lab.trace import DecodeTrace, StageSeconds

CONTEXTS = [Context("a", "code", "", "import os\n"), Context("b", "code", "", "def f(x):\n")]
METHODS = ["ar", "chain", "tfm"]
BUDGET, TOKENS = 6, 8


@pytest.fixture(scope="module")
def tables(tiny_bundle: Bundle) -> list[bench.StageTable]:
    return bench_decode(tiny_bundle, CONTEXTS, METHODS, BUDGET, TOKENS)


def decoded(bundle: Bundle, method: str) -> list[DecodeTrace]:
    config = DecodeConfig(TOKENS, SamplingConfig(0.0), TreeConfig(budget=BUDGET), bundle.target.config.stop_tokens)
    prompts = [bundle.encode(context.prompt) for context in CONTEXTS]
    if method == "ar":
        return [autoregressive_decode(bundle.target, prompt, config) for prompt in prompts]
    speculator = make_speculator(method, bundle.drafter, bundle.weaver, config.sampling)
    return [speculative_decode(bundle.target, speculator, prompt, config) for prompt in prompts]


@pytest.mark.parametrize("method", METHODS)
def test_a_table_counts_the_steps_of_every_context_once(
    tiny_bundle: Bundle, tables: list[bench.StageTable], method: str
) -> None:
    """The warm-up decode is not among them."""
    table, traces = tables[METHODS.index(method)], decoded(tiny_bundle, method)
    assert (table.method, table.budget) == (method, 0 if method == "ar" else BUDGET)
    assert table.steps == sum(trace.target_calls for trace in traces)
    assert table.mal == mean_accepted_length(traces).value


def test_every_stage_has_a_spread_and_plain_decoding_drafts_nothing(tables: list[bench.StageTable]) -> None:
    for table in tables:
        assert tuple(table.stages) == StageSeconds._fields
        assert all(0.0 <= spread.low <= spread.median <= spread.high for spread in table.stages.values())
        assert table.step.median > 0.0
        assert table.tokens_per_second > 0.0
    assert tables[0].stages["draft"] == tables[0].stages["weave"] == Spread(0.0, 0.0, 0.0)
    assert tables[2].stages["weave"].median > 0.0


def test_methods_take_turns_and_every_decode_is_reported(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for name in ("autoregressive_decode", "speculative_decode"):
        decode = getattr(bench, name)
        monkeypatch.setattr(bench, name, lambda *a, decode=decode: order.append(decode.__name__[:4]) or decode(*a))
    done: list[None] = []
    bench_decode(tiny_bundle, CONTEXTS, ["ar", "chain"], 2, 3, lambda: done.append(None))
    assert order == ["auto", "spec"] * 3
    assert len(done) == 6


def test_spreads_are_medians_and_outer_deciles_in_milliseconds() -> None:
    values = [number / 1000 for number in range(11)]
    assert Spread.of(values) == pytest.approx(Spread(5.0, 1.0, 9.0))
    assert Spread.of([0.002]) == Spread(2.0, 2.0, 2.0)
    assert all(math.isnan(value) for value in Spread.of([]))


def test_contexts_that_stop_at_once_cannot_be_timed(tiny_bundle: Bundle) -> None:
    everything = tuple(range(tiny_bundle.target.config.vocab_size))
    target = type(tiny_bundle.target)(replace(tiny_bundle.target.config, stop_tokens=everything))
    target.load_state_dict(tiny_bundle.target.state_dict())
    stopping = replace(tiny_bundle, target=target.eval())
    with pytest.raises(ValueError, match="ar took no step on these contexts: they stop at once; give others"):
        bench_decode(stopping, CONTEXTS, ["ar"], BUDGET, TOKENS)


def live_and_replayed(bundle: Bundle, config: TreeConfig) -> tuple[Draft, Draft]:
    """A tree grown by the Weaver, and one grown from the recording of it."""
    prefilled = bundle.target.prefill(bundle.encode("import os\n"), bundle.drafter.config.tap_layers)
    context = bundle.drafter.extend_context(bundle.drafter.empty_context(), prefilled.taps)
    root = int(prefilled.logits.argmax())
    marginals = bundle.drafter.propose(context, root, bundle.target)
    assert bundle.weaver is not None
    weaver = bundle.weaver
    source = DraftSource(
        marginals, lambda: WeaverSession(weaver, bundle.target, marginals, prefilled.hidden, config.pool_size)
    )
    replayed = replayed_source(bundle, root, marginals, prefilled.hidden, config)
    return woven(root, source, config, SeededDraws(0)), woven(root, replayed, config, SeededDraws(0))


@pytest.mark.parametrize("config", [TreeConfig(budget=20), TreeConfig(budget=9, width=3, children=2, pool_size=8)])
def test_a_replayed_weaver_grows_the_tree_of_the_live_one(tiny_bundle: Bundle, config: TreeConfig) -> None:
    live, replayed = live_and_replayed(tiny_bundle, config)
    assert live.rounds == replayed.rounds
    assert live.drafter_calls == replayed.drafter_calls > 1
    assert torch.equal(live.tree.tokens, replayed.tree.tokens)
    assert torch.equal(live.tree.parents, replayed.tree.parents)
    assert torch.equal(live.tree.log_probs, replayed.tree.log_probs)


def test_a_replay_knows_nodes_by_their_path() -> None:
    """Two nodes with the same token below different parents have their own answers."""
    answers = {(5, 1, 3): torch.tensor([7]), (5, 2, 3): torch.tensor([8])}
    recording = {path: Proposal(tokens, torch.zeros(1)) for path, tokens in answers.items()}
    rest = {path: Proposal(torch.tensor([0]), torch.zeros(1)) for path in ((5,), (5, 1), (5, 2))}
    session = ReplaySession(recording | rest, max_depth=4)
    session.expand([OpenNode(0, -1, 5, 0)])
    session.expand([OpenNode(1, 0, 1, 1), OpenNode(2, 0, 2, 1)])
    found = session.expand([OpenNode(3, 2, 3, 2), OpenNode(4, 1, 3, 2)])
    assert [int(proposal.tokens) for proposal in found] == [8, 7]
    assert session.max_depth == 4


@pytest.mark.parametrize("has_weaver", [True, False])
def test_tree_building_is_timed_for_every_builder(tiny_bundle: Bundle, has_weaver: bool) -> None:
    bundle = tiny_bundle if has_weaver else replace(tiny_bundle, weaver=None)
    times = bench_building(bundle, CONTEXTS[0], budget=12, repeats=3)
    assert times.keys() == {"chain", "best_first", "woven"}
    assert all(0.0 < spread.low <= spread.median <= spread.high for spread in times.values())


def test_saved_tables_carry_their_provenance(tables: list[bench.StageTable], tmp_path: Path) -> None:
    building = {"woven": Spread(0.5, 0.25, 0.75)}
    setup = {"device": "cpu", "bundle": "tiny", "dtype": "float32", "contexts": 2, "budget": 6, "max_new_tokens": 8}
    save_bench(tables, building, setup, tmp_path / "new" / "stages.json")
    document = json.loads((tmp_path / "new" / "stages.json").read_text())
    assert document["provenance"].keys() >= {"command", "date", "commit", "device", "threads", "torch"}
    assert document["setup"] == setup
    assert [entry["method"] for entry in document["methods"]] == METHODS
    assert document["methods"][1]["stages"]["verify"] == tables[1].stages["verify"]._asdict()
    assert document["tree_building_without_models"] == {"woven": {"median": 0.5, "low": 0.25, "high": 0.75}}
    text = (tmp_path / "new" / "stages.md").read_text()
    for name in ("command", "date", "commit", "torch"):
        assert f"{name}: {document['provenance'][name]}" in text
    assert "dtype: float32" in text
    assert markdown_stages(tables, building) in text


def test_stages_as_markdown(tables: list[bench.StageTable]) -> None:
    lines = markdown_stages(tables, {"woven": Spread(0.5, 0.25, 0.75)}).splitlines()
    assert lines[0] == "| method | B | draft | weave | verify | accept | commit | step | MAL | tok/s |"
    assert len({line.count("|") for line in lines[:5]}) == 1
    assert lines[2].startswith("| ar | 0 | 0.00 [0.00, 0.00] | ")
    assert lines[-1] == "* woven: 0.50 [0.25, 0.75]"
