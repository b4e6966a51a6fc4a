"""The sentences of helm/values.yaml, for the schema's descriptions and the README's table.

1. values.yaml is the source: `# -- Sentence.`, more lines, `# For example: YAML`, then the key.
2. A mapping whose keys have no sentences of their own is one value.
3. `python -m tests.chart.values_doc` writes both copies; a test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "helm"
BEGIN, END = "<!-- values -->", "<!-- end of values -->"
_KEY = re.compile(r"( *)([A-Za-z0-9]+):")
_EXAMPLE = "For example: "


@dataclass(frozen=True)
class Value:
    """One value of the chart."""

    path: tuple[str, ...]
    default: Any
    text: str
    """What it is, in one or more sentences."""
    example: Any
    """Another good setting than the default."""

    @property
    def name(self) -> str:
        """As --set takes it."""
        return ".".join(self.path)


def read_values() -> list[Value]:
    """All documented values in the order of the file."""
    text = (CHART / "values.yaml").read_text("utf-8")
    defaults = yaml.safe_load(text)
    return list(_read(text.splitlines(), defaults))


def _read(lines: list[str], defaults: dict[str, Any]) -> Iterator[Value]:
    path: list[str] = []
    comment: list[str] = []
    for line in lines:
        if line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
            continue
        key = _KEY.match(line)
        if key:
            path = [*path[: len(key[1]) // 2], key[2]]
            if comment and comment[0].startswith("-- "):
                words, _, example = " ".join(comment).removeprefix("-- ").partition(_EXAMPLE)
                default: Any = defaults
                for name in path:
                    default = default[name]
                yield Value(tuple(path), default, words.strip(), yaml.safe_load(example))
        comment = []


def schema_of(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The schema of one value. Raises KeyError when it has none."""
    for name in path:
        schema = schema["properties"][name]
    return schema


def table(values: list[Value]) -> str:
    """The README's table."""
    rows = ["| value | what it is | default | for example |", "|---|---|---|---|"]
    for value in values:
        text = value.text.replace("|", "\\|")
        rows.append(
            f"| `{value.name}` | {text} | {_cell(value.default)} | {_cell(value.example)} |"
        )
    return "\n".join(rows)


def _cell(value: Any) -> str:
    return "`" + json.dumps(value, ensure_ascii=False).replace("|", "\\|") + "`"


def main() -> None:
    """Writes the sentences into the schema and the README."""
    values = read_values()
    path = CHART / "values.schema.json"
    schema = json.loads(path.read_text("utf-8"))
    for value in values:
        entry = schema_of(schema, value.path)
        rest = {name: entry.pop(name) for name in list(entry) if name != "description"}
        entry.update({"description": value.text, **rest})
    path.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", "utf-8")
    readme = CHART / "README.md"
    before, _, rest_of_page = readme.read_text("utf-8").partition(BEGIN)
    after = rest_of_page.partition(END)[2]
    readme.write_text(f"{before}{BEGIN}\n{table(values)}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
