"""Which names requests may use, and what each of them means on this disk."""

import difflib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import InvalidParameterError, ModelError, ModelNotFoundError

_LIST_S = 2.0  # for which the folders of the cache are not read again
_MAX_SHOWN = 80  # characters of a wrong name that the message repeats
_LATEST = ":latest"  # Ollama's clients add it


@dataclass(frozen=True)
class Offered:
    """A name and what LLM() takes for it."""

    name: str
    source: str
    aliases: tuple[str, ...]
    path: Path | None  # None: not on this disk yet

    @property
    def created(self) -> int:
        """The file's date, in seconds since 1970; 0 if it is not there."""
        try:
            return 0 if self.path is None else int(self.path.stat().st_mtime)
        except OSError:
            return 0

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        from ...models.gguf_names import shard_paths

        if self.path is None:
            return 0
        files = (path for path in shard_paths(self.path) if path.exists())
        return sum(file.stat().st_size for file in files)


class ModelNames:
    """The names that a server offers: a request can name nothing else, no path and no URL.

    Args:
        models: name -> what LLM() takes. Empty: all models of the local cache, read again when
            one is asked for, so that a model pulled meanwhile is found.
        aliases: other name -> name. InvalidParameterError if there is no such name.
    """

    def __init__(self, models: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self._models, self._aliases = dict(models), dict(aliases)
        self._listed: dict[str, Offered] = {}
        self._listed_at: float | None = None
        for alias, name in self._aliases.items():
            if alias in self._models:
                raise InvalidParameterError(f"alias {alias}: is the name of a model already")
            if self._models and name not in self._models:
                known = ", ".join(self._models)
                raise InvalidParameterError(f"alias {alias}={name}: no such model among {known}")

    @property
    def are_given(self) -> bool:
        """False: they come from the cache."""
        return bool(self._models)

    def all(self) -> list[Offered]:
        """All of them; the first one is meant by requests that name none."""
        if self._models:
            return [self._given(name, source) for name, source in self._models.items()]
        return list(self._cached().values())

    def find(self, name: str | None) -> Offered:
        """By its name, an alias, or either with ":latest"; ModelNotFoundError with near names."""
        offered = {each.name: each for each in self.all()}
        if name is None:
            if not offered:
                raise ModelNotFoundError(
                    "there is no model in the cache: `llamba pull smollm2` gets one"
                )
            return next(iter(offered.values()))
        for text in (name, name.removesuffix(_LATEST)):
            found = offered.get(self._aliases.get(text, text))
            if found is not None:
                return found
        raise ModelNotFoundError(self._unknown(name, list(offered)))

    def _given(self, name: str, source: str) -> Offered:
        path = Path(source)
        return Offered(name, source, self._aliases_of(name), path if path.is_file() else None)

    def _cached(self) -> dict[str, Offered]:
        now = time.monotonic()
        if self._listed_at is None or now - self._listed_at > _LIST_S:
            from ...models import store

            try:
                found = store.list_models()
            except ModelError:  # no home folder, hence no cache
                found = []
            self._listed = {
                each.name: Offered(
                    each.name, os.fspath(each.path), self._aliases_of(each.name), each.path
                )
                for each in found
            }
            self._listed_at = now
        return self._listed

    def _aliases_of(self, name: str) -> tuple[str, ...]:
        return tuple(alias for alias, meant in self._aliases.items() if meant == name)

    def _unknown(self, name: str, offered: list[str]) -> str:
        shown = name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}..."
        names = [*offered, *self._aliases]
        folded = {each.casefold(): each for each in names}
        near = difflib.get_close_matches(shown.casefold(), folded, n=3, cutoff=0.5)
        if near:
            hint = f"did you mean {' or '.join(folded[each] for each in near)}?"
        elif names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            hint = f"this server has {', '.join(names[:8])}{more}"
        else:
            hint = "this server has none yet: `llamba pull smollm2` gets one"
        return f"no model {shown!r}: {hint}"
