"""What the explorer keeps of a decode is what decoding gives, and the laws of its nodes are those of the models."""

import pytest
from explorer.small import SETTINGS, exploration

from tfm_lab import lab
from tfm_lab.decoding import DecodeSession
from tfm_lab.distributions import TargetRows, total_variation
from tfm_lab.drafting import OpenNode
from tfm_lab.explorer.exploring import Progress, explore
from tfm_lab.explorer.settings import METHODS, Settings, load, targets
from tfm_lab.explorer.survey import SHOWN, united
from tfm_lab.lab import decode_all
from tfm_lab.methods import make_speculator
from tfm_lab.metrics import expected_tokens_per_call


def test_the_trace_is_that_of_an_ordinary_decode() -> None:
    models, shown = load("hybrid"), exploration()
    config = SETTINGS.config(models.target.config.stop_tokens)
    plain = decode_all(models, models.chat(SETTINGS.prompt), config, ["tfm"])["tfm"]
    assert shown.trace.tokens == plain.tokens
    assert [s.committed for s in shown.trace.steps] == [s.committed for s in plain.steps]
    assert len(shown.rounds) == shown.trace.target_calls
    assert "".join(shown.pieces) == models.decode(shown.trace.tokens)


@pytest.mark.parametrize("method", ["chain", "ddtree"])
def test_what_others_would_do_in_a_context_is_what_they_do_there(method: str) -> None:
    """The text is the same; wherever both decodes halt at the same place, tree and accepted path are the same too."""
    own, seen = exploration(method), exploration("tfm")
    assert own.trace.tokens == seen.trace.tokens

    def by_place(name: str, shown):
        place, found = 1, {}
        for one, step in zip(shown.rounds, shown.trace.steps, strict=True):
            found[place] = one.trees[name]
            place += len(step.committed)
        return found

    mine, theirs = by_place(method, own), by_place(method, seen)
    common = sorted(mine.keys() & theirs.keys())
    assert 1 in common
    for place in common:
        assert mine[place].paths == theirs[place].paths
        assert mine[place].step.acceptance.path == theirs[place].step.acceptance.path
        assert mine[place].step.committed == theirs[place].step.committed


def test_facts_are_those_of_the_models() -> None:
    """Against the session of an ordinary decode, halted before its first step."""
    models, shown = load("hybrid"), exploration()
    config = SETTINGS.config(models.target.config.stop_tokens)
    speculator = make_speculator("tfm", models.drafter, models.weaver, config.sampling)
    session = DecodeSession(models.target, speculator, models.chat(SETTINGS.prompt), config)
    assert session.last_token == shown.trace.first_token
    here = shown.rounds[0]
    tree = here.trees["tfm"]
    rows = TargetRows(models.target.verify_tree(session.state, tree.step.tree).logits, config.sampling)
    assert tree.expected == pytest.approx(expected_tokens_per_call(tree.step.tree, rows), abs=1e-9)
    step = lab.open_step(models, [*models.chat(SETTINGS.prompt), session.last_token], SETTINGS.pool)
    assert step.source.open_session is not None
    assert step.source.marginals is not None
    (proposal,) = step.source.open_session().expand([OpenNode(0, -1, session.last_token, 0)])
    weaver, marginal = proposal.dense(8192), step.source.marginals.logits.double().softmax(1)[0]
    law = here.facts[()].law
    assert law is not None
    assert law.weaver_target == pytest.approx(float(total_variation(weaver, rows.probabilities(0))), abs=1e-6)
    assert law.marginal_target == pytest.approx(float(total_variation(marginal, rows.probabilities(0))), abs=1e-6)
    assert law.marginal_weaver == pytest.approx(float(total_variation(marginal, weaver)), abs=1e-6)
    child = tree.paths[1]
    assert here.facts[child].marginal == pytest.approx(float(marginal[child[0]]), abs=1e-6)
    assert here.facts[child].weaver == pytest.approx(float(weaver[child[0]]), abs=1e-6)
    assert here.facts[child].target == pytest.approx(float(rows.probabilities(0)[child[0]]), abs=1e-6)


def test_every_law_is_a_law_and_every_tree_is_known() -> None:
    for here in exploration().rounds:
        for name in METHODS:
            tree = here.trees[name]
            assert set(tree.paths) <= set(here.facts)
            assert sum(len(growth.added) for growth in tree.rounds) == tree.step.tree.budget
        for path, facts in here.facts.items():
            assert path == () or path[:-1] in here.facts
            if facts.law is not None:
                assert len(facts.law.shares) == SHOWN + 1
                for column in list(zip(*facts.law.shares, strict=True))[1:]:
                    assert sum(column) == pytest.approx(1.0, abs=1e-6)


def test_at_temperature_zero_the_target_is_certain() -> None:
    shown = explore(Settings(budget=3, new_tokens=4, temperature=0.0, method="chain"), load("hybrid"))
    assert {facts.target for here in shown.rounds for facts in here.facts.values()} <= {0.0, 1.0}
    for here in shown.rounds[:-1]:
        assert here.trees["chain"].expected == len(here.trees["chain"].step.committed)


def test_a_cancelled_decode_keeps_its_steps() -> None:
    told: list[Progress] = []
    shown = explore(SETTINGS, load("hybrid"), told.append, lambda: len(told) > 1)
    assert len(shown.rounds) == shown.trace.target_calls == 1
    assert shown.trace.stop.value == "interrupted"
    assert [progress.total for progress in told] == [SETTINGS.new_tokens] * 3


def test_a_union_holds_every_prefix_once_and_parents_first() -> None:
    tree = united(9, [(1, 2, 3), (1, 4), ()])
    assert [tree.path_tokens(node) for node in range(len(tree))] == [(9,), (9, 1), (9, 1, 2), (9, 1, 4), (9, 1, 2, 3)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (Settings(prompt="  \n"), "The prompt is empty: type a question"),
        (Settings(prompt="word " * 600), "tokens and the explorer takes 512: shorten it"),
    ],
)
def test_a_prompt_that_cannot_work_is_refused_in_one_sentence(settings: Settings, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        explore(settings, load("hybrid"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("budget", 0), ("budget", 129), ("width", -1), ("temperature", 2.1), ("seed", -1), ("new_tokens", 1), ("pool", 0)],
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}"):
        Settings(**{name: value})


def test_only_what_is_there_can_be_explored(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ValueError("not fetched")

    monkeypatch.setattr("tfm_lab.explorer.settings.fetched", missing)
    assert targets() == ("hybrid",)
    monkeypatch.setattr("tfm_lab.explorer.settings.fetched", lambda name: None)
    assert targets() == ("hybrid", "smollm2")
    with pytest.raises(ValueError, match="follows the methods chain, ddtree, tfm, not 'ar'"):
        Settings(method="ar")
