"""FastAPI's own errors as ours: which field is wrong, in the words of the API's users."""

from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from .errors import ApiError, bad_request

_MAX_REASONS = 3
_PLAIN = {  # pydantic's words for what JSON calls otherwise
    "Input should be a valid dictionary or object to extract fields from": "Input should be a JSON "
    "object",
    "Input should be a valid dictionary": "Input should be a JSON object",
    "Input should be a valid list": "Input should be a JSON array",
}


def from_validation(error: RequestValidationError) -> ApiError:
    """400 with `param` as a path, such as messages[0].content."""
    problems = [dict(each) for each in error.errors()]
    if not problems:
        return bad_request("the request is invalid")
    if problems[0]["type"] == "json_invalid":
        where = problems[0]["loc"][-1]
        why = (problems[0].get("ctx") or {}).get("error", "it does not parse")
        return bad_request(f"the body is not valid JSON: {why} (at {where})", code="invalid_json")
    named = [(_path(each["loc"], error.body), each) for each in problems]
    # Of the alternatives of a field, the one that fits best goes deepest.
    param = max((path for path, _ in named), key=lambda path: path.count(".") + path.count("["))
    reasons: list[str] = []
    for path, each in named:
        reason = _reason(each)
        if path == param and reason not in reasons:
            reasons.append(reason)
    text = ", or ".join(reasons[:_MAX_REASONS])
    if not param:
        return bad_request(f"the body: {text}", code="invalid_body")
    return bad_request(f"{param}: {text}", param=param, code="invalid_value")


def from_http(error: HTTPException, method: str, path: str) -> ApiError:
    """The framework's 404, 405 and unreadable bodies."""
    if error.status_code == 404:
        return ApiError(404, f"there is nothing at {path[:200]}", code="not_found")
    headers = dict(error.headers or {})
    if error.status_code == 405:
        message = f"{method} is not possible at {path[:200]}"
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    if error.status_code == 400:
        return bad_request("the body can't be read: it is not JSON in UTF-8", code="invalid_json")
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    return ApiError(error.status_code, str(error.detail), kind, headers=headers)


def _reason(problem: dict[str, Any]) -> str:
    if problem["type"] == "missing":
        return "is needed"
    text = str(problem["msg"]).removeprefix("Value error, ")
    for theirs, ours in _PLAIN.items():
        text = text.replace(theirs, ours)
    return text[:1].lower() + text[1:]


def _path(location: Sequence[int | str], body: Any) -> str:
    """As a path into the body: pydantic's names of alternatives are no part of it."""
    source, *rest = location
    if source != "body":
        return ".".join(str(part) for part in rest)
    path, value = "", body
    for i, part in enumerate(rest):
        if isinstance(part, int):
            if not isinstance(value, list):
                continue
            path += f"[{part}]"
            value = value[part] if part < len(value) else None
        elif isinstance(value, dict) and (part in value or i == len(rest) - 1):
            path += f".{part}" if path else part
            value = value.get(part)
    return path
