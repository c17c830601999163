"""The recurrence is the definition; the chunked form must be the same function, gradients included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gdn_cases import HEADS, Inputs, delta_inputs, error_ratio, states_of_nodes

from tfm_lab import gdn

LENGTHS = [0, 1, 2, 63, 64, 65, 130, 200]


@pytest.mark.parametrize("heads", HEADS)
def test_recurrent_is_the_matrix_recurrence(heads):
    inputs = delta_inputs(9, seed=0, heads=heads, batch=(2,))
    output, state = gdn.delta_rule_recurrent(*inputs)
    outputs, states = states_of_nodes(inputs, list(range(-1, 8)))
    torch.testing.assert_close(output, outputs, rtol=0, atol=1e-13)
    torch.testing.assert_close(state, states[..., -1, :, :], rtol=0, atol=1e-13)


def test_recurrent_continues_from_its_own_state():
    inputs = delta_inputs(10, seed=1)
    output, state = gdn.delta_rule_recurrent(*inputs)
    first, middle = gdn.delta_rule_recurrent(*inputs.along(range(4)))
    second, last = gdn.delta_rule_recurrent(*inputs.along(range(4, 10))._replace(state=middle))
    assert torch.equal(torch.cat([first, second], dim=-2), output)
    assert torch.equal(last, state)


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("chunk_size", [1, 16, 64, 100])
def test_chunked_is_recurrent_at_any_length(tokens, chunk_size):
    inputs = delta_inputs(tokens, seed=tokens, dims=(5, 3))
    expected_output, expected_state = gdn.delta_rule_recurrent(*inputs)
    output, state = gdn.delta_rule_chunked(*inputs, chunk_size=chunk_size)
    torch.testing.assert_close(output, expected_output, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, expected_state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", HEADS)
def test_chunked_is_recurrent_for_all_head_layouts(heads):
    inputs = delta_inputs(20, seed=2, heads=heads, batch=(2, 1))
    for result, expected in zip(
        gdn.delta_rule_chunked(*inputs, chunk_size=8), gdn.delta_rule_recurrent(*inputs), strict=True
    ):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("correlation", "decay"), [(0.0, 1.0), (0.97, 0.0), (1.0, 0.0), (0.5, 30.0)])
def test_chunked_in_float32(correlation, decay):
    inputs = delta_inputs(200, seed=3, dims=(32, 32), correlation=correlation, decay=decay)
    expected_output, expected_state = gdn.delta_rule_recurrent(*inputs)
    output, state = gdn.delta_rule_chunked(*inputs.to(torch.float32))
    assert output.dtype == state.dtype == torch.float32
    assert error_ratio(expected_output, output) < 2e-6
    assert error_ratio(expected_state, state) < 2e-6


def test_chunked_after_total_forgetting_keeps_float32_accuracy():
    """With a difference of cumulative sums the decays after such a token would be wrong by about 1e-3."""
    inputs = delta_inputs(64, seed=4, dims=(16, 16), decay=0.05)
    inputs.log_decay[..., ::20] = -1e4
    expected, _ = gdn.delta_rule_recurrent(*inputs)
    output, _ = gdn.delta_rule_chunked(*inputs.to(torch.float32))
    assert error_ratio(expected, output) < 1e-6


def test_gradients_of_chunked_pass_gradcheck():
    inputs = delta_inputs(5, seed=5, heads=(1, 2), dims=(3, 2), decay=0.3)
    arguments = tuple(tensor.requires_grad_() for tensor in inputs)
    assert torch.autograd.gradcheck(lambda *x: gdn.delta_rule_chunked(*x, chunk_size=2), arguments)


@pytest.mark.parametrize("forgetting", [False, True])
def test_gradients_of_chunked_are_those_of_recurrent(forgetting):
    inputs = delta_inputs(37, seed=6, dims=(4, 3))
    if forgetting:
        inputs.log_decay[..., ::5] = -200.0
    gradients = []
    for rule in (gdn.delta_rule_recurrent, lambda *x: gdn.delta_rule_chunked(*x, chunk_size=8)):
        arguments = Inputs(*(tensor.clone().requires_grad_() for tensor in inputs))
        output, state = rule(*arguments)
        weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
        ((weights * output).sum() + state.square().sum()).backward()
        gradients.append([tensor.grad for tensor in arguments])
    for name, expected, gradient in zip(Inputs._fields, *gradients, strict=True):
        torch.testing.assert_close(
            gradient, expected, rtol=1e-10, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


TRACING = """
import torch
from gdn_cases import delta_inputs
from tfm_lab import gdn
inputs = delta_inputs(40, seed=7, dims=(4, 4))
compiled = torch.compile(gdn.delta_rule_chunked, fullgraph=True, dynamic=False, backend="aot_eager")
for result, expected in zip(compiled(*inputs, chunk_size=16), gdn.delta_rule_chunked(*inputs, chunk_size=16)):
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-13)
"""


def test_chunked_traces_without_a_graph_break():
    """In a process of its own: torch.compile cannot trace the run-time checks that these tests put on the package."""
    search = os.pathsep.join([str(Path(__file__).parent), str(Path(gdn.__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": search}
    run = subprocess.run([sys.executable, "-c", TRACING], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("rule", [gdn.delta_rule_recurrent, gdn.delta_rule_chunked])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_widened_and_autocast_kept_out(rule, dtype):
    inputs = delta_inputs(70, seed=8).to(dtype)
    wide = [tensor.float() for tensor in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = rule(*inputs)
        same = rule(*wide)
    expected_output, expected_state = rule(*wide)
    assert output.dtype == dtype
    assert state.dtype == torch.float32
    assert torch.equal(output, expected_output.to(dtype))
    assert torch.equal(state, expected_state)
    assert torch.equal(same[0], expected_output)


def test_one_float64_input_makes_the_state_float64():
    inputs = delta_inputs(3, seed=9).to(torch.float32)
    output, state = gdn.delta_rule_chunked(*inputs._replace(log_decay=inputs.log_decay.double()))
    assert output.dtype == torch.float32
    assert state.dtype == torch.float64


@pytest.mark.parametrize("rule", [gdn.delta_rule_recurrent, gdn.delta_rule_chunked])
def test_log_decay_of_minus_infinity_forgets_everything(rule):
    inputs = delta_inputs(6, seed=10)
    inputs.log_decay[..., 3] = -torch.inf
    fresh = inputs.along(range(3, 6))
    expected, expected_state = gdn.delta_rule_recurrent(*fresh._replace(state=torch.zeros_like(inputs.state)))
    output, state = rule(*inputs)
    torch.testing.assert_close(output[..., 3:, :], expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(state, expected_state, rtol=0, atol=1e-13)


def test_gates_by_hand():
    a = torch.tensor([[0.0, 200.0, -200.0]])
    b = torch.tensor([[0.0, 100.0, -100.0]])
    log_decay, beta = gdn.gates(a, b, torch.tensor([2.0]).log(), torch.tensor([0.0]))
    torch.testing.assert_close(log_decay, torch.tensor([[-2 * 0.6931471806, -400.0, 0.0]]))
    torch.testing.assert_close(beta, torch.tensor([[0.5, 1.0, 0.0]]))


def test_gates_are_clamped_and_wide():
    a, b = torch.full((2, 3), 100.0, dtype=torch.bfloat16), torch.zeros(2, 3, dtype=torch.bfloat16)
    log_decay, beta = gdn.gates(a, b, torch.full((2,), 9.0), torch.zeros(2))
    assert log_decay.dtype == beta.dtype == torch.float32
    assert torch.equal(log_decay, torch.full((2, 3), -1e4))
    assert gdn.gates(a.double(), b, torch.zeros(2), torch.zeros(2))[0].dtype == torch.float64


def test_normalise_has_its_epsilon_inside_the_root():
    short = torch.full((1, 144), 1e-4)
    assert gdn.normalise(short).norm().item() == pytest.approx(1.2e-3 / (1.44e-6 + 1e-6) ** 0.5, rel=1e-5)
    assert torch.equal(gdn.normalise(torch.zeros(2, 4)), torch.zeros(2, 4))
    query, key = gdn.normalised_query_and_key(torch.ones(1, 1, 16), torch.ones(1, 1, 16))
    torch.testing.assert_close(query, key / 4)


@pytest.mark.parametrize("rule", [gdn.delta_rule_recurrent, gdn.delta_rule_chunked])
def test_value_heads_must_be_a_multiple_of_key_heads(rule):
    with pytest.raises(ValueError, match="3 value heads cannot share 2 key heads evenly"):
        rule(*delta_inputs(4, seed=0, heads=(2, 3)))


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["key", "value", "log_decay", "beta", "state"])
def test_wrong_shapes_are_named(name):
    inputs = delta_inputs(4, seed=0)
    wrong = inputs._replace(**{name: getattr(inputs, name)[..., :-1]})
    with pytest.raises(ValueError, match=name if name != "value" else "state has shape"):
        gdn.delta_rule_recurrent(*wrong)
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        gdn.delta_rule_chunked(*inputs, chunk_size=0)
