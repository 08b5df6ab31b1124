"""/openapi.json: the public API as OpenAPI 3.1, requests from the schemas that also refuse them."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from pydantic.json_schema import models_json_schema

from dsv4_serve.front import Front
from dsv4_serve.openai_errors import STATUSES
from dsv4_serve.validate import ROUTES

JsonObject = dict[str, Any]
REF = "#/components/schemas/"

_TEXT: JsonObject = {"type": "string"}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_CHOICES: JsonObject = {"type": "array", "items": {"type": "object", "required": ["index", "finish_reason"]}}


def _object(required: JsonObject, **optional: Any) -> JsonObject:
    return {"type": "object", "required": list(required), "properties": required | optional}


ANSWERS: JsonObject = {
    "Error": _object(
        {
            "error": _object(
                {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                }
            )
        }
    ),
    "Usage": _object({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}),
    "Completion": _object(
        {"id": _TEXT, "object": _TEXT, "created": _COUNT, "model": _TEXT, "choices": _CHOICES},
        usage={"$ref": REF + "Usage"},
    ),
    "Model": _object({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT}),
    "Models": _object({"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": REF + "Model"}}}),
    "Alive": _object({"alive": {"type": "boolean"}}),
    "Ready": _object({"ready": {"type": "boolean"}, "state": _TEXT, "reason": {"type": ["string", "null"]}}),
    "Startup": _object({"started": {"type": "boolean"}, "state": _TEXT, "phases": {"type": "array"}}),
}


def openapi(front: Front) -> JsonObject:
    """The document of this server: its model is the one name that `model` takes."""
    _, requests = models_json_schema([(model, "validation") for model in ROUTES.values()], ref_template=REF + "{model}")
    schemas: JsonObject = requests["$defs"]
    for model in ROUTES.values():
        schema = schemas[model.__name__]
        schema["properties"]["model"] = {"const": front.model}
        schema["required"] = [*schema["required"], "model"]
    document: JsonObject = {
        "openapi": "3.1.0",
        "info": {"title": "dsv4-rocm", "version": importlib.metadata.version("dsv4-rocm")},
        "paths": _paths(front),
        "components": {"schemas": schemas | ANSWERS},
    }
    if front.settings.api_keys.required:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _paths(front: Front) -> JsonObject:
    paths = {path: {"post": _generation(model.__name__)} for path, model in ROUTES.items()}
    name: JsonObject = {"name": "name", "in": "path", "required": True, "schema": {"const": front.model}}
    return paths | {
        "/v1/models": {"get": _read("Models", (503,))},
        "/v1/models/{name}": {"get": _read("Model", (404, 503)) | {"parameters": [name]}},
        "/livez": {"get": _open(_read("Alive", ()))},
        "/readyz": {"get": _open(_probe("Ready"))},
        "/startupz": {"get": _open(_probe("Startup"))},
    }


def _generation(request: str) -> JsonObject:
    content = _json("Completion")["content"] | {"text/event-stream": {}}
    refusals = (400, 401, 404, 413, 429, 502, 503, 504)
    return {
        "requestBody": {"required": True, "content": _json(request)["content"]},
        "responses": {"200": {"description": "the answer, whole or as a stream", "content": content}}
        | _refusals(refusals),
        "security": [{"key": []}],
    }


def _read(answer: str, refusals: tuple[int, ...]) -> JsonObject:
    answers = {"200": {"description": "the answer", **_json(answer)}}
    return {"responses": answers | _refusals((401, *refusals)), "security": [{"key": []}]}


def _probe(answer: str) -> JsonObject:
    """A probe says the same in both cases; the status tells them apart."""
    described = {"200": "yes", "503": "no, and why"}
    return {"responses": {status: {"description": text, **_json(answer)} for status, text in described.items()}}


def _open(operation: JsonObject) -> JsonObject:
    return {name: value for name, value in operation.items() if name != "security"}


def _refusals(statuses: tuple[int, ...]) -> JsonObject:
    return {str(status): {"description": STATUSES[status], **_json("Error")} for status in statuses}


def _json(schema: str) -> JsonObject:
    return {"content": {"application/json": {"schema": {"$ref": REF + schema}}}}
