"""How far any factorised drafter can get, beside what this drafter and the Weaver reach, depth by depth.

A draft from q is accepted with probability sum_v min(q(v), p(v)). A factorised drafter has one q for all paths of a
depth; the best informed of them is the *oracle marginal* m_d, the target's own distribution at depth d averaged over
all paths to it (arXiv 2607.06763, section 3.5). Even m_d is accepted rarely where paths disagree about the next token,
and no training helps. A Weaver sees the path, so this ceiling does not hold for it.

m_d is estimated from R sampled paths. Each path is compared with the average over the *other* R - 1, so that it does
not flatter itself: min(m, p) is concave in m and that average is independent of the path with mean m_d, so by Jensen's
inequality the estimate is on average too low, never too high, and approaches the truth as R grows. (An average over all
R would exceed this estimate a by exactly (1 - a) / R.) The same holds for the point mass: a token chosen on the other
paths is at best the most probable one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation.anchors import check_prompts, to_anchors
from tfm_lab.evaluation.statistics import Bounded, mean_ratio
from tfm_lab.models.layers import at_least_float32
from tfm_lab.training.sampling import sample_texts

ORACLE, POINT, DRAFTER = "oracle marginal", "oracle point mass", "drafter's marginal"
WEAVER, POOL, AUTOREGRESSIVE = "Weaver", "pool mass", "autoregressive drafter"


@dataclass(frozen=True, slots=True, eq=False)
class Ceiling:
    """Expected acceptance at temperature 1, by depth.

    Attributes:
        continuations: sampled paths per anchor (R).
        by_anchor: for every quantity one row per anchor, one column per depth, 1 first.
    """

    continuations: int
    by_anchor: Mapping[str, NDArray[np.float64]]

    @property
    def anchors(self) -> int:
        return len(self.by_anchor[ORACLE])

    def figures(self) -> dict[str, list[Bounded]]:
        """Means over anchors with bootstrap intervals, by depth."""
        ones = np.ones(self.anchors)
        return {
            name: [mean_ratio([np.stack([column, ones], axis=1)]) for column in values.T]
            for name, values in self.by_anchor.items()
        }


@torch.no_grad()
def measure_ceiling(
    bundle: Bundle,
    prompts: Sequence[Sequence[int]],
    *,
    continuations: int = 64,
    depth: int = 15,
    written: int = 64,
    pool_size: int = 512,
    seed: int = 0,
    on_anchor: Callable[[int], None] | None = None,
) -> Ceiling:
    """Sample paths below one anchor in each prompt's continuation and compare all distributions along them.

    The target continues every prompt at temperature 1; the anchor is a random one of the first ``written`` tokens
    before a stop token. Paths go on past stop tokens, as training texts do.

    Args:
        prompts: token ids, at least two in each, with room for ``written + depth`` more.
        continuations: paths per anchor, at least 2.
        depth: deepest draft, at most the drafter's own.
        pool_size: candidates per depth for the Weaver.
        on_anchor: called with the number of anchors done.

    Raises:
        ValueError: if an argument is out of range or a prompt does not fit.
    """
    if continuations < 2:
        raise ValueError(f"a ceiling needs at least 2 continuations per anchor, got {continuations}")
    check_prompts(bundle.target, prompts, written + depth)
    bundle = bundle.at_temperature(1.0)
    generator = torch.Generator(bundle.target.device).manual_seed(seed)
    rows: dict[str, list[list[float]]] = {}
    for done, anchored in enumerate(to_anchors(bundle.target, prompts, written, generator), start=1):
        for name, row in _compare(bundle, anchored.tokens, continuations, depth, pool_size, generator).items():
            rows.setdefault(name, []).append(row)
        if on_anchor is not None:
            on_anchor(done)
    return Ceiling(continuations, {name: np.array(values) for name, values in rows.items()})


def leave_one_out(p: Float[Tensor, "paths vocab"]) -> Float[Tensor, "paths vocab"]:
    """For every path the mean over the others."""
    return ((p.sum(0) - p) / (len(p) - 1)).clamp_min(0.0)


def _compare(
    bundle: Bundle, context: Sequence[int], paths: int, depth: int, pool_size: int, generator: torch.Generator
) -> dict[str, list[float]]:
    """Mean over paths of every quantity, by depth."""
    target, drafter, root = bundle.target, bundle.drafter, len(context) - 1
    depth = min(depth, drafter.config.draft_depth)
    start = torch.tensor([context], device=target.device).expand(paths, -1)
    texts = sample_texts(target, start, depth, torch.ones(paths, device=target.device), generator)
    features = target.features(texts[:, :-1], drafter.config.tap_layers)
    anchor = torch.full((1, 1), root, device=target.device)
    taps = features.taps[:1, : root + 1]
    hidden = drafter(taps, drafter.pack_blocks(texts[:1, : root + 1], anchor, target))[0]
    logits = at_least_float32(target.logits(hidden[0]))
    pool = logits.topk(min(pool_size, logits.shape[-1]), dim=-1)
    woven = _woven_logits(bundle, features.hidden[:, root - 1], hidden, texts[:, root : root + depth], pool.indices)
    ard = _autoregressive_hidden(bundle, texts, root)
    figures: dict[str, list[float]] = {}

    def add(name: str, accepted: Float[Tensor, " paths"]) -> None:
        figures.setdefault(name, []).append(float(accepted.mean()))

    for d in range(depth):
        p = at_least_float32(target.logits(features.hidden[:, root + d])).softmax(-1)
        oracle, on_pool = leave_one_out(p), p[:, pool.indices[d]]
        add(ORACLE, torch.minimum(oracle, p).sum(1))
        add(POINT, p.gather(1, oracle.argmax(1, keepdim=True)).squeeze(1))
        add(DRAFTER, torch.minimum(logits[d].softmax(-1), p).sum(1))
        if woven is not None and d < woven.shape[1]:
            add(WEAVER, torch.minimum((pool.values[d] + woven[:, d]).softmax(-1), on_pool).sum(1))
        if ard is not None and d < ard.shape[1]:
            add(AUTOREGRESSIVE, torch.minimum(at_least_float32(target.logits(ard[:, d])).softmax(-1), p).sum(1))
        add(POOL, on_pool.sum(1))
    return figures


def _woven_logits(
    bundle: Bundle,
    before: Float[Tensor, "paths channels"],
    hidden: Float[Tensor, "1 drafts channels"],
    path: Int[Tensor, "paths depth"],
    pool: Int[Tensor, "drafts pool"],
) -> Float[Tensor, "paths woven pool"] | None:
    """What the Weaver adds to the drafter's logits on the pool, along every path (root first)."""
    weaver = bundle.weaver
    if weaver is None:
        return None
    path = path[:, : weaver.config.max_depth]
    read_outs = weaver(before, hidden.expand(len(path), -1, -1), bundle.target.model.embed_tokens(path))
    columns = [bundle.target.logits(read_outs[:, d])[:, pool[d]] for d in range(path.shape[1])]
    return at_least_float32(torch.stack(columns, dim=1))


def _autoregressive_hidden(
    bundle: Bundle, texts: Int[Tensor, "paths tokens"], root: int
) -> Float[Tensor, "paths depth channels"] | None:
    """Hidden states of the autoregressive drafter along every path (root first)."""
    drafter = bundle.autoregressive
    if drafter is None:
        return None
    short = root + drafter.config.draft_depth - texts.shape[1]
    texts = torch.nn.functional.pad(texts, (0, max(0, short)))
    anchors = torch.full((len(texts), 1), root, device=texts.device)
    taps = bundle.target.features(texts, drafter.config.tap_layers).taps
    return drafter(taps, drafter.pack_blocks(texts, anchors, bundle.target))[:, 0]
