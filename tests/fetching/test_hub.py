"""The Hugging Face hub: what is asked of its client, and one sentence for every way in which it fails."""

import os
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tfm_lab.fetching import fetch_from_hub, fetched_from_hub, is_hub_id


def test_only_owner_and_name_are_a_hub_id() -> None:
    for name in ("HuggingFaceTB/SmolLM2-135M-Instruct", "a/b", "Qwen/Qwen3.6-27B", "a_b/c-d.e"):
        assert is_hub_id(name)
    for name in ("smollm2", "a/b/c", "./a", "../b", "/a", "a/", "a/..", "a b/c", "", "https://a/b"):
        assert not is_hub_id(name)


def test_weights_configs_and_templates_are_asked_for_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda name, **options: asked.append({"name": name, **options}) or tmp_path,
    )
    assert fetch_from_hub("a/b") == fetch_from_hub("a/b", force=True) == fetched_from_hub("a/b") == tmp_path
    patterns = ["*.safetensors", "*.json", "*.jinja", "*.pth"]
    assert [one.pop("allow_patterns") for one in asked] == [patterns] * 3
    assert [one.pop("ignore_patterns") for one in asked] == [["original/*"]] * 3
    assert asked == [
        {"name": "a/b", "force_download": False, "local_files_only": False},
        {"name": "a/b", "force_download": True, "local_files_only": False},
        {"name": "a/b", "force_download": False, "local_files_only": True},
    ]


OUT_OF_REACH = """
import sys
from tfm_lab.fetching import fetch_from_hub, fetched_from_hub
for function in (fetch_from_hub, fetched_from_hub):
    try:
        function("owner/name")
    except ValueError as error:
        print(error)
"""


def test_a_hub_that_does_not_answer_is_told_in_one_sentence(tmp_path: Path) -> None:
    import subprocess
    import sys

    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", OUT_OF_REACH]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "owner/name cannot be fetched: the Hugging Face hub is out of reach; "
        "check name and network connection, or give the path of a checkpoint folder",
        "owner/name has not been fetched; run: tfm-lab fetch owner/name",
    ]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("RepositoryNotFoundError", "a/b does not exist on the Hugging Face hub, or is private; check name"),
        ("GatedRepoError", "a/b has conditions to accept on its page first; check name"),
        (RuntimeError("cut\noff"), "a/b cannot be fetched from the Hugging Face hub (cut off); check name"),
    ],
)
def test_every_refusal_of_the_hub_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, kind: str | Exception, sentence: str
) -> None:
    if isinstance(kind, str):
        found = getattr(huggingface_hub.errors, kind)
        kind = found.__new__(found)

    def fail(*arguments: Any, **options: Any) -> None:
        raise kind

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        fetch_from_hub("a/b")
