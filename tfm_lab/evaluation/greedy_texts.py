"""Greedy texts with and without trees, on many prompts: identical, apart by rounding, or wrong."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.divergence import Divergence, first_divergence
from tfm_lab.drafting import TreeConfig
from tfm_lab.evaluation.tables import Table
from tfm_lab.files import write_together
from tfm_lab.methods import make_speculator
from tfm_lab.provenance import describe_run

GREEDY = SamplingConfig(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method in one dtype.

    Attributes:
        method, dtype: which.
        texts: prompts that were decoded plainly and with trees.
        tokens: that plain decoding wrote.
        divergences: by prompt, where the two texts differ.
    """

    method: str
    dtype: str
    texts: int
    tokens: int
    divergences: Mapping[str, Divergence]

    @property
    def by_rounding(self) -> int:
        """Texts that part at a margin which rounding can bridge, and whose rows agree in float64."""
        return len(self.divergences) - self.by_algorithm

    @property
    def by_algorithm(self) -> int:
        """Texts that part for any other reason; none may."""
        return sum(divergence.verdict == "algorithm" for divergence in self.divergences.values())

    @property
    def identical(self) -> int:
        return self.texts - len(self.divergences)


def compare_texts(
    models: Bundle,
    prompts: Mapping[str, Sequence[int]],
    methods: Sequence[str],
    tree: TreeConfig,
    max_new_tokens: int,
    on_text: Callable[[], None] = lambda: None,
) -> list[Comparison]:
    """Decode every prompt plainly and by every method, in the dtype of the models.

    Args:
        prompts: token ids by name.
        on_text: called after every prompt.

    Raises:
        ValueError: if a method is unknown or its model is missing.
    """
    speculators = {
        name: make_speculator(name, models.drafter, models.weaver, GREEDY, autoregressive=models.autoregressive)
        for name in methods
    }
    config = DecodeConfig(max_new_tokens, GREEDY, tree, models.target.config.stop_tokens)
    found: dict[str, dict[str, Divergence]] = {name: {} for name in methods}
    tokens = 0
    for prompt, ids in prompts.items():
        plain = autoregressive_decode(models.target, ids, config).uninterrupted()
        tokens += len(plain.tokens)
        for name, speculator in speculators.items():
            divergence = first_divergence(models.target, speculator, ids, config, plain)
            if divergence is not None:
                found[name][prompt] = divergence
        on_text()
    dtype = str(models.target.dtype).removeprefix("torch.")
    return [Comparison(name, dtype, len(prompts), tokens, found[name]) for name in methods]


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """How many texts are identical, for every method and dtype."""
    rows = []
    for c in comparisons:
        ratios = [d.margin / (2.0 * d.bound) for d in c.divergences.values()]
        counts = (str(n) for n in (c.texts, c.tokens, c.identical, c.by_rounding, c.by_algorithm))
        rows.append((c.dtype, c.method, *counts, f"{max(ratios):.2f}" if ratios else "-"))
    note = (
        "Greedy decoding with trees against plain decoding. A text differs by rounding if its rows agree in float64 "
        "and the two tokens at which it parts are no further apart than rounding can move two logits; the last column "
        "is the largest such margin in units of that bound."
    )
    header = ("dtype", "method", "texts", "tokens", "identical", "differ by rounding", "differ by the algorithm")
    return Table("Greedy texts with and without trees", note, (*header, "largest margin / bound"), rows)


def save_comparisons(comparisons: Sequence[Comparison], device: str, setup: dict[str, Any], path: Path) -> None:
    """Write ``path`` (JSON, every divergence included) and a Markdown table beside it, both with their provenance."""
    facts = describe_run(device) | setup
    document = {
        "what": "greedy texts with and without draft trees: where they differ, and why",
        "provenance": facts,
        "comparisons": [_plain(comparison) for comparison in comparisons],
    }
    table = comparison_table(comparisons)
    provenance = ", ".join(f"{name}: {value}" for name, value in facts.items())
    body = f"# {table.title}\n\n{provenance}.\n\n{table.note}\n\n{table.markdown()}"
    write_together({path: json.dumps(document, indent=1) + "\n", path.with_suffix(".md"): body})


def _plain(c: Comparison) -> dict[str, Any]:
    counts = {"identical": c.identical, "by_rounding": c.by_rounding, "by_algorithm": c.by_algorithm}
    divergences = {name: asdict(d) | {"verdict": d.verdict} for name, d in c.divergences.items()}
    return (
        {"method": c.method, "dtype": c.dtype, "texts": c.texts, "tokens": c.tokens}
        | counts
        | {"divergences": divergences}
    )
