"""Checks of exercises: the solution passes, every wrong answer is rejected, and the wrong idea behind it is named."""

import math
from typing import Any

import pytest
import torch

from tfm_lab import gdn
from tfm_lab.claims import objections
from tfm_lab.distributions import SamplingConfig, TargetRows, total_variation
from tfm_lab.drafting import Draft, TreeConfig, TreeKind
from tfm_lab.draws import SeededDraws
from tfm_lab.exact import bias, exact_emission_distribution, random_table, target_rows
from tfm_lab.lessons import EXERCISES, Exercise, Misconception, Property, by_hand_kernels, judge, todo
from tfm_lab.lessons.by_hand import (
    accept_prob,
    ancestor_mask,
    best_first_paths,
    brute_force,
    expected_tokens,
    membership_walk,
    spec_step,
)
from tfm_lab.lessons.exercise import TODO
from tfm_lab.lessons.exercises_01 import step_law
from tfm_lab.lessons.exercises_02 import best_q, futures, marginal_ceiling
from tfm_lab.lessons.exercises_03 import MARGINALS, cases
from tfm_lab.lessons.exercises_07 import walk_cases
from tfm_lab.lessons.growing_by_hand import first_orphan, grow
from tfm_lab.lessons.interpreting import can_interpret
from tfm_lab.lessons.judging import alike
from tfm_lab.lessons.memory_by_hand import commit, solve, system
from tfm_lab.lessons.speed_by_hand import break_even
from tfm_lab.lessons.training_by_hand import forcing, lk_loss, pool_coverage
from tfm_lab.lessons.weaver_by_hand import call_bytes, path_mask, pool_log_probs
from tfm_lab.metrics import expected_tokens_per_call
from tfm_lab.training import losses
from tfm_lab.tree import DraftTree
from tfm_lab.verification import rejection_swor, target_sample
from tfm_lab.zoo.laws import Pair, draw, sampled_chain
from tfm_lab.zoo.line_ups import CHAINS, TREES

pytestmark = pytest.mark.unchecked  # learners hand over whatever they like

MUTANTS = [
    pytest.param(exercise, item, id=f"{exercise.name}-{number}")
    for exercise in EXERCISES.values()
    for number, item in enumerate(exercise.misconceptions, start=1)
]


@pytest.fixture(autouse=True)
def kernels_are_interpreted(request: pytest.FixtureRequest) -> None:
    """Notebook 09 runs Triton's interpreter, which a process that compiles kernels does not have."""
    if "09." in request.node.name and not can_interpret():
        pytest.skip("Triton does not interpret in this process")


def spoiled_accept(p: torch.Tensor, q: torch.Tensor, token: int) -> float:
    return float("nan")


def spoiled_residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    p -= q
    p.clamp_(min=0.0)
    return p * 1.001 / p.sum() if float(p.sum()) else q


def spoiled_step(p: torch.Tensor, q: torch.Tensor, draws: Any) -> tuple[int, bool]:
    while True:
        draft = draws.categorical(q)
        if draws.bernoulli(accept_prob(p, q, draft)):
            return draft, True


def spoiled_flag(p: torch.Tensor, q: torch.Tensor, draws: Any) -> tuple[int, bool]:
    token, kept = spec_step(p, q, draws)
    return token, not kept


def spoiled_mask(parents: list[int]) -> torch.Tensor:
    return ancestor_mask(parents)[:, :-1]


def subtracted_pool(logits: torch.Tensor, tokens: torch.Tensor, correction: torch.Tensor) -> list[float]:
    scores = [
        float(logits[token] + more) if token >= 0 else -math.inf
        for token, more in zip(tokens.tolist(), correction, strict=True)
    ]
    total = max(scores) + math.log(sum(math.exp(score - max(scores)) for score in scores))
    return [score - total for score in scores]


def spoiled_walk(tree: Any, rows: Any, draws: Any) -> tuple[tuple[int, ...], int]:
    path, bonus = membership_walk(tree, rows, draws)
    return (path[:-1], bonus) if len(path) > 1 else (path, bonus)


