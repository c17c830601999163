"""Training recipes: one TOML file describes every stage, from text to Weaver. Unknown and missing names raise."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from tfm_lab.models.config import (
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    DeltaNetConfig,
    DrafterConfig,
    TargetConfig,
    WeaverConfig,
    evenly_spaced_taps,
)
from tfm_lab.training.fit import FitConfig
from tfm_lab.training.labels import LABELS, TEXT
from tfm_lab.training.losses import WEAVER_LOSSES
from tfm_lab.training.tokenizer import MASK

SHIPPED = Path(__file__).parent.parent / "recipes"
MOST_TOKENS = 2**16
PROMPT_KINDS = ("chat", "maths", "code", "docstrings", "stdlib", "packages", "docs", "manuals")
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """Vocabulary and sources. ``characters`` caps each source (0: take all), for quick trials."""

    vocabulary: int
    sources: tuple[str, ...]
    characters: int = 0

    def __post_init__(self) -> None:
        if self.vocabulary > MOST_TOKENS:
            raise ValueError(f"vocabulary must be at most {MOST_TOKENS} (token ids take two bytes)")
        if not self.sources:
            raise ValueError("sources must name at least one source of text")


@dataclass(frozen=True, slots=True)
class TargetRecipe:
    """Shape of a hybrid target and how to train it. Every fourth layer is full attention."""

    hidden_size: int
    intermediate_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    max_positions: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    batch: int
    length: int
    fit: FitConfig
    compile: bool = False

    def __post_init__(self) -> None:
        _check_positive(self, "layers", "batch", "length")

    def config(self, vocabulary: int, stop_tokens: tuple[int, ...]) -> TargetConfig:
        kinds = tuple(FULL_ATTENTION if (i + 1) % 4 == 0 else LINEAR_ATTENTION for i in range(self.layers))
        return TargetConfig(
            model_type="qwen3_5_text",
            vocab_size=vocabulary,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            layer_types=kinds,
            attention_heads=self.attention_heads,
            key_value_heads=self.key_value_heads,
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            rope_theta=self.rope_theta,
            rms_norm_epsilon=1e-6,
            max_positions=self.max_positions,
            tie_embeddings=True,
            stop_tokens=stop_tokens,
            delta_net=DeltaNetConfig(self.key_heads, self.value_heads, self.key_dim, self.value_dim, 4),
        )


@dataclass(frozen=True, slots=True)
class TextRecipe:
    """Texts that the target writes.

    Attributes:
        length: tokens per text, prompt included.
        prompt_tokens: of a corpus window, or the most that a prompt of one of the kinds ``prompts`` may have.
        replayed_tokens: of each held-out text that the decoded MAL in the training log is measured on.
        prompts: kinds of prompts, in equal shares (see :mod:`tfm_lab.training.prompts`); none for corpus windows.
        temperatures: take turns.
        least_distinct: a text is kept if at least this share of the tokens that the target wrote are distinct.
    """

    texts: int
    held_out_texts: int
    prompt_tokens: int
    length: int
    temperatures: tuple[float, ...]
    batch: int
    least_distinct: float
    prompts: tuple[str, ...] = ()
    replayed_tokens: int = 96
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.prompts) - set(PROMPT_KINDS)
        if unknown:
            raise ValueError(f"there are no prompts of kind {min(unknown)!r}; use {', '.join(PROMPT_KINDS)}")
        _check_positive(self, "texts", "held_out_texts", "prompt_tokens", "batch", "replayed_tokens")
        if self.length <= self.prompt_tokens:
            raise ValueError(f"length {self.length} leaves nothing to write after {self.prompt_tokens} prompt tokens")
        if not self.temperatures or min(self.temperatures) < 0.0:
            raise ValueError("temperatures must be one or more numbers, none of them negative")


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    """Shape of a drafter and how to train it; factorised or autoregressive, as its place in the recipe says.

    Attributes:
        labels: what a block is compared with: the tokens of the text, or at every place the whole law that the text
            was written from (``law``; the same objective with less noise, see :mod:`tfm_lab.training.labels`).
        compile: training steps run through torch.compile on a GPU.
    """

    layers: int
    intermediate_size: int
    attention_heads: int
    key_value_heads: int
    head_dim: int
    rope_theta: float
    taps: int
    batch: int
    anchors: int
    fit: FitConfig
    gamma: float = 7.0
    block_size: int = 16
    mask_token: str = MASK
    labels: str = TEXT
    compile: bool = False

    def __post_init__(self) -> None:
        if self.labels not in LABELS:
            raise ValueError(f"labels must be one of {', '.join(LABELS)}, got {self.labels!r}")
        _check_positive(self, "layers", "taps", "batch", "anchors")

    def config(self, target: TargetConfig, mask_token: int) -> DrafterConfig:
        return DrafterConfig(
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            intermediate_size=self.intermediate_size,
            layers=self.layers,
            attention_heads=self.attention_heads,
            key_value_heads=self.key_value_heads,
            head_dim=self.head_dim,
            rope_theta=self.rope_theta,
            rms_norm_epsilon=1e-6,
            max_positions=target.max_positions,
            target_layers=target.layers,
            tap_layers=evenly_spaced_taps(target.layers, self.taps),
            mask_token=mask_token,
            block_size=self.block_size,
        )


@dataclass(frozen=True, slots=True)
class WeaverRecipe:
    """Shape of a Weaver and how to train it.

    Attributes:
        sees_target, sees_temperature: what the Weaver knows besides the drafter's block. One that sees temperatures
            learns the target's laws at the temperatures of the texts, otherwise they are those of temperature 1.
        compile: training steps run through torch.compile on a GPU.
    """

    width: int
    layers: int
    attention_heads: int
    mlp_width: int
    pool_size: int
    batch: int
    anchors: int
    fit: FitConfig
    positions: str = "learned"
    mlp: str = "gelu"
    eta: float = 3.0
    objective: str = "lk"
    sees_target: bool = True
    sees_temperature: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        if self.objective not in WEAVER_LOSSES:
            raise ValueError(f"objective must be one of {', '.join(WEAVER_LOSSES)}, got {self.objective!r}")
        _check_positive(self, "layers", "pool_size", "batch", "anchors")

    def config(self, target: TargetConfig, max_depth: int) -> WeaverConfig:
        return WeaverConfig(
            target_width=target.hidden_size,
            width=self.width,
            layers=self.layers,
            attention_heads=self.attention_heads,
            mlp_width=self.mlp_width,
            max_depth=max_depth,
            pool_size=self.pool_size,
            positions=self.positions,
            mlp=self.mlp,
            sees_target=self.sees_target,
            sees_temperature=self.sees_temperature,
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """All stages of one bundle, with a target of its own or for one that exists already.

    Attributes:
        corpus, target: what a new target is made from.
        fetched: instead of these, the name or folder of an existing target.
        autoregressive: for comparison; the stage is left out without it.
    """

    text: TextRecipe
    drafter: DrafterRecipe
    weaver: WeaverRecipe
    corpus: CorpusRecipe | None = None
    target: TargetRecipe | None = None
    fetched: str = ""
    autoregressive: DrafterRecipe | None = None

    def __post_init__(self) -> None:
        if (self.corpus is None) != (self.target is None) or (self.target is None) != bool(self.fetched):
            raise ValueError("a recipe has corpus and target, or names an existing target as fetched")
        if self.fetched and not self.text.prompts:
            raise ValueError("an existing target has no corpus to continue: name the prompts of the text")


def load_recipe(name_or_path: str, changes: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by name (``hybrid``, ``tiny``) or any TOML file by path.

    Args:
        changes: ``TABLE.NAME=VALUE`` each, such as ``weaver.fit.steps=400``; values as in TOML, words without quotes.

    Raises:
        ValueError: if there is no such recipe, it is not valid TOML, a change has another form, or a name is unknown,
            missing or of the wrong type or out of range.
    """
    path = Path(name_or_path)
    if not path.suffix:
        path = SHIPPED / f"{name_or_path}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
        raise ValueError(f"there is no recipe {name_or_path!r}; use one of {known}, or the path of a TOML file")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    for change in changes:
        _change(table, change)
    return _read(Recipe, table, path.name)


