"""Identity of weights: what a drafter records of its target, and an evaluation of its models."""

import hashlib
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

SAMPLED_VALUES = 4096
SERVING_FIELDS = ("stop_tokens", "max_positions")
ABSENT_IF_FALSE = ("sees_temperature",)


def fingerprint(model: nn.Module, config: Any) -> str:
    """A hash over the config and, for every parameter, its name, shape and evenly spaced values in bfloat16.

    Parameters of up to 4,096 values are hashed whole, larger ones by a sample, so that a large model costs no more than
    a moment. Compute dtype, device and the sharding of the checkpoint do not matter, nor do stop tokens and context
    length, which a user may change. A field that older configs lack counts where it says that a model is of another
    kind than those, so that their identity stays what recorded results say.
    """
    facts = {name: value for name, value in asdict(config).items() if name not in SERVING_FIELDS}
    facts = {name: value for name, value in facts.items() if value or name not in ABSENT_IF_FALSE}
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().reshape(-1)
        count = min(SAMPLED_VALUES, flat.numel())
        index = torch.arange(count, device=flat.device) * flat.numel() // count
        values = flat[index].to("cpu", torch.bfloat16).view(torch.int16).numpy()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + values.tobytes())
    return digest.hexdigest()[:16]
