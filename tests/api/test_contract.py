"""Schemathesis asks everything that the OpenAPI document allows, and much that it does not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served import Served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 6


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    with served.client() as client:
        found: dict[str, Any] = client.get("/api/openapi.json").json()
    # a stream does not end, and an export starts a program
    for path in ("/api/v1/events", "/api/v1/versions/{version}/export"):
        del found["paths"][path]
    return found


def test_the_api_is_what_its_document_says(
    served: Served, browser: httpx.Client, document: dict[str, Any]
) -> None:
    schema = schemathesis.openapi.from_dict(document)
    asked = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def ask(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(
                base_url=served.url,
                headers={"x-csrf-token": browser.headers["x-csrf-token"]},
                checks=CHECKS,
            )

        from hypothesis import given

        given(case=operation.as_strategy())(ask)()
    assert asked > 100


def whole_numbers(document: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    """(path, parameter, its greatest value) of every number that a GET may be asked with."""
    found = []
    for path, methods in document["paths"].items():
        for one in methods.get("get", {}).get("parameters", []):
            forms = one["schema"].get("anyOf", [one["schema"]])
            number = next((form for form in forms if form.get("type") == "integer"), None)
            if one["in"] == "query" and number is not None:
                found.append((path, one["name"], number.get("maximum")))
    return found


def test_no_page_is_huge_and_no_number_too_strange(
    browser: httpx.Client, document: dict[str, Any]
) -> None:
    asked = whole_numbers(document)
    assert {name for _, name, _ in asked} >= {"limit", "offset", "before", "points"}
    needed = {"name": "loss"}  # where it is wanted
    for path, name, most in asked:
        assert most is not None, f"{name} of {path} has no bound"
        for wrong in (most + 1, -1, 10**30, "x", "1.5", "1e3", "\u0661\u0000", "' OR 1=1"):
            answer = browser.get(path, params={**needed, name: wrong})
            assert answer.status_code == 422, (path, name, wrong)
            assert answer.json()["code"] == "invalid"
        answer = browser.get(path, params={**needed, name: most})
        assert answer.status_code == 200, (path, name, most, answer.text)
