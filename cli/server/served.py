"""A loaded model as the dialects see it, and the books that a server keeps."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .adapters import ServerAdapters
from .settings import ServerSettings

if TYPE_CHECKING:
    from ...models.chat import ReasoningFormat, ToolFormat
    from ...runtime.llm import LLM
    from ...runtime.outputs import RequestMetrics


@dataclass(frozen=True)
class ServedModel:
    """A model that is loaded, under the name that requests use."""

    name: str
    llm: "LLM"
    reasoning: "ReasoningFormat | None"
    tools: "ToolFormat"
    created: int  # seconds since 1970: the file's date


@dataclass(frozen=True)
class ModelEntry:
    """A model that requests may name, loaded or not."""

    name: str
    path: str | None  # None: not on this disk yet
    num_bytes: int
    created: int
    loaded: ServedModel | None
    loading: bool
    expires_at: float | None  # when it will be unloaded if nobody asks, in time.time()'s seconds
    aliases: tuple[str, ...]


class Models(Protocol):
    """The models of a server; loads and unloads them."""

    def use(
        self, name: str | None, *, keep_alive_s: float | None = None
    ) -> AbstractAsyncContextManager[ServedModel]:
        """The model, loaded if need be and kept while in use.

        name: None is the first model. keep_alive_s: how long it stays afterwards (0: is unloaded
        at once; negative: for ever; None: the server's setting). Raises ModelNotFoundError with
        near names, ResourceError with numbers.
        """
        ...

    def entries(self) -> list[ModelEntry]:
        """All that requests may name."""
        ...

    def find(self, name: str) -> ModelEntry:
        """One of them, by its name or an alias; ModelNotFoundError."""
        ...


class Books(Protocol):
    """Metrics: what is counted of each request."""

    def started(self, model: ServedModel, dialect: str) -> None:
        """A request was handed to the engine."""
        ...

    def ended(
        self, model: ServedModel, dialect: str, reason: str, metrics: "RequestMetrics | None"
    ) -> None:
        """It ended: reason is "stop", "length", "tool_calls", "abort", "timeout", "error".

        metrics: None when it ended before anything was known of it.
        """
        ...


@dataclass(frozen=True)
class Server:
    """What every endpoint has at hand."""

    settings: ServerSettings
    models: Models
    books: Books
    lifecycle: "Lifecycle"
    adapters: ServerAdapters = field(default_factory=ServerAdapters)


class Lifecycle(Protocol):
    """Whether the server starts, serves or stops; and the streams to end when it stops."""

    @property
    def draining(self) -> bool:
        """No new requests are taken."""
        ...

    @property
    def expired(self) -> bool:
        """The grace time is over: what was cancelled ended because the server stops."""
        ...

    def add(self, running: "Closes") -> None:
        """Something that is closed if the grace time ends first."""
        ...

    def remove(self, running: "Closes") -> None:
        """It has ended."""
        ...


class Closes(Protocol):
    """Something that can be ended early."""

    def close(self) -> None:
        """End it; never waits."""
        ...

    def leave(self) -> None:
        """End it, and let who reads it go on without the engine; never waits."""
        ...
