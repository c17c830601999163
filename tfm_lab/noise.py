"""Shared noise: sampling as an argmax under noise that is known beforehand, so that a drafter can foresee it.

The Gumbel-max trick draws from p as argmax(log p + G) with independent standard Gumbel noise G. If every place of the
text has its own noise vector, fixed by a seed, then a drafter that knows its q but not p can rank its candidates by
log q + G: where q is close to p, so is the ranking. What is emitted stays argmax(log p + G), whatever was drafted: its
law is p, and the text is that of plain sampling under the same noise. Coupling two distributions in this way accepts a
single draft with probability at least (1 - TV) / (1 + TV).

Source: the coupling is Gumbel-max sampling with common random numbers; a released successor of the paper's code shares
Philox noise between drafter and target in the same manner.
"""

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.distributions import first_argmax
from tfm_lab.draws import check_weights

# Increments and multipliers of the SplitMix64 generator, as signed 64-bit integers.
_STEP, _PLACE_STEP = -0x61C8864680B583EB, 0x2545F4914F6CDD1D
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_KEPT_ROWS = 64


def noise_key(seed: int, prompt: Sequence[int]) -> int:
    """Key of the noise of one text: a signed 64-bit integer from the seed and the prompt's token ids."""
    digest = hashlib.sha256(f"{seed}/shared noise/{','.join(map(str, prompt))}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def gumbel_rows(keys: Int[Tensor, " *rows"], places: Int[Tensor, " *rows"], vocab: int) -> Float[Tensor, "*rows vocab"]:
    """Standard Gumbel noise in float64: one vector for every (key, place), the same on every device.

    Args:
        keys: of :func:`noise_key`.
        places: index of the new token within its text, 0 for the first one after the prompt.
        vocab: number of tokens.
    """
    rows = _mixed(_mixed(keys) + places * _PLACE_STEP)
    tokens = torch.arange(1, vocab + 1, device=keys.device)
    bits = _mixed(rows.unsqueeze(-1) + tokens * _STEP)
    uniform = (_shifted(bits, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


class SharedNoise:
    """Draws that can be foreseen; implements :class:`tfm_lab.draws.Draws`.

    Args:
        key: of :func:`noise_key`.
        place: index of the next new token.
    """

    def __init__(self, key: int, place: int = 0) -> None:
        self._key, self._place = key, place
        self._rows: dict[tuple[int, int], Tensor] = {}

    def copy(self) -> "SharedNoise":
        """A source that draws what this one would draw next, without moving it on."""
        twin = SharedNoise(self._key, self._place)
        twin._rows = self._rows
        return twin

    def categorical(self, weights: Float[Tensor, " outcomes"]) -> int:
        """argmax(log weights + noise of this place), the lowest index in a tie; then move on by one place.

        Raises:
            ValueError: if a weight is negative or not finite, or if all are zero.
        """
        scores = check_weights(weights).log() + self.ahead(1, weights.numel())[0]
        self._place += 1
        return int(first_argmax(scores))

    def bernoulli(self, probability: float) -> bool:
        """Only outcomes that are certain.

        Raises:
            ValueError: for any other probability: a rule that judges drafts by chance would be biased here.
        """
        if probability >= 1.0 or probability <= 0.0:
            return probability >= 1.0
        raise ValueError("shared noise decides which token is emitted and nothing else: use the rule target_sample")

    def ahead(self, count: int, vocab: int) -> Float[Tensor, "count vocab"]:
        """Noise of the next ``count`` places."""
        wanted = [(place, vocab) for place in range(self._place, self._place + count)]
        missing = [place for place in wanted if place not in self._rows]
        if missing:
            places = torch.tensor([place for place, _ in missing])
            self._rows |= dict(
                zip(missing, gumbel_rows(torch.full_like(places, self._key), places, vocab), strict=True)
            )
        rows = torch.stack([self._rows[place] for place in wanted])
        for place in sorted(self._rows)[: max(0, len(self._rows) - _KEPT_ROWS)]:
            del self._rows[place]
        return rows


def _mixed(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64; products wrap around."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, places: int) -> Tensor:
    """Logical shift to the right of 64-bit integers."""
    return (x >> places) & ((1 << (64 - places)) - 1)