def _change(table: dict[str, Any], change: str) -> None:
    """Set one value of a recipe's table, in place."""
    place, found, text = change.partition("=")
    *parents, name = place.strip().split(".")
    if not found or not name or not all(parents):
        raise ValueError(f"a change of a recipe reads TABLE.NAME=VALUE, got {change!r}")
    for parent in parents:
        inner = table.get(parent)
        if not isinstance(inner, dict):
            tables = ", ".join(key for key, value in table.items() if isinstance(value, dict))
            raise ValueError(f"the recipe has no table {parent!r} for {change!r}; it has {tables or 'none there'}")
        table = inner
    try:
        table[name] = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        table[name] = text.strip()


def _check_positive(record: object, *names: str) -> None:
    for name in names:
        if getattr(record, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(record, name)}")


def _read(kind: type[Record], table: Mapping[str, Any], where: str) -> Record:
    """Build a dataclass from a TOML table, nested dataclasses from nested tables."""
    assert is_dataclass(kind)
    known = {field.name: field for field in fields(kind)}
    unknown = sorted(table.keys() - known.keys())
    if unknown:
        raise ValueError(f"{where} does not know {unknown[0]!r}; it takes {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name in table:
            values[name] = _convert(field.type, table[name], f"{where}: {name}")
        elif field.default is MISSING:
            raise ValueError(f"{where} lacks {name!r}")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _convert(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} must be a table")
        return _read(kind, value, where)  # pyright: ignore[reportArgumentType]
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list")
        return tuple(_convert(get_args(kind)[0], item, where) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    accepted = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    tables = [option for option in accepted if is_dataclass(option)]
    if tables:
        return _convert(tables[0], value, where)
    if type(value) not in accepted:
        raise ValueError(f"{where} must be of type {getattr(kind, '__name__', kind)}, got {value!r}")
    return value
