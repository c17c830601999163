"""Checkpoint folders from the Hugging Face hub: weights, configs and templates, no code.

They lie in the hub's own cache (``HF_HOME``), where transformers and others find them too.
"""

import re
from pathlib import Path

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.pth"]
COPIES = ["original/*"]
"""Left out: the same weights in another format."""


def is_hub_id(name: str) -> bool:
    """True for ``owner/name``."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None


def fetch_from_hub(name: str, *, force: bool = False) -> Path:
    """Download a checkpoint, or what is missing of it; returns its folder.

    Args:
        name: ``owner/name``.
        force: download again what is there.

    Raises:
        ValueError: if the hub is out of reach, or has no such repository that may be read.
    """
    return _snapshot(name, "check name and network connection, or give the path of a checkpoint folder", force=force)


def fetched_from_hub(name: str) -> Path:
    """Folder of a checkpoint that was downloaded before; offline.

    Raises:
        ValueError: if it is not there, with the command that fetches it.
    """
    return _snapshot(name, f"run: tfm-lab fetch {name}", offline=True)


def _snapshot(name: str, advice: str, *, force: bool = False, offline: bool = False) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        found = snapshot_download(
            name,
            allow_patterns=PATTERNS,
            ignore_patterns=COPIES,
            force_download=force,
            local_files_only=offline,
        )
    except GatedRepoError:
        reason = "has conditions to accept on its page first"
    except RepositoryNotFoundError:
        reason = "does not exist on the Hugging Face hub, or is private"
    except LocalEntryNotFoundError:
        reason = "has not been fetched" if offline else "cannot be fetched: the Hugging Face hub is out of reach"
    except Exception as error:  # the hub's client lets errors of its transport through
        reason = f"cannot be fetched from the Hugging Face hub ({' '.join(str(error).split()) or type(error).__name__})"
    else:
        return Path(found)
    raise ValueError(f"{name} {reason}; {advice}")