def spoiled_system(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    X, Y = system(*arguments)
    return X[:, :-1], Y


def spoiled_commit(state: torch.Tensor, key: Any, own: Any, log_decay: Any, path: Any) -> torch.Tensor:
    state.copy_(commit(state, key, own, log_decay, path))
    return state


def spoiled_kernel(rows: Any, tile: Any, nodes: Any, DIM: Any) -> None:
    pass


def searched_q(weights: torch.Tensor, conditionals: torch.Tensor) -> torch.Tensor:
    """A numerical search, as a learner may write it: small pieces, each to the token where it gains most."""
    q, piece = torch.zeros_like(conditionals[0]), 1 / 4000
    for _ in range(4000):
        q[int((weights @ (conditionals > q + piece / 2).double()).argmax())] += piece
    return q


def inverted_solve(X: Any, Y: Any, from_root: Any, query: Any, key: Any, value: Any, beta: Any, state: Any) -> Any:
    right = torch.diag(beta) @ (value - torch.diag(from_root) @ key @ state)
    own = torch.linalg.inv(torch.eye(len(X), dtype=X.dtype) + X) @ right
    return own, torch.diag(from_root) @ query @ state + Y @ own


def packages_lk_loss(p: torch.Tensor, log_q: torch.Tensor, eta: float) -> torch.Tensor:
    return losses.lk_loss(losses.PoolComparison(p, log_q, torch.zeros_like(p, dtype=torch.bool)), eta)


def endless_grow(ask: Any, budget: int, width: int, depth: int) -> Any:
    while True:
        ask([()])


def sorted_grow(ask: Any, budget: int, width: int, depth: int) -> list[list[int]]:
    """The whole frontier sorted anew in every round."""
    found: list[list[int]] = []
    waiting: list[tuple[float, list[int]]] = []
    fresh: list[tuple[float, list[int]]] = [(1.0, [])]
    while len(found) < budget:
        if fresh:
            rows = ask([tuple(path) for _, path in fresh])
            waiting += [
                (c * p, [*path, t]) for (c, path), row in zip(fresh, rows, strict=True) for t, p in enumerate(row)
            ]
        waiting.sort(reverse=True)
        count = min(width, budget - len(found))
        found += [path for _, path in waiting[:count]]
        fresh, waiting = [item for item in waiting[:count] if len(item[1]) < depth], waiting[count:]
    return found


def packages_commit(state: Any, key: Any, own: Any, log_decay: Any, path: Any) -> torch.Tensor:
    writes = gdn.TreeWrites(key[None], own[None], log_decay[None], chain_of(path, len(key)))
    return gdn.commit_path(state[None], writes, path)[0]


def chain_of(path: Any, nodes: int) -> torch.Tensor:
    """A mask in which this path is one."""
    mask = torch.eye(nodes, dtype=torch.bool)
    for place, node in enumerate(path):
        mask[node, list(path[: place + 1])] = True
    return mask


SPOILED: dict[str, tuple[Any, ...]] = {
    "01.accept_prob": (spoiled_accept, lambda p, q, token: None, lambda p, q: 1.0),
    "01.residual": (spoiled_residual, lambda p, q: None),
    "01.spec_step": (spoiled_step, spoiled_flag, lambda p, q, draws: 0),
    "01.suspect": ("", 3, None, "AC"),
    "02.marginal_ceiling": (lambda weights, conditionals: float("nan"), lambda weights: 1.0),
    "02.best_q": (
        lambda weights, conditionals: 1.1 * best_q(weights, conditionals),
        lambda weights, conditionals: None,
    ),
    "02.point_mass": ((0.38,), (0.5, 0.38), "0.38, 0.5", None),
    "03.expected_tokens": (lambda paths, conditional: 1.0 + len(paths) / 3, lambda paths, conditional: None),
    "03.order": ("", "a b ax", "a b ax bx c", None),
    "03.best_first": (
        lambda rows, budget: best_first_paths(rows, budget + 1),
        lambda rows, budget: best_first_paths(rows, budget)[::-1],
        lambda rows, budget: [(0,)] * budget,
    ),
    "04.pool_log_probs": (
        lambda logits, tokens, correction: pool_log_probs(logits, tokens, correction).exp(),
        lambda logits, tokens, correction: pool_log_probs(logits, tokens, correction)[tokens >= 0],
        lambda logits, tokens, correction: None,
    ),
    "04.path_mask": (
        lambda parents, prefix: ancestor_mask(parents),
        lambda parents, prefix: path_mask(parents, prefix).T,
        lambda parents, prefix: None,
    ),
    "04.call_bytes": (lambda *sizes: call_bytes(*sizes) + 1, lambda *sizes: None, lambda *sizes: 0),
    "05.forcing": (lambda text, anchor, depth: forcing(text, anchor, depth)[::-1], lambda text, anchor, depth: None),
    "05.lk_loss": (
        lambda p, log_q, eta: lk_loss(p, log_q, eta).detach(),
        lambda p, log_q, eta: 2.0 * lk_loss(p, log_q, eta),
        lambda p, log_q, eta: lk_loss(p, log_q, eta).item(),
    ),
    "05.coverage": (
        lambda p, logits, size: 1.0 - pool_coverage(p, logits, size),
        lambda p, logits, size: pool_coverage(p, logits, size)[::-1],
    ),
    "06.grow": (
        lambda ask, budget, width, depth: grow(ask, budget, width, depth)[::-1],
        lambda ask, budget, width, depth: [(token,) for token in range(budget)],
        lambda ask, budget, width, depth: None,
        endless_grow,
    ),
    "06.first_orphan": (lambda paths: -1, lambda paths: True, lambda paths: None),
    "06.hurts": ([], [[]], [[0.5, 0.5]], [[-0.1, 1.1]] * 15, [[0.9, 0.1]] * 17, "settled", 3, None),
    "07.ancestor_mask": (spoiled_mask, lambda parents: None),
    "07.membership_walk": (spoiled_walk, lambda tree, rows, draws: ((0,), 0)),
    "07.biased": ("", "ABCDEFG", 5, None),
    "08.update": (lambda *arguments: float("nan"), lambda state, key, value, alpha, beta: None),
    "08.system": (spoiled_system, lambda *arguments: None, lambda *arguments: system(*arguments)[0]),
    "08.solve": (lambda *arguments: solve(*arguments)[::-1], lambda *arguments: None),
    "08.commit": (spoiled_commit, lambda state, key, own, log_decay, path: state),
    "09.load_tile": (spoiled_kernel, by_hand_kernels.gram, lambda rows, tile, nodes, DIM: None),
    "09.gram": (by_hand_kernels.load_tile,),
    "09.decay_mask": (by_hand_kernels.substitute,),
    "09.substitute": (by_hand_kernels.decay_mask,),
    "09.output_tile": (by_hand_kernels.verify_tree,),
    "09.verify_tree": (by_hand_kernels.output_tile,),
    "10.step_ratio": (lambda length, speed: 1.42, lambda length, speed: None),
    "10.break_even": (lambda *arguments: break_even(*arguments)[::-1], lambda *arguments: break_even(*arguments)[0]),
    "10.choose_budget": (lambda mal, step_ms, plain_ms: 32, lambda mal, step_ms, plain_ms: None),
    "11.objections": (
        lambda examined, outcome, findings: set(),
        lambda examined, outcome, findings: objections(examined, outcome, findings) | {"too long"},
        lambda examined, outcome, findings: None,
        lambda examined, outcome, findings: "no error",
    ),
}


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES.keys())
def test_the_solution_passes(exercise: Exercise) -> None:
    judgement = judge(exercise, exercise.solution)
    assert judgement.passed, judgement
    assert len(judgement.findings) == len(exercise.properties)


