"""Checkpoints as others publish them: Weavers as ``.pth`` in both forms, drafters of the ``dflash`` package, memory."""

import os
import sys
from collections import namedtuple
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from command_line import assert_refused, run
from models.oracle import random_tokens, relative_error
from models.small import drafter_for, tiny_target, weaver_for

from tfm_lab.bundle import SHIPPED, load_bundle
from tfm_lab.models import TargetModel, Weaver, load_drafter, load_target, load_weaver, save_drafter, save_target
from tfm_lab.models.weight_files import stored_tensors, stream


def published(weaver: Weaver) -> dict[str, Any]:
    """Config and tensors under the names of the published files (arXiv 2607.06763's checkpoint and the later form)."""
    config = weaver.config
    facts = {
        "d_model": config.target_width, "d_embed": config.target_width, "d_rank": config.width,
        "num_layers": config.layers, "num_heads": config.attention_heads, "mlp_dim": config.mlp_width,
        "K": config.max_depth, "candidate_pool_size": config.pool_size,
    }  # fmt: skip
    tensors = dict(weaver.state_dict())
    if config.mlp == "swiglu":
        for layer in range(config.layers):
            block = f"blocks.{layer}."
            rows = [tensors.pop(f"{block}{part}_proj.weight") for part in "qkv"]
            tensors[f"{block}qkv_proj.weight"] = torch.cat(rows)
            for old, new in (("fc1", "gate_up_proj"), ("fc2", "down_proj")):
                for kind in ("weight", "bias"):
                    tensors[f"{block}{new}.{kind}"] = tensors.pop(f"{block}{old}.{kind}")
    return {"config": facts, **tensors}


def a_weaver(form: str) -> tuple[TargetModel, Weaver]:
    target = tiny_target(dtype=torch.float32)
    later = {"positions": "rotary", "mlp": "swiglu"} if form == "later" else {}
    return target, weaver_for(target, layers=2, **later)


@pytest.mark.parametrize("form", ["first", "later"])
@pytest.mark.parametrize("place", ["file", "folder", "folder below", "nested table"])
def test_a_published_weaver_is_read_in_either_form(tmp_path: Path, form: str, place: str) -> None:
    target, weaver = a_weaver(form)
    content = published(weaver)
    if place == "nested table":
        content = {"config": content.pop("config"), "state_dict": content}
    folder = tmp_path / "hub" / ("weaver" if place == "folder below" else "")
    folder.mkdir(parents=True)
    torch.save(content, folder / "some_weaver.pth")
    reread = load_weaver(tmp_path / "hub" if "folder" in place else folder / "some_weaver.pth", target)
    assert reread.config == weaver.config
    for name, tensor in weaver.state_dict().items():
        assert torch.equal(reread.state_dict()[name], tensor)


def test_a_weaver_for_another_width_or_of_other_tensors_is_refused_by_name(tmp_path: Path) -> None:
    target, weaver = a_weaver("first")
    content = published(weaver)
    torch.save(content | {"config": content["config"] | {"d_model": 64, "d_embed": 64}}, tmp_path / "wide.pth")
    with pytest.raises(ValueError, match="made for another target: its width is 64, the target's is 48"):
        load_weaver(tmp_path / "wide.pth", target)
    content["blocks.0.fc3.weight"] = content.pop("blocks.0.fc2.weight")
    torch.save(content, tmp_path / "renamed.pth")
    with pytest.raises(ValueError, match=r"missing blocks\.0\.fc2\.weight; unknown blocks\.0\.fc3\.weight"):
        load_weaver(tmp_path / "renamed.pth", target)


