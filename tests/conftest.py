"""Common ground of all tests: checked shapes, poisoned memory, fixed seeds.

* Annotated shapes and types of the package are checked at run time (jaxtyping with beartype). A test that hands over a
  wrong shape on purpose, to see what the package says, is marked ``unchecked``; so are long runs of whole models, of
  which the checks would take half the time.
* ``torch.empty`` and its kin return NaN where the package itself calls them, so that a kernel or a function that
  leaves a value unwritten cannot pass by luck.
* Every test starts from the same seed of torch's global generator, which only the tests use.
* Ctrl-C works, also where the tests were started in the background of a script: a shell lets such processes ignore it.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded: idle threads sleep instead of spinning
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
jaxtyping.install_import_hook(["tfm_lab"], "runtime_types.checked")

collect_ignore_glob = ["kernels/compile_*.py"]  # programs that tests start, in a process of their own

import torch  # noqa: E402

import tfm_lab  # noqa: E402, F401  (settles Triton's mode before anything can import Triton)

if TYPE_CHECKING:
    from tfm_lab.bundle import Bundle

PACKAGES = ("tfm_lab", "tfm_kernels")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed torch, check shapes unless the test says otherwise, and skip what needs a GPU on a machine without one."""
    torch.manual_seed(0)
    jaxtyping.config.update("jaxtyping_disable", item.get_closest_marker("unchecked") is not None)
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session", autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fill uninitialised tensors with NaN (integers with their largest value) when the package asks for them."""
    with torch.device("meta"):
        torch.zeros(1)  # at the first use of a device context torch notes its factories: before they are replaced
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (torch, "empty"),
            (torch, "empty_like"),
            (torch, "empty_strided"),
            (torch.Tensor, "new_empty"),
        ):
            patch.setattr(owner, name, _poisoned(getattr(owner, name)))
        yield


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def allocate_poisoned(*arguments: Any, **options: Any) -> torch.Tensor:
        tensor = allocate(*arguments, **options)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.split(".")[0] in PACKAGES and tensor.device.type != "meta":
            if tensor.is_floating_point():
                tensor.detach().fill_(torch.nan)
            elif tensor.dtype != torch.bool:
                tensor.fill_(torch.iinfo(tensor.dtype).max)
        return tensor

    return allocate_poisoned


@pytest.fixture(scope="session")
def tiny_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work folder of the recipe ``tiny`` after all training stages. Read it; to write, copy it.

    The workers of a parallel run share it: the first one that needs it trains, the others wait for it.
    """
    from filelock import FileLock
    from training.tiny import run_all, short_recipe

    from tfm_lab.training.pipeline import Work

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, done = shared / "tiny" / "work", shared / "tiny.done"
    with FileLock(shared / "tiny.lock"):
        if not done.exists():
            run_all(Work(folder), short_recipe())
            done.touch()
    return folder


@pytest.fixture(scope="session")
def tiny_bundle(tiny_work: Path) -> "Bundle":
    """The toy models that :func:`tiny_work` trained: they write nonsense, and write it losslessly."""
    from tfm_lab.bundle import load_bundle

    return load_bundle(str(tiny_work / "model"))
