"""What an Ollama request looks like. Strict: a text is no number, and true is none either."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from ..fields import Body, Many, check_refused
from ..sampling import SamplingFields
from ..settings import ServerSettings

_NO_IMAGES = "the models here read text only"
_NO_PICTURES = "images are not made"
# Settings of the machine, which belong to whoever starts the server. They change no answer.
MACHINE_OPTIONS = (
    "f16_kv low_vram logits_all main_gpu num_batch num_gpu num_keep num_thread numa "
    "penalize_newline use_mlock use_mmap vocab_only embedding_only".split()
)


class Options(SamplingFields):
    """`options`: how tokens are chosen, and Ollama's settings of the machine."""

    num_predict: int | None = Field(
        None,
        ge=-2,
        le=2**53,
        description="Most tokens of the answer. -1 and -2: until the context is full.",
    )
    num_ctx: int | None = Field(
        None, ge=1, le=2**31 - 1, description="At most the context that the model is loaded with."
    )

    harmless = frozenset(MACHINE_OPTIONS)  # named in the header by `ignored_options`
    refused = {
        "mirostat": ((0,), "not supported: use min_p, top_p or top_k"),
        "tfs_z": ((0, 1), "not supported: use min_p, top_p or typical_p"),
    }

    def sampling(self, settings: ServerSettings) -> dict[str, Any]:
        """The common ones, with Ollama's name of max_tokens."""
        if self.num_predict is None:
            return super().sampling(settings)
        most = max(self.num_predict, -1)
        return self.model_copy(update={"max_tokens": most, "num_predict": None}).sampling(settings)

    def forms(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The common ones, where they stand in Ollama's bodies."""
        for name, form in super().forms():
            yield f"options.{name}", form

    def ignored_options(self) -> list[str]:
        """The machine's settings that were given."""
        given = self.model_extra or {}
        return [f"options.{n}" for n in MACHINE_OPTIONS if given.get(n) is not None]


class ModelBody(Body):
    """What all requests to a model may say."""

    model: str = Field(min_length=1)
    options: Options | None = None
    keep_alive: float | str | None = Field(
        None, description='How long the model stays loaded: seconds or "5m"; 0: not; -1: for ever.'
    )


class GenerationBody(ModelBody):
    """What chat and generate have in common."""

    stream: bool | None = None  # Ollama streams unless told otherwise
    format: str | dict[str, Any] | None = Field(
        None, description='"json" or a JSON schema, which the answer is made to fit.'
    )
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncate: bool | None = None
    shift: bool | None = None

    refused = {
        "template": (("",), "templates of requests are never run: the model's own is used"),
        "suffix": (("",), "filling in the middle is not supported"),
        "images": (([],), _NO_IMAGES),
        "width": ((0,), _NO_PICTURES),
        "height": ((0,), _NO_PICTURES),
        "steps": ((0,), _NO_PICTURES),
    }


class Message(Body):
    """One turn."""

    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Many[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: list[Any] | None = None


class ChatBody(GenerationBody):
    """POST /api/chat."""

    messages: Many[Message] | None = None
    tools: Many[dict[str, Any]] | None = None


class GenerateBody(GenerationBody):
    """POST /api/generate."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    context: Many[int] | None = None


class EmbedBody(ModelBody):
    """POST /api/embed."""

    input: str | Many[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = Field(None, ge=0, le=2**31 - 1)


class EmbeddingsBody(ModelBody):
    """POST /api/embeddings, which /api/embed has replaced."""

    prompt: str | None = None


class ShowBody(Body):
    """POST /api/show. name: what older clients call the model."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    refused = {"template": (("",), "nothing of a model is changed by requests")}
    harmless = frozenset({"system", "options"})


def refuse_images(messages: list[Message]) -> None:
    """400 for the first picture (PAINS P26)."""
    for i, message in enumerate(messages):
        check_refused(f"messages[{i}].images", message.images, ([],), _NO_IMAGES)


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_COUNTS = {
    name: _NUMBER
    for name in (
        "total_duration",
        "load_duration",
        "prompt_eval_count",
        "prompt_eval_duration",
        "eval_count",
        "eval_duration",
    )
}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


def _answer(name: str, value: dict[str, Any]) -> dict[str, Any]:
    more = {"done_reason": {"enum": ["stop", "length", "load", "unload"]}, **_COUNTS}
    fields = {"model": _TEXT, "created_at": _TEXT, name: value, "done": {"type": "boolean"}}
    return _object(f"model created_at {name} done", **fields, **more)


_VECTOR = {"type": "array", "items": {"type": "number"}}
CHAT_SCHEMA = _answer("message", _object("role content", role=_TEXT, content=_TEXT))
GENERATE_SCHEMA = _answer("response", _TEXT)
EMBED_SCHEMA = _object(
    "model embeddings", model=_TEXT, embeddings={"type": "array", "items": _VECTOR}, **_COUNTS
)
EMBEDDINGS_SCHEMA = _object("embedding", embedding=_VECTOR)
_ENTRY = _object(
    "name model size digest details",
    name=_TEXT,
    model=_TEXT,
    size=_NUMBER,
    digest=_TEXT,
    details={"type": "object"},
)
LIST_SCHEMA = _object("models", models={"type": "array", "items": _ENTRY})
SHOW_SCHEMA = _object(
    "details model_info capabilities",
    details={"type": "object"},
    model_info={"type": "object"},
    capabilities={"type": "array", "items": _TEXT},
)
VERSION_SCHEMA = _object("version", version=_TEXT)


def described(schema: dict[str, Any], *, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses`, of a success."""
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if streams:
        content["application/x-ndjson"] = {"schema": {"type": "string"}}
    return {200: {"description": "OK", "content": content}}
