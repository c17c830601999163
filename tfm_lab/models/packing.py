"""Weights laid out for decoding on a CPU: in blocks of rows, in half the bytes, with the same results.

A decoding step multiplies few rows with every matrix of a model, so its time goes into reading weights. A packed copy
holds them in float16, in the order in which the product reads them, and multiplies in float32. Weights of checkpoints
in bfloat16 survive that to within 3e-8; a matrix that would not is left as it is. Matrices that multiply the same
input become one. The parameters themselves stay where they are: names, fingerprints and checkpoints do not change.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

MAX_ROWS = 64
"""Rows up to which a packed product is used; the plain one is as fast from there on."""

ROUNDING = 2.0**-25
"""Largest error of a packed weight: what float16 rounds weights below 2**-14 by. Larger bfloat16 weights are exact."""


class Packed:
    """Products of one input with several matrices, as one product.

    Args:
        weights: float32, on the CPU; float16 must be able to hold them.
        bias: to add to all results side by side.
    """

    def __init__(self, weights: Sequence[Float[Tensor, "_ channels"]], bias: Tensor | None = None) -> None:
        weight = torch.cat(list(weights)).detach()
        self._widths = [len(part) for part in weights]
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def takes(self, x: Float[Tensor, "*rows channels"]) -> bool:
        """Whether the packed product is the right one for ``x``: few float32 rows on the CPU and no gradient wanted."""
        is_small = x.numel() <= MAX_ROWS * x.shape[-1]
        return is_small and x.dtype == torch.float32 and x.is_cpu and not torch.is_grad_enabled()

    def __call__(self, x: Float[Tensor, "*rows channels"]) -> tuple[Float[Tensor, "*rows _"], ...]:
        """The product with each matrix, in their order."""
        rows = x if x.dim() > 1 else x.unsqueeze(0)
        result = torch.ops.quantized.linear_dynamic_fp16(rows, self._weight).view(*x.shape[:-1], sum(self._widths))
        return (result,) if len(self._widths) == 1 else result.split(self._widths, dim=-1)


class Packable(nn.Module):
    """A module that uses packed copies of its linear layers when it has them."""

    @abstractmethod
    def pack_layers(self) -> None:
        """Make the packed copies."""


def pack(*linears: nn.Linear) -> Packed | None:
    """Linear layers with the same input as one product, all of them with a bias or none.

    Returns:
        ``None`` if a weight would change by more than ``ROUNDING``.
    """
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return pack_weights([linear.weight for linear in linears], torch.cat(biases) if biases else None)


def pack_weights(weights: Sequence[Float[Tensor, "_ channels"]], bias: Tensor | None = None) -> Packed | None:
    """As :func:`pack`, of matrices that are no layers of their own."""
    for weight in weights:
        if not bool(((weight - weight.half().float()).abs() <= ROUNDING).all()):
            return None
    return Packed(weights, bias)


def products(
    x: Float[Tensor, "*rows channels"], packed: Packed | None, *linears: nn.Linear
) -> tuple[Float[Tensor, "*rows _"], ...]:
    """``x`` through each of ``linears``, by their packed copy where there is one and it is the right one for ``x``."""
    if packed is not None and packed.takes(x):
        return packed(x)
    return tuple(linear(x) for linear in linears)


def product(x: Float[Tensor, "*rows channels"], packed: Packed | None, linear: nn.Linear) -> Tensor:
    """As :func:`products`, of one layer."""
    return products(x, packed, linear)[0]


def can_pack() -> bool:
    """Whether this processor and this build of torch have the packed product (x86 with AVX2)."""
    quantized = torch.backends.quantized
    return "fbgemm" in quantized.supported_engines and quantized.engine in ("fbgemm", "x86")


def prepare_for_cpu(model: nn.Module) -> None:
    """Give the parts of a model packed copies of their linear layers, for decoding; half the model's size in memory.

    Results agree with those of the plain layers up to rounding in float32. Gated DeltaNet layers stay plain. Training
    does not use the copies, so a model that is trained further has to be prepared again.

    Raises:
        ValueError: if the model is not float32, not on a CPU, or this processor has no packed product.
    """
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ValueError(
                f"only float32 models on a CPU can be prepared, and {name} is {parameter.dtype} on {parameter.device}"
            )
    if not can_pack():
        raise ValueError("torch has no packed product for this processor; it takes x86 with AVX2")
    for module in model.modules():
        if isinstance(module, Packable):
            module.pack_layers()
