"""Drafting under shared noise: what a drafter expects the target to pick, once both know the noise.

Target samples are argmax(log p + G) with known G. A drafter that believes in q ranks by log q / T + G; the softmax of
that says how sure it can be, so that tree builders weigh branches by it as they weigh branches by q without noise.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.drafting.batched import ConditionalBatch, NodeBatch
from tfm_lab.drafting.types import ConditionalSession, DraftSource, Marginals, OpenNode, Proposal


def foresee_logits(
    logits: Float[Tensor, "*rows vocab"], noise: Float[Tensor, "*rows vocab"], temperature: float
) -> Float[Tensor, "*rows vocab"]:
    """Logits of the target's next pick as the drafter sees it: logits / T + noise, in float32 or wider."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(wide) / temperature + noise.to(logits.device, wide)


def foresee(source: DraftSource, noise: Float[Tensor, "depth vocab"], temperature: float) -> DraftSource:
    """A source whose marginals and conditionals take the noise of the coming places into account.

    Args:
        noise: one row per draft depth, at least as many as the source drafts.
        temperature: of the target.
    """
    marginals, opened = source.marginals, source.open_session
    if marginals is not None:
        rows = noise[: marginals.max_depth]
        marginals = Marginals(foresee_logits(marginals.logits, rows, temperature), marginals.hidden)
    session: Callable[[], ConditionalSession] | None = None
    if opened is not None:
        session = lambda: ForeseeingSession(opened(), noise, temperature)  # noqa: E731
    return DraftSource(marginals, session)


class ForeseeingSession:
    """Conditionals under shared noise; implements :class:`tfm_lab.drafting.types.ConditionalSession`."""

    def __init__(self, session: ConditionalSession, noise: Float[Tensor, "depth vocab"], temperature: float) -> None:
        self._session, self._noise, self._temperature = session, noise, temperature

    @property
    def max_depth(self) -> int:
        return min(self._session.max_depth, len(self._noise))

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        return [
            self._seen(proposal, self._noise[node.depth])
            for node, proposal in zip(nodes, self._session.expand(nodes), strict=True)
        ]

    def _seen(self, proposal: Proposal, row: Float[Tensor, " vocab"]) -> Proposal:
        noise = row.to(proposal.tokens.device)[proposal.tokens]
        logits = foresee_logits(proposal.log_probs, noise, self._temperature)
        return Proposal(proposal.tokens, torch.log_softmax(logits, dim=-1))


class ForeseeingBatch:
    """The same for many trees at once; implements :class:`tfm_lab.drafting.batched.ConditionalBatch`."""

    def __init__(
        self, session: ConditionalBatch, noise: Float[Tensor, "texts depth vocab"], temperature: float
    ) -> None:
        self._session, self._noise, self._temperature = session, noise, temperature

    @property
    def max_depth(self) -> int:
        return min(self._session.max_depth, self._noise.shape[1])

    def expand(self, nodes: NodeBatch) -> tuple[Int[Tensor, "texts width pool"], Float[Tensor, "texts width pool"]]:
        tokens, log_probs = self._session.expand(nodes)
        texts = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        depth = nodes.depth.clamp_max(self._noise.shape[1] - 1).unsqueeze(2)
        noise = self._noise[texts, depth, tokens]
        return tokens, torch.log_softmax(foresee_logits(log_probs, noise, self._temperature), dim=-1)
