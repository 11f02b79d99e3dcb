"""From the error tree to HTTP: a status, and the body that each dialect's clients expect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import (
    ChatTemplateError,
    ConstraintError,
    ContextLengthError,
    DeviceLostError,
    InvalidParameterError,
    LlambaError,
    ModelNotFoundError,
    OverloadedError,
    RequestError,
    ResourceError,
    UnsupportedTaskError,
)

RETRY_AFTER_S = 5


@dataclass(slots=True)
class ApiError(Exception):
    """An error on its way to a client.

    kind: OpenAI's error type. code: a short name that programs test, or None. param: the request
    field that is wrong, as a path such as "messages[0].content".
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The message."""
        return self.message


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is wrong."""
    return ApiError(400, message, param=param, code=code)


# The first type that fits: (status, kind, code). What is not here is 500.
_BY_TYPE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (ContextLengthError, 400, "invalid_request_error", "context_length_exceeded"),
    (ConstraintError, 400, "invalid_request_error", "unsupported_constraint"),
    (ChatTemplateError, 400, "invalid_request_error", "chat_template_error"),
    (InvalidParameterError, 400, "invalid_request_error", "invalid_value"),
    (RequestError, 400, "invalid_request_error", None),
    (UnsupportedTaskError, 400, "invalid_request_error", "unsupported_task"),
    (ModelNotFoundError, 404, "invalid_request_error", "model_not_found"),
    (OverloadedError, 503, "overloaded_error", "overloaded"),
    (DeviceLostError, 500, "server_error", "device_lost"),
    (ResourceError, 503, "server_error", "insufficient_resources"),
    (LlambaError, 500, "server_error", None),
)


def translate(error: BaseException) -> ApiError:
    """The same for every dialect. Unexpected errors keep their text for the log alone."""
    if isinstance(error, ApiError):
        return error
    for kind, status, name, code in _BY_TYPE:
        if isinstance(error, kind):
            headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
            message = str(error)
            if isinstance(error, ContextLengthError):
                # litellm, langchain and Anthropic's agents know this error by these words only.
                message = f"prompt is too long: {message}"
            return ApiError(status, message, name, code, _param_of(error), headers)
    return ApiError(500, "internal error; the server's log says more", "server_error", "internal")


def _param_of(error: Exception) -> str | None:
    """The field at the start of our own messages, `name=value: why`."""
    if isinstance(error, UnsupportedTaskError):
        return "model"
    if not isinstance(error, RequestError):
        return None
    name = str(error).partition("=")[0].partition(":")[0]
    return name if name.isidentifier() else None


def dialect_of(path: str) -> str:
    """Which clients ask at this path: "anthropic", "ollama" or "openai"."""
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "ollama" if path.startswith("/api/") or path == "/api" else "openai"


_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def body_of(error: ApiError, dialect: str) -> dict[str, Any]:
    """The error as the dialect's clients parse it."""
    if dialect == "anthropic":
        kind = _ANTHROPIC_KINDS.get(
            error.status, "invalid_request_error" if error.status < 500 else "api_error"
        )
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    if dialect == "ollama":
        return {"error": error.message}
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def error_responses(dialect: str) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses`: the statuses that every endpoint of a dialect can give."""
    schema = _SCHEMAS[dialect]
    return {
        status: {"description": text, "content": {"application/json": {"schema": schema}}}
        for status, text in _STATUSES.items()
    }


_STATUSES = {
    400: "The request is wrong; the message names the field.",
    401: "No API key, or a wrong one.",
    403: "Refused because of where it came from (Host or Origin).",
    404: "No such model or path.",
    405: "Wrong method.",
    408: "The request took too long to arrive, or its time limit was up without a result.",
    413: "The body is too large.",
    500: "A fault in the server.",
    503: "Overloaded, stopping or short of memory; Retry-After says when to try again.",
}
_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_SCHEMAS = {
    "openai": _object(
        error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)
    ),
    "anthropic": _object(
        type={"type": "string", "const": "error"}, error=_object(type=_TEXT, message=_TEXT)
    ),
    "ollama": _object(error=_TEXT),
}
