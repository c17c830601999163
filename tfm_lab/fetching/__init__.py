"""Models and prompts that are fetched once into a cache folder: by name, checked by checksum, whole or not at all."""

from tfm_lab.fetching.by_name import fetch, fetched
from tfm_lab.fetching.cache import cache_folder
from tfm_lab.fetching.catalogue import Entry, entry, names
from tfm_lab.fetching.hub import fetch_from_hub, fetched_from_hub, is_hub_id

__all__ = [
    "Entry",
    "cache_folder",
    "entry",
    "fetch",
    "fetch_from_hub",
    "fetched",
    "fetched_from_hub",
    "is_hub_id",
    "names",
]