class Payload:
    """What a harmful file would hold: unpickling it makes a folder."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (os.mkdir, ("executed",))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"config": {}, "weights": Payload()}, "holds more than tensors and numbers, and is not executed"),
        ([torch.zeros(1)], "must hold a table of names"),
        ({"weight": torch.zeros(1)}, "has no config of a Weaver"),
        ({"config": {"d_model": 48}}, "holds no tensors"),
        ({"config": {"d_model": "48"}, "pos_emb": torch.zeros(1)}, "needs a whole number.* for 'd_model', got '48'"),
        ({"config": {"d_model": 48, "d_embed": 32}, "pos_emb": torch.zeros(1)}, "embeddings have width 32"),
    ],
)
def test_files_that_are_no_weaver_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=sentence):
        load_weaver(tmp_path / "file.pth", a_weaver("first")[0])
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kept", [0, 50, 1000])
def test_a_broken_off_weaver_file_is_refused(tmp_path: Path, kept: int) -> None:
    target, weaver = a_weaver("first")
    torch.save(published(weaver), tmp_path / "file.pth")
    (tmp_path / "file.pth").write_bytes((tmp_path / "file.pth").read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"file\.pth is damaged"):
        load_weaver(tmp_path / "file.pth", target)


def test_two_weaver_files_in_a_folder_are_a_question(tmp_path: Path) -> None:
    target, weaver = a_weaver("first")
    for name in ("old.pth", "new.pth"):
        torch.save(published(weaver), tmp_path / name)
    with pytest.raises(ValueError, match=r"several Weaver files \(new.pth, old.pth\); name one of them"):
        load_weaver(tmp_path, target)


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(dtype=torch.float32)
    save_target(target, tmp_path / "target")
    numbers = sum(tensor.numel() for tensor in target.state_dict().values())
    memory = namedtuple("memory", ["available"])
    monkeypatch.setattr("tfm_lab.models.checkpoint.stream", lambda tensors: pytest.fail("the weights were read"))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(4 * numbers - 1))
    with pytest.raises(ValueError, match=r"needs 0\.0 GB in float32 and cpu has 0\.0 GB free; choose another device"):
        load_target(tmp_path / "target")
    monkeypatch.undo()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(4 * numbers))
    load_target(tmp_path / "target")


def test_tensors_are_read_one_at_a_time(tmp_path: Path) -> None:
    save_target(tiny_target(dtype=torch.float32), tmp_path / "target")
    stored = stored_tensors(tmp_path / "target")
    (tmp_path / "target" / "model.safetensors").write_bytes(b"gone")
    with pytest.raises(ValueError, match="is damaged"):
        next(stream(stored))  # nothing was read before


def test_a_target_a_drafter_and_a_weaver_from_three_places_decode_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = load_bundle()
    folder = SHIPPED / "hybrid"
    weaver = load_weaver(folder / "weaver", bundle.target)
    torch.save(published(weaver), tmp_path / "weaver.pth")
    words = ["decode", "import os", "--max-new-tokens", "8", "--budget", "8"]
    assert run(*words) == 0
    wanted = capsys.readouterr().out
    parts = ["--target", str(folder / "target"), "--drafter", str(folder / "drafter")]
    assert run(*words, *parts, "--weaver", str(tmp_path / "weaver.pth")) == 0
    assert capsys.readouterr().out.splitlines()[0] == wanted.splitlines()[0]
    assert_refused([*words, *parts], "needs a Weaver", tmp_path, capsys)
    assert_refused([*words, "--drafter", "nowhere"], "there is no drafter 'nowhere'", tmp_path, capsys)
    assert_refused([*words, "--method", "ar", *parts], "leave out --drafter and --weaver", tmp_path, capsys)


def test_fetch_says_what_a_drafter_or_a_weaver_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, weaver = a_weaver("later")
    save_drafter(drafter_for(target), target, tmp_path / "drafter")
    torch.save(published(weaver), tmp_path / "weaver.pth")
    assert run("fetch", str(tmp_path / "drafter")) == 0
    assert "can be used as a drafter: 2 layers, blocks of 8, width 48" in capsys.readouterr().out
    assert run("fetch", str(tmp_path / "weaver.pth")) == 0
    assert "can be used as a Weaver: width 32, 20 candidates, for targets of width 48" in capsys.readouterr().out


def dflash_model() -> Any:
    """The ``dflash`` package's module of models, without the package's own imports."""
    path = metadata.distribution("dflash").locate_file("dflash/model.py")
    spec = util.spec_from_file_location("tfm_lab_peer_dflash", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(
    not any(found.name == "dflash" for found in metadata.distributions()),
    reason="the dflash package is not installed (pip install --no-deps dflash==0.1.0)",
)
@pytest.mark.parametrize("layers", [1, 2])
def test_our_drafter_is_read_by_the_dflash_package_and_drafts_the_same(tmp_path: Path, layers: int) -> None:
    target = tiny_target(dtype=torch.float32)
    drafter = drafter_for(target, layers=layers)
    save_drafter(drafter, target, tmp_path / "drafter")
    oracle = dflash_model().DFlashDraftModel.from_pretrained(tmp_path / "drafter", dtype=torch.float32).eval()
    ours = load_drafter(tmp_path / "drafter", target)
    prompt, root = random_tokens(13), 5
    taps = target.prefill(prompt, ours.config.tap_layers).taps
    context = ours.extend_context(ours.empty_context(), taps)
    block = torch.full((1, ours.config.block_size), ours.config.mask_token)
    block[0, 0] = root
    with torch.no_grad():
        theirs = oracle(
            target_hidden=taps[None],
            noise_embedding=target.model.embed_tokens(block),
            position_ids=torch.arange(13 + ours.config.block_size)[None],
        )[0, 1:]
    assert relative_error(ours.propose(context, root, target).hidden, theirs) < 1e-4