@pytest.mark.parametrize(("exercise", "mutant"), MUTANTS)
def test_a_wrong_answer_is_rejected_and_its_idea_is_named(exercise: Exercise, mutant: Misconception) -> None:
    judgement = judge(exercise, mutant.answer)
    assert judgement.status == "failed"
    assert judgement.belief == mutant.belief
    assert any(finding.complaint for finding in judgement.findings)


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES.keys())
def test_every_exercise_has_three_wrong_ideas_that_differ(exercise: Exercise) -> None:
    assert len(exercise.misconceptions) >= 3
    shown = [
        exercise.behaviour(item.answer) for item in (*exercise.misconceptions, Misconception("", exercise.solution))
    ]
    assert not any(alike(a, b) for place, a in enumerate(shown) for b in shown[:place])
    assert len({item.belief for item in exercise.misconceptions}) == len(exercise.misconceptions)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        pytest.param(name, answer, id=f"{name}-{place}")
        for name, answers in SPOILED.items()
        for place, answer in enumerate(answers)
    ],
)
def test_answers_that_nobody_foresaw_are_rejected_too(name: str, answer: Any) -> None:
    assert judge(EXERCISES[name], answer).status == "failed"


def test_every_exercise_meets_unforeseen_answers() -> None:
    assert set(SPOILED) == set(EXERCISES)


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES.keys())
def test_a_todo_anywhere_is_no_attempt(exercise: Exercise) -> None:
    assert judge(exercise, todo()).status == "not attempted"
    if callable(exercise.solution):
        assert judge(exercise, lambda *arguments: todo()).status == "not attempted"
        assert judge(exercise, lambda *arguments: (todo(), 1)).status == "not attempted"
        assert judge(exercise, lambda *arguments: 1 / 0).findings[0].complaint.startswith("it raised ZeroDivisionError")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("01.accept_prob", lambda p, q, token: (p[token] / q[token]).clamp(max=1.0)),
        ("01.residual", lambda p, q: (p - torch.minimum(p, q)) / (p - q).clamp_min(0).sum() if (p != q).any() else p),
        ("01.suspect", " c "),
        ("02.best_q", searched_q),
        ("02.point_mass", [torch.tensor(0.38), 0.5]),
        ("03.order", ["a", "b", "ax", "bx"]),
        ("03.best_first", lambda rows, budget: sorted(best_first_paths(rows, budget), key=len)),
        ("04.pool_log_probs", subtracted_pool),
        ("04.path_mask", lambda parents, prefix: path_mask(parents, prefix).int().tolist()),
        (
            "04.call_bytes",
            lambda wide, inner, mlp, rows, number: number * float(2 * inner * (wide + 2 * inner + mlp) + rows * wide),
        ),
        ("05.forcing", lambda text, anchor, depth: [torch.tensor(part) for part in forcing(text, anchor, depth)]),
        ("05.lk_loss", packages_lk_loss),
        ("05.coverage", lambda p, logits, size: pool_coverage(p, logits, size).tolist()),
        ("06.grow", sorted_grow),
        (
            "06.first_orphan",
            lambda paths: next((p for p in range(len(paths)) if first_orphan(paths[: p + 1]) >= 0), -1),
        ),
        ("06.hurts", torch.tensor([[0.85, 0.15]] * 16, dtype=torch.float64)),
        ("06.hurts", (*[(0.97, 0.02, 0.01)] * 12, (1.0,))),
        ("07.ancestor_mask", lambda parents: ancestor_mask(parents).tolist()),
        ("07.biased", ["F", "a", "D"]),
        ("07.biased", "a, d, f"),
        ("08.update", lambda state, key, value, alpha, beta: (beta * (value - alpha * (key @ state))).tolist()),
        ("08.system", lambda *arguments: [part.tolist() for part in system(*arguments)]),
        ("08.solve", inverted_solve),
        ("08.commit", packages_commit),
        ("10.step_ratio", lambda length, speed: torch.tensor((1.0 + length) / (1.0 + speed), dtype=torch.float64)),
        ("10.break_even", lambda *arguments: list(break_even(*arguments))),
        ("11.objections", lambda *entry: sorted(objections(*entry))),
    ],
)
def test_right_answers_may_take_other_forms(name: str, answer: Any) -> None:
    assert judge(EXERCISES[name], answer).passed


