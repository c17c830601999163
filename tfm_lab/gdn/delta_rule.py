"""The gated delta rule (arXiv 2412.06464): gates, the recurrence that defines it, and the chunked form.

Per value head the state S [key_dim, value_dim] is an associative memory. One token with key k, value v, query q, decay
alpha = exp(log_decay) and writing strength beta forgets, then corrects what the memory answers to k, then reads:

    S <- alpha S
    u  = beta (v - S^T k)            the update: what is still missing
    S <- S + k u^T
    o  = S^T q

which is S <- alpha (I - beta k k^T) S + beta k v^T.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from tfm_lab.gdn.inputs import MIN_LOG_DECAY, at_least_float32, checked_inputs, repeat_heads, without_autocast


def normalise(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """x / sqrt(sum x^2 + 1e-6) over the last axis, in float32 or wider.

    The 1e-6 stands inside the root, as in Qwen: a vector of length 1.2e-3 comes out with length 0.77, not 1.
    """
    x = at_least_float32(x)
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def normalised_query_and_key(
    query: Float[Tensor, "*batch heads tokens key_dim"], key: Float[Tensor, "*batch heads tokens key_dim"]
) -> tuple[Float[Tensor, "*batch heads tokens key_dim"], Float[Tensor, "*batch heads tokens key_dim"]]:
    """Query and key as the delta rule takes them: both normalised, the query scaled by ``key_dim ** -0.5``."""
    return normalise(query) * query.shape[-1] ** -0.5, normalise(key)


def gates(
    a: Float[Tensor, "*batch heads tokens"],
    b: Float[Tensor, "*batch heads tokens"],
    A_log: Float[Tensor, " heads"],
    dt_bias: Float[Tensor, " heads"],
) -> tuple[Float[Tensor, "*batch heads tokens"], Float[Tensor, "*batch heads tokens"]]:
    """Log decay and writing strength of every token and value head, float32 or wider.

    ``log_decay = -exp(A_log) softplus(a + dt_bias)``, clamped at -1e4 (exp of it is 0 in every dtype, and sums of it
    stay finite); ``beta = sigmoid(b)``. Softplus is linear above 20.

    Returns:
        ``(log_decay, beta)``: log_decay in [-1e4, 0], beta in [0, 1].
    """
    a, b, A_log, dt_bias = (at_least_float32(x) for x in (a, b, A_log, dt_bias))
    log_decay = -A_log.exp()[:, None] * F.softplus(a + dt_bias[:, None], threshold=20.0)
    return log_decay.clamp_min(MIN_LOG_DECAY), b.sigmoid()


def delta_rule_recurrent(
    query: Float[Tensor, "*batch key_heads tokens key_dim"],
    key: Float[Tensor, "*batch key_heads tokens key_dim"],
    value: Float[Tensor, "*batch value_heads tokens value_dim"],
    log_decay: Float[Tensor, "*batch value_heads tokens"],
    beta: Float[Tensor, "*batch value_heads tokens"],
    state: Float[Tensor, "*batch value_heads key_dim value_dim"],
) -> tuple[Float[Tensor, "*batch value_heads tokens value_dim"], Float[Tensor, "*batch value_heads key_dim value_dim"]]:
    """The definition, token by token (2412.06464, eq. 10; four lines in this module's docstring).

    Args:
        query: normalised and scaled, see :func:`normalised_query_and_key`.
        key: normalised.
        value: what to store under each key.
        log_decay: log alpha, at most 0; one number per token and value head.
        beta: writing strength in [0, 1].
        state: the memory before the first token.

    Returns:
        ``(output, state)``: output in the value's dtype; the state after the last token, float32 or wider.

    Raises:
        ValueError: if the shapes do not belong together.

    Two tokens by hand, all dims 1, alpha = 0.5. Token 1: the state 4 decays to 2, the update is 0.5 (6 - 2) = 2, the
    state becomes 4. Token 2: it decays to 2, the update is 1 (10 - 2) = 8, the state becomes 10. (Correcting before
    decaying would have given 2.5 after the first token.)

    Example:
        >>> one = torch.ones(1, 2, 1, dtype=torch.float64)
        >>> value = torch.tensor([[[6.0], [10.0]]], dtype=torch.float64)
        >>> log_decay = torch.full((1, 2), 0.5, dtype=torch.float64).log()
        >>> beta = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
        >>> output, state = delta_rule_recurrent(one, one, value, log_decay, beta, 4 * one[:, :1])
        >>> output.flatten().tolist(), state.item()
        ([4.0, 10.0], 10.0)
    """
    dtype, value_heads = value.dtype, value.shape[-3]
    with without_autocast(value):
        query, key, value, log_decay, beta, state = checked_inputs(query, key, value, log_decay, beta, state)
        query, key = repeat_heads(query, value_heads), repeat_heads(key, value_heads)
        alpha = log_decay.exp()
        outputs = [value[..., :0, :]]
        for t in range(value.shape[-2]):
            state = alpha[..., t, None, None] * state
            update = beta[..., t, None] * (value[..., t, :] - torch.einsum("...kv,...k->...v", state, key[..., t, :]))
            state = state + key[..., t, :, None] * update[..., None, :]
            outputs.append(torch.einsum("...kv,...k->...v", state, query[..., t, :]).unsqueeze(-2))
        return torch.cat(outputs, dim=-2).to(dtype), state


def delta_rule_chunked(
    query: Float[Tensor, "*batch key_heads tokens key_dim"],
    key: Float[Tensor, "*batch key_heads tokens key_dim"],
    value: Float[Tensor, "*batch value_heads tokens value_dim"],
    log_decay: Float[Tensor, "*batch value_heads tokens"],
    beta: Float[Tensor, "*batch value_heads tokens"],
    state: Float[Tensor, "*batch value_heads key_dim value_dim"],
    *,
    chunk_size: int = 64,
) -> tuple[Float[Tensor, "*batch value_heads tokens value_dim"], Float[Tensor, "*batch value_heads key_dim value_dim"]]:
    """The same function as :func:`delta_rule_recurrent`, in matrix products (2412.06464, sec. 3.3; the WY form).

    Inside a chunk that starts from state S, with a_i the decay from the chunk's start to token i (i included) and
    D_ij that from token j (excluded) to i, the updates u_i of the recurrence solve

        (I + X) U = diag(beta) (V - diag(a) K S)        X_ij = beta_i D_ij (k_i . k_j)   for j < i

    The right-hand side is linear in S, so U = V' - W S with two solves that do not need S. They are done for all chunks
    at once, and so is the map from one chunk's state to the next; only that map's application is a loop:

        S' = a_C S + K'^T U = (a_C I - K'^T W) S + K'^T V'      row j of K' is D_Cj k_j,  C the chunk's last token
        O  = diag(a) Q S + Y U                                  Y_ij = D_ij (q_i . k_j)   for j <= i

    Any length is accepted; the last chunk is padded with tokens that write nothing (k = q = v = beta = 0, alpha = 1).
    Arguments, results and errors are those of :func:`delta_rule_recurrent`; ``chunk_size`` is in tokens.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 token, got {chunk_size}")
    dtype, value_heads, tokens = value.dtype, value.shape[-3], value.shape[-2]
    with without_autocast(value):
        query, key, value, log_decay, beta, state = checked_inputs(query, key, value, log_decay, beta, state)
        if tokens == 0:
            return value.to(dtype), state
        size = min(chunk_size, tokens)
        padding = -tokens % size
        query, key, value = (
            F.pad(x, (0, 0, 0, padding)).unflatten(-2, (-1, size))
            for x in (repeat_heads(query, value_heads), repeat_heads(key, value_heads), value)
        )
        log_decay, beta = (F.pad(x, (0, padding)).unflatten(-1, (-1, size)) for x in (log_decay, beta))

        decay = path_decay(log_decay, torch.ones(size, size, dtype=torch.bool, device=value.device).tril())
        from_start = log_decay.cumsum(-1).exp()
        # I + X: the solve takes the diagonal as 1 and reads neither it nor what is above it.
        system = beta[..., None] * decay * (key @ key.mT)
        right = beta[..., None] * torch.cat([value, from_start[..., None] * key], dim=-1)
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        new_value, weight = solved.split([value.shape[-1], key.shape[-1]], dim=-1)

        carried = (decay[..., -1, :, None] * key).mT
        keep = from_start[..., -1, None, None] * torch.eye(key.shape[-1], dtype=key.dtype, device=key.device)
        transitions, gains = keep - carried @ weight, carried @ new_value
        before = []
        for transition, gain in zip(transitions.unbind(-3), gains.unbind(-3), strict=True):
            before.append(state)
            state = transition @ state + gain
        start = torch.stack(before, dim=-3)
        output = from_start[..., None] * (query @ start) + (decay * (query @ key.mT)) @ (new_value - weight @ start)
        return output.flatten(-3, -2)[..., :tokens, :].to(dtype), state


def path_decay(
    log_decay: Float[Tensor, "*batch nodes"], ancestors: Bool[Tensor, "nodes nodes"]
) -> Float[Tensor, "*batch nodes nodes"]:
    """D_ij = product of the decays on the path from j (excluded) down to i, where j is i or an ancestor of i; else 0.

    The exponent is summed over that path itself. A difference of two sums from the root would be the same number, but
    after one token that forgets all (log decay -1e4) it would carry float32's rounding of 1e4, about 1e-3. What is not
    on the path is set to -inf before the exponential: a sibling that forgot hard would overflow there, and inf times a
    mask of 0 is NaN, in the values or in their gradient.
    """
    mask = ancestors.to(log_decay.dtype)
    below = log_decay[..., None] * mask.tril(-1)
    return (mask @ below).masked_fill(~ancestors, -math.inf).exp()
