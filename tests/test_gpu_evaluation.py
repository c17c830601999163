"""Evaluations on a GPU: the greedy records of the CPU, from replays too, and a ceiling."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluation_samples import EVALUATION

from tfm_lab.bundle import load_bundle
from tfm_lab.evaluation import Setting, evaluate, evaluate_replayed, load_contexts
from tfm_lab.evaluation.ceiling import ORACLE, measure_ceiling

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_records_on_the_gpu_are_those_of_the_cpu(tmp_path: Path) -> None:
    on_cpu, on_gpu = load_bundle(dtype=torch.float64), load_bundle(dtype=torch.float64, device="cuda")
    greedy = tuple(Setting(method, 16, 0.0) for method in ("chain", "ddtree", "tfm"))
    evaluation = replace(EVALUATION, settings=greedy, max_new_tokens=16)
    contexts = load_contexts(limit=4)
    wanted = evaluate(on_cpu, contexts, evaluation, tmp_path / "cpu.jsonl")
    for run in (evaluate, evaluate_replayed):
        records = run(on_gpu, contexts, evaluation, tmp_path / f"{run.__name__}.jsonl")
        for name in ("context", "method", "prompt", "tokens", "committed", "target_calls"):
            assert [record[name] for record in records] == [record[name] for record in wanted]
    evaluate_replayed(on_gpu, contexts, replace(evaluation, settings=(Setting("tfm", 16, 1.0),)), tmp_path / "t1.jsonl")


def test_a_ceiling_is_measured_on_the_gpu() -> None:
    bundle = load_bundle(device="cuda")
    prompts = [bundle.encode(context.prompt) for context in load_contexts(limit=2)]
    oracle = measure_ceiling(bundle, prompts, continuations=4, depth=3).by_anchor[ORACLE]
    assert oracle.shape == (2, 3)
    assert oracle[:, 0] == pytest.approx([1.0, 1.0], abs=1e-4)
