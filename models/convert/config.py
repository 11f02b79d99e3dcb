"""The numbers of a checkpoint: config.json flattened, with what its class would fill in."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import InvalidModelFileError, UnsupportedModelError
from ..hyperparameters import MAX_LAYERS

# Where models that also see or hear keep the text model's part.
_NESTED = ("text_config", "llm_config", "language_config", "lm_config")
# What the text model of such a one still has at the top.
_OUTER = ("architectures", "quantization_config", "tie_word_embeddings", "id2label")

MAX_HEAD_DIM = 1 << 15  # tables are made of so many elements


class Config(Mapping[str, Any]):
    """config.json's keys with defaults; a key that is null counts as absent.

    Errors name the file, the key and the value.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        *,
        path: Path = Path("config.json"),
    ) -> None:
        """defaults: values, or functions of the config, for keys that are absent."""
        self.path = path
        values = {key: value for key, value in flattened(raw).items() if value is not None}
        self._values = values
        for key, default in (defaults or {}).items():
            if key not in values:
                value = default(self) if callable(default) else default
                if value is not None:
                    values[key] = value
        self.rope = _rope(values)

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise InvalidModelFileError(f"{self.path}: {key} is missing")
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:  # Mapping's own waits for a KeyError
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        """A key's value, or the default."""
        return self._values.get(key, default)

    def first(self, *keys: str) -> Any:
        """The value of the first key that is there, None without one."""
        return next((self._values[key] for key in keys if key in self._values), None)

    def count(self, *keys: str) -> int:
        """A positive whole number, under the first of the keys that is there."""
        value = self.first(*keys)
        if value is None:
            raise InvalidModelFileError(f"{self.path}: {keys[0]} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self.invalid(keys[0], value, "a positive whole number")
        return value

    def invalid(self, key: str, value: object, expected: str) -> InvalidModelFileError:
        """The error for a value that can't be right."""
        return InvalidModelFileError(f"{self.path}: {key} is {value!r:.200}, expected {expected}")

    def unsupported(self, key: str, value: object, converted: str) -> UnsupportedModelError:
        """The error for a sound value that is not converted."""
        return UnsupportedModelError(
            f"{self.path}: {key} is {value!r:.200}, which is not converted (only {converted})"
        )

    @property
    def layers(self) -> int:
        """Layers of the model, at most as many as the engine runs: lists are made of so many."""
        count = self.count(*(keys := ("num_hidden_layers", "n_layers", "n_layer", "num_layers")))
        if count > MAX_LAYERS:
            raise self.invalid(keys[0], count, f"at most {MAX_LAYERS}")
        return count

    @property
    def width(self) -> int:
        """Elements of a token's vector."""
        return self.count("hidden_size", "n_embd", "dim", "d_model")

    @property
    def heads(self) -> int:
        """Heads of queries."""
        return self.count("num_attention_heads", "n_head", "n_heads")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        if self.first(*(keys := ("num_key_value_heads", "n_kv_heads"))) is None:
            return self.heads
        return self.count(*keys)

    @property
    def head_dim(self) -> int:
        """Elements of a head: its own key, or an equal share of the width."""
        if "head_dim" in self:
            if (dim := self.count("head_dim")) > MAX_HEAD_DIM:
                raise self.invalid("head_dim", dim, f"at most {MAX_HEAD_DIM}")
            return dim
        if not 0 < (dim := self.width // self.heads) <= MAX_HEAD_DIM:
            expected = f"1 to {MAX_HEAD_DIM} elements for each of {self.heads} heads"
            raise self.invalid("hidden_size", self.width, expected)
        return dim

    @property
    def full_rope(self) -> Mapping[str, Any]:
        """The rope's parameters, of the layers that see everything where there are two kinds."""
        return self.rope.get("full_attention", self.rope)


Default = Callable[[Config], Any]


@contextmanager
def odd_values(folder: Path) -> Iterator[None]:
    """While a folder's JSON is understood: InvalidModelFileError for what no code is ready for.

    A text or a list may stand where every model has a number; to ask before each use of each key
    would hide what is done with them.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidModelFileError(
            f"{folder}: config.json, or a file of the tokenizer, has a value of a kind that is not "
            f"understood ({type(error).__name__}: {' '.join(str(error).split())}); compare them "
            "with those of the model it was made from"
        ) from error


def flattened(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's own keys over those of the whole."""
    for key in _NESTED:
        if isinstance(inner := raw.get(key), Mapping):
            return {**raw, **inner, **{k: raw[k] for k in _OUTER if k in raw}}
    return dict(raw)


def _rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of transformers 5, `rope_scaling` and the keys of before in one form."""
    given = values.get("rope_parameters", values.get("rope_scaling")) or {}
    rope = dict(given) if isinstance(given, Mapping) else {}
    if "full_attention" in rope or "sliding_attention" in rope:
        return rope

    def first(*keys: str) -> Any:
        return next((values[key] for key in keys if key in values), None)

    local = first("local_rope_theta", "rope_local_theta", "swa_rope_theta", "rope_local_base_freq")
    if local is not None:
        rope["sliding_attention"] = {"rope_theta": local}
    for key, value in (
        ("rope_theta", first("global_rope_theta", "rope_theta", "rotary_emb_base")),
        ("rope_type", rope.get("type")),
        ("partial_rotary_factor", first("partial_rotary_factor", "rope_pct", "rotary_pct")),
        ("original_max_position_embeddings", first("original_max_position_embeddings")),
    ):
        if key not in rope and value is not None:
            rope[key] = value
    return rope
