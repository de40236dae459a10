"""The JSON Schema of ``hindmost.report/2``, from the dataclasses and tables behind it."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from hindmost_collector.report.sections import SECTIONS, WITH_SECTIONS, Column
from hindmost_judge.verdict import schema as contract

from docs.generate import report_json

#: What the parts of a report are called in the schema.
_PARTS = {kind.__name__: kind for kind in report_json.SECTIONS}
_PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_INTEGERS = ("rank", "least_rank", "most_rank", "since_step", "until_step", "group", "groups", "calls")


def page() -> str:
    """The schema as indented JSON."""
    report = _of(contract.Report)
    report["properties"] |= {"schema": {"const": WITH_SECTIONS}, "sections": _sections()}
    report["required"] += ["schema", "sections"]
    parts = {name: _of(kind) for name, kind in _PARTS.items() if kind is not contract.Report}
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": WITH_SECTIONS,
        "description": "Fields are only ever added. A value that was not measured is null.",
        **report,
        "$defs": parts,
    }
    return json.dumps(found, indent=1) + "\n"


def _of(kind: Any) -> dict[str, Any]:
    """A dataclass of a report as an object; its fields are all there."""
    named = [one for one in fields(kind) if one.name not in report_json.INSIDE]
    meanings = report_json.SECTIONS[kind][1]
    properties = {one.name: {"description": meanings[one.name], **_type(str(one.type))} for one in named}
    return {"type": "object", "properties": properties, "required": [one.name for one in named]}


def _type(written: str) -> dict[str, Any]:
    """A field's annotation in the schema's words."""
    bare, nullable = written.replace(" | None", ""), written.endswith(" | None")
    part = next((name for name in _PARTS if re.search(rf"\b{name}\b", bare)), None)
    if bare.startswith(("tuple", "Sequence")):
        inner = next((_PLAIN[name] for name in _PLAIN if re.search(rf"\b{name}\b", bare)), "string")
        return {"type": "array", "items": {"$ref": f"#/$defs/{part}"} if part else {"type": inner}}
    if part:
        one = {"$ref": f"#/$defs/{part}"}
        return {"anyOf": [one, {"type": "null"}]} if nullable else one
    if bare.startswith("dict"):
        return {"type": ["object", "null"] if nullable else "object"}
    return {"type": [_PLAIN[bare], "null"] if nullable else _PLAIN[bare]}


def _sections() -> dict[str, Any]:
    """Every section, of which a report has those that were asked for; each table an array of rows."""
    sections = {
        name: {
            "title": section.title,
            "type": "object",
            "properties": {
                key: {
                    "description": table.about,
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {column.key: _cell(column) for column in table.columns},
                        "required": [column.key for column in table.columns],
                        "additionalProperties": False,
                    },
                }
                for key, table in section.tables.items()
            },
            "required": list(section.tables),
            "additionalProperties": False,
        }
        for name, section in SECTIONS.items()
    }
    return {"type": "object", "properties": sections, "additionalProperties": False}


def _cell(column: Column) -> dict[str, Any]:
    kind = "string" if column.unit == "text" else "integer" if column.key in _INTEGERS else "number"
    about = column.title if column.unit in ("text", "count", "number") else f"{column.title}, {_UNITS[column.unit]}"
    return {"description": about, "type": [kind, "null"]}


_UNITS = {
    "ms": "ms",
    "s": "seconds",
    "ratio": "0 to 1",
    "bytes": "bytes",
    "bytes/s": "bytes a second",
    "TB/s": "bytes a second",
    "flop/s": "operations a second",
    "watts": "W",
    "hertz": "Hz",
    "celsius": "degrees Celsius",
    "joules": "J",
}