def test_an_exercise_needs_hints_properties_and_wrong_ideas() -> None:
    whole: dict[str, Any] = {
        "name": "99.test", "title": "", "task": "", "difficulty": 1, "importance": 1, "minutes": 1, "reread": "",
        "hints": ("", "", ""), "solution": 1, "explanation": "", "properties": (Property("", lambda answer: ""),),
        "behaviour": lambda answer: answer, "misconceptions": tuple(Misconception(str(n), n) for n in range(3)),
    }  # fmt: skip
    Exercise(**whole)
    for spoiled in (
        {"difficulty": 4},
        {"minutes": 0},
        {"properties": ()},
        {"misconceptions": whole["misconceptions"][:2]},
    ):
        with pytest.raises(ValueError, match=r"exercise 99\.test"):
            Exercise(**(whole | spoiled))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1.0, 1.0 + 1e-12, True),
        (1, 1.1, False),
        (float("nan"), float("nan"), True),
        (True, 1, False),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), True),
        (torch.ones(2), torch.ones(3), False),
        ([1, (2, "x")], (1, [2, "x"]), True),
        ([1], [1, 2], False),
        ("a", "b", False),
    ],
)
def test_alike(a: Any, b: Any, same: bool) -> None:
    assert alike(a, b) is same


# What the solutions say is what the package says.


