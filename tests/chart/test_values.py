"""values.yaml, its schema and its README say the same, and every example is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from tests.chart.values_doc import BEGIN, CHART, END, Value, read_values, schema_of, table

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
VALUES = read_values()


def leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the schema's values; a mapping with a description is one value."""
    if path and "description" in schema:
        yield path
    else:
        for name, entry in schema["properties"].items():
            yield from leaves(entry, (*path, name))


def default_leaves(defaults: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of values.yaml down to what is documented."""
    if path in {value.path for value in VALUES} or not isinstance(defaults, dict):
        yield path
    else:
        for name, entry in defaults.items():
            yield from default_leaves(entry, (*path, name))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.name)
def test_each_value_has_a_sentence_and_an_example_that_fits(value: Value) -> None:
    schema = schema_of(SCHEMA, value.path)
    assert value.text.endswith(".")
    assert value.example is not None, "`# For example:` is missing"
    jsonschema.validate(value.example, schema)
    if value.name != "relay.publicAddresses":
        jsonschema.validate(value.default, schema)
    assert schema["description"] == value.text, "run python -m tests.chart.values_doc"


def test_no_value_is_without_documentation_or_schema() -> None:
    documented = {value.path for value in VALUES}
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert set(default_leaves(defaults)) == documented
    assert set(leaves(SCHEMA)) - {("global",)} == documented


def test_the_schema_refuses_unknown_keys_everywhere() -> None:
    def check(schema: dict[str, Any], path: str) -> None:
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path
            for name, entry in schema["properties"].items():
                check(entry, f"{path}.{name}")

    check(SCHEMA, "")
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_the_readme_has_the_table() -> None:
    page = (CHART / "README.md").read_text("utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table(VALUES)
