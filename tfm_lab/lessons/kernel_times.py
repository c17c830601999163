"""Times of fused tree kernels: what the paper reports, and what was measured with this package, if it was."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import tfm_lab
from tfm_lab.lessons.cards import Card, table_card

RESULTS = Path(tfm_lab.__file__).parent / "results" / "kernel_h200.json"
"""Where ``tfm-lab bench kernel`` puts the times of one GPU."""

REPORTED: Mapping[int, float] = {16: 1.5, 32: 2.7, 64: 4.6, 128: 7.1}
"""Nodes -> how many times faster the fused kernel is than a recurrent one, as the paper reports (arXiv 2607.06763)."""

OURS, REPLAY = "fused verify+commit", "path-parallel torch"
RECURRENT: Mapping[int, str] = {32: "SGLang recurrent BV=32", 4: "SGLang recurrent BV=4"}
"""Value columns of a program of SGLang's recurrent kernel -> the variant of the benchmark."""

NOT_MEASURED = "not measured yet"


class OwnTime(NamedTuple):
    """One measured size, in microseconds per layer.

    Attributes:
        nodes: root included.
        tree: kind of the tree.
        fused: the fused kernels, commit included.
        recurrent: value columns of a program -> SGLang's recurrent kernel, as far as it was timed.
        replay: every branch by itself in PyTorch, if that was timed.
    """

    nodes: int
    tree: str
    fused: float
    recurrent: Mapping[int, float]
    replay: float | None


class OwnTimes(NamedTuple):
    """The times of a file, by the size in the paper's table, and the machine they were measured on."""

    by_size: Mapping[int, OwnTime]
    machine: str


def own_times(file: Path = RESULTS) -> OwnTimes | None:
    """Times at batch 1 for the sizes of the paper: trees of so many nodes, or of one more, the root.

    The first tree kind of the file that has a size is taken, with cold inputs if there are any.

    Returns:
        ``None`` if there is no such file.
    """
    if not file.exists():
        return None
    document = json.loads(file.read_text())
    found: dict[int, OwnTime] = {}
    for size in REPORTED:
        entries = [e for e in document["results"] if e["batch"] == 1 and e["nodes"] in (size, size + 1)]
        for entry in sorted(entries, key=lambda e: (e["inputs"] != "cold", e["nodes"] != size + 1)):
            times = {v["variant"]: v["time"]["median"] for v in entry["variants"] if v["time"]}
            if OURS in times:
                recurrent = {columns: times[name] for columns, name in RECURRENT.items() if name in times}
                found[size] = OwnTime(entry["nodes"], entry["tree"], times[OURS], recurrent, times.get(REPLAY))
                break
    facts = document["provenance"]
    return OwnTimes(found, f"{facts['device']}, {facts['date']}, commit {facts['commit']}")


def times_card(file: Path = RESULTS) -> Card:
    """The paper's figures, labelled as reported, beside our own times or the plain words that there are none."""
    own = own_times(file)
    heads = (
        "nodes T",
        "reported by the paper: recurrent over fused",
        "own: fused, us per layer",
        "own: SGLang's recurrent over fused",
        "own: replay in PyTorch over fused",
    )
    rows = [(str(size), f"{ratio:g}x", *_own_cells(own, size)) for size, ratio in REPORTED.items()]
    ours = f"Own: {NOT_MEASURED}."
    if own is not None:
        ours = (
            f"Own: {own.machine}; medians, batch 1; the commit is in the time of the fused kernels alone. BV: value "
            "columns of a program. Not comparable with the reported figures: another GPU, baseline and trees."
        )
    note = f"Reported: arXiv 2607.06763, one NVIDIA B200, batch 1, against the paper's own recurrent kernel. {ours}"
    return table_card(note, heads, rows)


def _own_cells(own: OwnTimes | None, size: int) -> tuple[str, ...]:
    time = own.by_size.get(size) if own else None
    if time is None:
        return (NOT_MEASURED,) * 3
    recurrent = ", ".join(f"{other / time.fused:.1f}x (BV={columns})" for columns, other in time.recurrent.items())
    return (
        f"{time.fused:.1f} ({time.tree}, {time.nodes} nodes)",
        recurrent or NOT_MEASURED,
        NOT_MEASURED if time.replay is None else f"{time.replay / time.fused:.0f}x",
    )