def test_the_step_by_hand_has_the_law_of_the_packages_rule() -> None:
    for seed in range(5):
        p, q = random_table(3, 1, seed=seed), random_table(3, 1, seed=10 + seed)
        law = exact_emission_distribution(
            sampled_chain(draw), rejection_swor, p, q, 1, TreeConfig(budget=1, max_depth=1)
        )
        assert torch.allclose(step_law(spec_step, p.probabilities(()), q.probabilities(())).emitted, law, atol=1e-12)


def test_the_walk_by_hand_takes_the_same_draws_as_the_packages_rule() -> None:
    for case in walk_cases():
        draft = Draft(case.tree, TreeKind.FIXED)
        rows = target_rows(draft, case.target, SamplingConfig())
        dense = torch.stack([rows.probabilities(node) for node in range(len(case.tree))])
        for seed in range(20):
            wanted = target_sample(draft, rows, SeededDraws(seed))
            assert membership_walk(case.tree, dense, SeededDraws(seed)) == (wanted.path, wanted.bonus)


def test_the_mask_by_hand_is_the_trees() -> None:
    for case in walk_cases():
        assert torch.equal(ancestor_mask(case.tree.parents.tolist()), case.tree.ancestors())


def test_the_ceiling_is_one_minus_the_expected_distance() -> None:
    for case in futures():
        marginal = case.weights @ case.conditionals
        distance = float(case.weights @ total_variation(marginal.expand_as(case.conditionals), case.conditionals))
        assert marginal_ceiling(case.weights, case.conditionals) == pytest.approx(1 - distance, abs=1e-12)


def test_expected_tokens_by_hand_are_those_of_the_metric() -> None:
    for case in cases():
        places = {(): 0} | {path: place for place, path in enumerate(case.paths, start=1)}
        tree = DraftTree.from_parents(
            [case.world.context, *(path[-1] for path in case.paths)], [-1, *(places[path[:-1]] for path in case.paths)]
        )
        rows = torch.stack([case.world.conditional(path).log() for path in places])
        wanted = expected_tokens_per_call(tree, TargetRows(rows, SamplingConfig()))
        assert expected_tokens(case.paths, case.world.conditional) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("budget", range(1, 6))
def test_best_first_paths_are_the_best_of_all_trees(budget: int) -> None:
    for case in MARGINALS:
        paths = best_first_paths(case.rows, budget)
        mass = sum(math.prod(case.rows[place][token] for place, token in enumerate(path)) for path in paths)
        assert mass == pytest.approx(brute_force(case.rows, budget), abs=1e-12)


def test_brute_force_sees_every_tree() -> None:
    rows = ((0.6, 0.4), (0.9, 0.1))
    assert brute_force(rows, 1) == pytest.approx(0.6)
    assert brute_force(rows, 2) == pytest.approx(0.6 + 0.54)
    assert brute_force(rows, 99) == pytest.approx(2.0)  # all six nodes: 1 per place


def biased_of(pairs: Any, vocab: int, config: TreeConfig) -> str:
    p, q = random_table(vocab, 2, seed=21), random_table(vocab, 2, seed=22)

    def distance(pair: Pair) -> float:
        return bias(exact_emission_distribution(pair.builder, pair.rule, p, q, 3, config), p)

    distances = {letter: distance(pair) for letter, pair in pairs.items()}
    assert all(value <= 1e-12 or value > 1e-2 for value in distances.values())
    return "".join(letter for letter, value in distances.items() if value > 1e-2)


def test_the_line_ups_are_what_the_exercises_say() -> None:
    assert biased_of(CHAINS, 4, TreeConfig(budget=2, max_depth=2)) == EXERCISES["01.suspect"].solution
    assert biased_of(TREES, 3, TreeConfig(budget=3, max_depth=2)) == EXERCISES["07.biased"].solution


def test_todo_says_what_it_is() -> None:
    assert repr(todo()) == "todo()"
    assert todo() is TODO
