"""Checkpoint folders: round trips, shards, wrappers, and what is said about files that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from models.oracle import oracle_logits, oracle_model, random_tokens, relative_error
from models.small import drafter_for, tiny_target, weaver_for
from safetensors.torch import load_file, save_file

from tfm_lab.models import (
    load_drafter,
    load_target,
    load_weaver,
    save_drafter,
    save_target,
    save_weaver,
)
from tfm_lab.models.checkpoint import atomic_folder


def test_a_saved_target_is_read_by_transformers_as_the_same_model(tmp_path: Path) -> None:
    for name, kind in (("hybrid-grouped", "Qwen3_5ForCausalLM"), ("llama-plain", "LlamaForCausalLM")):
        target = tiny_target(name, torch.float32)
        save_target(target, tmp_path / name)
        reread = load_target(tmp_path / name)
        oracle = getattr(transformers, kind).from_pretrained(tmp_path / name, dtype=torch.float32).eval()
        tokens = random_tokens(20)
        assert relative_error(reread(torch.tensor([tokens]))[0], oracle_logits(oracle, tokens)) < 1e-4
        assert reread.fingerprint() == target.fingerprint()


def test_sharded_checkpoints_are_read_like_single_ones(tmp_path: Path) -> None:
    oracle = oracle_model("hybrid-plain")
    oracle.save_pretrained(tmp_path / "one")
    oracle.save_pretrained(tmp_path / "many", max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = load_target(tmp_path / "one"), load_target(tmp_path / "many")
    for left, right in zip(one.parameters(), many.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_text_part_of_a_vision_language_wrapper_is_found(tmp_path: Path) -> None:
    oracle_model("hybrid-plain").save_pretrained(tmp_path / "text")
    tensors = load_file(tmp_path / "text" / "model.safetensors")
    wrapped = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    wrapped |= {"model.visual.patch.weight": torch.zeros(2), "mtp.norm.weight": torch.zeros(2)}
    config = json.loads((tmp_path / "text" / "config.json").read_text())
    (tmp_path / "wrapper").mkdir()
    save_file(wrapped, tmp_path / "wrapper" / "model.safetensors")
    wrapper = {"model_type": "qwen3_5", "text_config": config, "tie_word_embeddings": False}
    (tmp_path / "wrapper" / "config.json").write_text(json.dumps(wrapper))
    assert load_target(tmp_path / "wrapper").fingerprint() == load_target(tmp_path / "text").fingerprint()


@pytest.mark.parametrize("form", [{}, {"positions": "rotary", "mlp": "swiglu"}])
def test_drafter_and_weaver_come_back_as_saved(tmp_path: Path, form: dict[str, str]) -> None:
    target = tiny_target(dtype=torch.float32)
    drafter, weaver = drafter_for(target), weaver_for(target, **form)
    save_drafter(drafter, target, tmp_path / "drafter")
    save_weaver(weaver, target, tmp_path / "weaver")
    reread_drafter = load_drafter(tmp_path / "drafter", target)
    reread_weaver = load_weaver(tmp_path / "weaver", target)
    assert reread_drafter.config == drafter.config
    assert reread_weaver.config == weaver.config
    for left, right in ((drafter, reread_drafter), (weaver, reread_weaver)):
        for name, tensor in left.state_dict().items():
            assert torch.equal(tensor.bfloat16().float(), right.state_dict()[name])


def test_a_drafter_and_a_weaver_of_other_weights_are_refused(tmp_path: Path) -> None:
    target, other = tiny_target(dtype=torch.float32), tiny_target("hybrid-plain", torch.float32)
    save_drafter(drafter_for(target), target, tmp_path / "drafter")
    save_weaver(weaver_for(target), target, tmp_path / "weaver")
    with pytest.raises(ValueError, match="the drafter was trained for another target"):
        load_drafter(tmp_path / "drafter", other)
    with pytest.raises(ValueError, match="the Weaver was trained for another target"):
        load_weaver(tmp_path / "weaver", other)


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def add_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors") | {"model.extra": torch.zeros(1)}
    save_file(tensors, folder / "model.safetensors")


def reshape_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors") | {"model.norm.weight": torch.zeros(3)}
    save_file(tensors, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def change_config(**changes: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return damage


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (drop_tensor, "missing model.norm.weight"),
        (add_tensor, "unknown model.extra"),
        (reshape_tensor, r"model.norm.weight has shape \(3,\), expected \(48,\)"),
        (truncate, "is damaged"),
        (remove_weights, "lacks its weights file model.safetensors"),
        (break_config, "is not valid JSON"),
        (change_config(model_type="gpt2"), "target type 'gpt2' is not supported"),
        (change_config(hidden_act="gelu"), "activation 'gelu' is not supported"),
        (change_config(attention_bias=True), "attention_bias are not supported"),
        (change_config(num_experts=4), "mixture-of-experts"),
        (change_config(rope_parameters={"rope_type": "yarn"}), "rotary embedding type 'yarn'"),
        (change_config(hidden_size="48"), "lacks a whole number for 'hidden_size'"),
        (change_config(layer_types=["full_attention"]), "lists 1 layers but num_hidden_layers is 5"),
        (change_config(linear_num_value_heads=5), "needs a multiple of 2 value heads"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_a_sentence(
    tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    save_target(tiny_target(dtype=torch.float32), tmp_path / "target")
    damage(tmp_path / "target")
    with pytest.raises(ValueError, match=sentence):
        load_target(tmp_path / "target")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        load_target(tmp_path / "nowhere")


def test_an_index_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    save_target(tiny_target(dtype=torch.float32), tmp_path / "target")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (tmp_path / "target" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="lacks its weights file"):
        load_target(tmp_path / "target")


def test_an_interrupted_write_leaves_the_old_folder_whole(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with atomic_folder(folder) as scratch:
        (scratch / "file").write_text("old")

    def broken_off() -> None:
        with atomic_folder(folder) as scratch:
            (scratch / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert (folder / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
