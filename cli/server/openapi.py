"""The OpenAPI document: what FastAPI writes, with our errors and keys."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from .errors import dialect_of, error_responses

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key of --api-key."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(app: FastAPI) -> dict[str, Any]:
    """Made once, when somebody asks."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            separate_input_output_schemas=app.separate_input_output_schemas,
        )
        for path, operations in schema.get("paths", {}).items():
            for method in _METHODS:
                if method in operations:
                    _add_errors(operations[method], path)
        components = schema.setdefault("components", {})
        for name in ("HTTPValidationError", "ValidationError"):  # a wrong request is a 400 here
            components.get("schemas", {}).pop(name, None)
        components["securitySchemes"] = _KEYS
        # With or without: the server may have no keys.
        schema["security"] = [{}, *({name: []} for name in _KEYS)]
        app.openapi_schema = schema
    return app.openapi_schema


def _add_errors(operation: dict[str, Any], path: str) -> None:
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)
    for status, response in error_responses(dialect_of(path)).items():
        responses.setdefault(str(status), response)
