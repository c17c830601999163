"""What a kernel benchmark works on: inputs of one Gated DeltaNet layer, states of many layers, and the exact answer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.gdn import step
from tfm_lab.tree import DraftTree


class LayerShape(NamedTuple):
    """Heads of a Gated DeltaNet layer; the default is that of Qwen3.6-27B."""

    key_heads: int = 16
    value_heads: int = 48
    key_dim: int = 128
    value_dim: int = 128

    @property
    def key_width(self) -> int:
        """Channels of all keys."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Channels of all values."""
        return self.value_heads * self.value_dim


class Rows(NamedTuple):
    """Raw inputs of one layer: views of one projection [batch, nodes, channels], as a model has them."""

    query: Tensor
    key: Tensor
    value: Tensor
    a: Tensor
    b: Tensor


class KernelCase(NamedTuple):
    """One setting that all variants are measured in.

    Attributes:
        trees: one per request, all of the same size.
        rows: inputs; one for all layers (warm) or one per layer (cold).
        A_log: [value_heads].
        dt_bias: [value_heads].
        states: [layers, batch, value_heads, value_dim, key_dim], float32.
        parents: [batch, nodes] int32.
        max_depth: of these trees.
    """

    shape: LayerShape
    trees: Sequence[DraftTree]
    rows: Sequence[Rows]
    A_log: Tensor
    dt_bias: Tensor
    states: Tensor
    parents: Tensor
    max_depth: int

    @property
    def layers(self) -> int:
        """Layers of a step."""
        return self.states.shape[0]

    def rows_of(self, layer: int) -> Rows:
        """Inputs of this layer."""
        return self.rows[layer % len(self.rows)]

    def deepest_paths(self) -> Tensor:
        """[batch, rows] int32: the path to the deepest node of every tree, -1 behind it."""
        rows = 16 * (self.max_depth // 16 + 1)
        paths = [tree.path(int(tree.depths.argmax())) for tree in self.trees]
        filled = [[*path, *[-1] * (rows - len(path))] for path in paths]
        return torch.tensor(filled, dtype=torch.int32, device=self.parents.device)


class Work(NamedTuple):
    """One way to verify, ready to run.

    Attributes:
        step: works through all layers and returns each layer's output [batch, nodes, value_heads, value_dim].
        states: states [layers, batch, value_heads, value_dim, key_dim] that ``step`` has committed the deepest paths
            to when it ran once, its outputs being those of a second verification; ``None`` if it only verifies.
    """

    step: Callable[[], list[Tensor]]
    states: Tensor | None = None


Builder = Callable[[KernelCase], Work]


def make_case(
    shape: LayerShape,
    trees: Sequence[DraftTree],
    *,
    layers: int,
    cold: bool,
    dtype: torch.dtype,
    device: str,
    seed: int = 0,
) -> KernelCase:
    """Random inputs with decays of about 0.3 per token and a random state for every layer."""
    generator = torch.Generator(device).manual_seed(seed)
    batch, nodes = len(trees), len(trees[0])
    widths = [shape.key_width, shape.key_width, shape.value_width]

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    rows = []
    for _ in range(layers if cold else 1):
        query, key, value = normal(batch, nodes, sum(widths)).to(dtype).split(widths, dim=-1)
        a, b = normal(batch, nodes, 2 * shape.value_heads).to(dtype).chunk(2, dim=-1)
        heads = (shape.key_heads, shape.key_dim)
        split = query.unflatten(-1, heads), key.unflatten(-1, heads), value.unflatten(-1, (shape.value_heads, -1))
        rows.append(Rows(*split, a, b))
    return KernelCase(
        shape,
        trees,
        rows,
        normal(shape.value_heads) * 0.2 - 1.2,
        normal(shape.value_heads) * 0.1,
        0.3 * normal(layers, batch, shape.value_heads, shape.value_dim, shape.key_dim),
        torch.stack([tree.parents for tree in trees]).to(device, torch.int32),
        max(tree.max_depth for tree in trees),
    )


class Exact(NamedTuple):
    """The float64 answer for some heads of one request of one layer.

    Attributes:
        heads: value heads that were computed.
        output: [nodes, heads, value_dim].
        state: [heads, value_dim, key_dim], after the path to the deepest node.
    """

    request: int
    layer: int
    heads: list[int]
    output: Tensor
    state: Tensor


def exact_answers(case: KernelCase, *, committed: bool = False) -> list[Exact]:
    """First request of the first layer and last of the last, three heads each: the recurrence along every path.

    Args:
        committed: whether the deepest path has been committed before, as the lagged commit has it.
    """
    last = case.shape.value_heads - 1
    heads = sorted({0, case.shape.value_heads // 2, last})
    answers = []
    for request, layer in sorted({(0, 0), (len(case.trees) - 1, case.layers - 1)}):
        answer = _exact(case, request, layer, heads, case.states[layer, request, heads].double().cpu())
        answers.append(_exact(case, request, layer, heads, answer.state) if committed else answer)
    return answers


def _exact(case: KernelCase, request: int, layer: int, heads: list[int], state: Tensor) -> Exact:
    rows, tree = case.rows_of(layer), case.trees[request]
    per_key = case.shape.value_heads // case.shape.key_heads
    query, key = (
        tensor[request, :, [head // per_key for head in heads]].double().cpu().transpose(0, 1)
        for tensor in (rows.query, rows.key)
    )
    value, a, b = (tensor[request][:, heads].double().cpu().transpose(0, 1) for tensor in (rows.value, rows.a, rows.b))
    A_log, dt_bias = (tensor[heads].double().cpu() for tensor in (case.A_log, case.dt_bias))
    query, key = gdn.normalised_query_and_key(query, key)
    log_decay, beta = gdn.gates(a, b, A_log, dt_bias)
    outputs, after = [], []
    for node, parent in enumerate(tree.parents.tolist()):
        before = state.mT if parent < 0 else after[parent]
        one = (slice(None), slice(node, node + 1))
        output, now = gdn.delta_rule_recurrent(query[one], key[one], value[one], log_decay[one], beta[one], before)
        outputs.append(output[:, 0])
        after.append(now)
    return Exact(request, layer, heads, torch.stack(outputs), after[int(tree.depths.argmax())].mT)


def layers_that_fit(layers: int, batch: int) -> int:
    """Fewer layers for larger batches: their states still fill the L2 cache many times over, but not the memory."""
    return layers if batch == 1 else min(layers, max(4, 2 * layers // batch))


def error_ratio(exact: Tensor, x: Tensor) -> float:
    """RMS of the error over RMS of the exact numbers; NaN and infinities come through."""
    x = x.double().cpu()
    return ((exact - x).square().mean().sqrt() / exact.square().mean().sqrt()).item()


def new_pool(case: KernelCase, layer: int) -> step.StatePool:
    """A pool on this layer's states themselves: a fold changes them."""
    slots = torch.arange(len(case.trees), dtype=torch.int32, device=case.states.device)
    return step.StatePool(case.states[layer], slots)
