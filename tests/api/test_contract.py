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
