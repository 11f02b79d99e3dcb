"""The names that clients pick from: those of the models, and their aliases."""

from datetime import UTC, datetime

from .served import ModelEntry, Server

_LATEST = ":latest"  # Ollama's clients add it
_LAST_SECOND = 253402300799  # of the year 9999


def listed(server: Server) -> list[tuple[str, ModelEntry]]:
    """Each name with its model, the models' own first: the first one is the default."""
    entries = server.models.entries()
    names = {entry.name: entry for entry in entries}
    # An alias that is a name of the cache as well means what the alias says.
    names |= {alias: entry for entry in entries for alias in entry.aliases}
    return list(names.items())


def found(server: Server, name: str) -> tuple[str, ModelEntry]:
    """A model, and the name of the list by which it was asked for; ModelNotFoundError."""
    entry = server.models.find(name)
    asked = (name, name.removesuffix(_LATEST))
    return next((text for text in asked if text in entry.aliases), entry.name), entry


def rfc3339(seconds: float) -> str:
    """A time as JSON has it, in UTC."""
    moment = datetime.fromtimestamp(min(seconds, _LAST_SECOND), UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
