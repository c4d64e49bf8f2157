"""/api/docs: the OpenAPI document as a page, without a script and without any other host."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_CODES = {"get": "GET", "post": "POST", "put": "PUT", "delete": "DELETE"}


@router.get("/api/docs")
async def get_docs(request: Request) -> HTMLResponse:
    """Every operation with its parameters and answers."""
    return HTMLResponse(page(request.app.openapi()))


def page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    schemas = document.get("components", {}).get("schemas", {})
    operations = [
        _operation(path, method, one)
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    ]
    models = [_model(name, one) for name, one in sorted(schemas.items())]
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title>"
        '<link rel="stylesheet" href="/static/css/base.css"></head><body><main>'
        f"<h1>{escape(info['title'])} API {escape(info['version'])}</h1>"
        f"<p>{escape(info['description'])}</p>"
        '<p>For programs: <a href="/api/openapi.json">openapi.json</a></p>'
        f"<h2>Operations</h2>{''.join(operations)}<h2>Models</h2>{''.join(models)}"
        "</main></body></html>"
    )


def _operation(path: str, method: str, one: dict[str, Any]) -> str:
    rows = [
        (f"{p['name']} ({p['in']}{', required' if p.get('required') else ''})", p["schema"], p)
        for p in one.get("parameters", [])
    ]
    body = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    parts = [f"<h3><code>{_CODES.get(method, method.upper())} {escape(path)}</code></h3>"]
    parts.append(f"<p>{escape(one.get('description', one.get('summary', '')))}</p>")
    if rows:
        parts.append("<ul>")
        for name, schema, parameter in rows:
            told = escape(parameter.get("description", ""))
            parts.append(f"<li><code>{escape(name)}</code>: {_kind(schema)} {told}</li>")
        parts.append("</ul>")
    if body is not None:
        parts.append(f"<p>Body: {_kind(body)}</p>")
    for code, answer in one.get("responses", {}).items():
        schema = answer.get("content", {}).get("application/json", {}).get("schema")
        kind = "" if schema is None else _kind(schema)
        parts.append(f"<p>{escape(code)}: {escape(answer.get('description', ''))} {kind}</p>")
    return f"<section>{''.join(parts)}</section>"


def _model(name: str, one: dict[str, Any]) -> str:
    fields = [
        f"<li><code>{escape(field)}</code>: {_kind(schema)} {escape(schema.get('description', ''))}"
        "</li>"
        for field, schema in one.get("properties", {}).items()
    ]
    told = escape(one.get("description", ""))
    anchor = escape(name, quote=True)
    return (
        f'<section id="{anchor}"><h3>{anchor}</h3><p>{told}</p><ul>{"".join(fields)}</ul></section>'
    )


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2], quote=True)
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return "one of " + ", ".join(escape(str(one)) for one in schema["enum"])
    if "const" in schema:
        return escape(repr(schema["const"]))
    return escape(str(schema.get("type", "anything")))
