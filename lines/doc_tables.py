"""Writes the tables of the documents from the code: `python -m lines.doc_tables [--check]`.

docs/protocol.md has the messages' fields, docs/journal.md the tables of the journal.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lines import wire
from lines.journal_schema import ROW_TABLES
from lines.wire import Message

_DOCS: Final = Path(__file__).parents[1] / "docs"
DOCUMENTS: Final = (_DOCS / "protocol.md", _DOCS / "journal.md")
_MARKED: Final = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

MESSAGES: Final[dict[str, tuple[type[Message], ...]]] = {
    "from_camera": (wire.Hello, wire.Frame, wire.Heartbeat, wire.Eos),
    "to_camera": (wire.Ready, wire.FrameAck, wire.Reject),
    "from_actuator": (wire.ActuatorHello, wire.Ack, wire.Resend, wire.ActuatorHeartbeat),
    "to_actuator": (wire.Ready, wire.Verdict, wire.ActuatorHeartbeat),
}
REASONS: Final = {
    "version": "the first frame is not `T1`",
    "header": "the header is too long, no JSON, or a field is missing or ill-typed",
    "line": "this line is another, or not for this camera",
    "session": "no session, or not the one of the last `hello`",
    "duplicate": "the same (`session`, `seq`), or a `part_id` seen within 60 s",
    "size": "not the size that was said, or larger than the line takes",
    "format": "an encoding or pixel format that the line does not take",
    "checksum": "`crc32c` is not that of the payload",
    "decode": "the payload is no picture",
    "late": "captured too long before it arrived",
    "overload": "more frames than the credit, or no free slot",
}


def _type_of(schema: dict[str, Any]) -> str:
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type_of(one) for one in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "integer":
        least, most = schema.get("minimum"), schema.get("maximum")
        width = {2**32 - 1: "up to 2³² − 1", 2**63 - 1: "up to 2⁶³ − 1"}.get(most or 0, "")
        least_text = "" if least is None or least < -1 else f"from {least} "
        return f"integer {least_text}{width}".strip().replace("-1", "−1")
    if kind == "string":
        most = schema.get("maxLength") or (64 if "pattern" in schema else None)
        least = 1 if schema.get("minLength") or "pattern" in schema else 0
        return f"text, {least} to {most}" if most else "text"
    return {"boolean": "bit", "array": "list of text", "null": "null"}.get(kind, str(kind))


def _fields(model: type[Message]) -> Iterator[str]:
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    yield f"\n**`{schema['properties']['type']['const']}`**: {_first_line(model)}\n"
    yield "| field | type | needed | meaning |"
    yield "|---|---|---|---|"
    for name, field in schema["properties"].items():
        needed = "yes" if name in required else "no"
        meaning = field.get("description", "")
        yield f"| `{name}` | {_type_of(field)} | {needed} | {meaning} |"


def _first_line(model: type[Message]) -> str:
    return (model.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")


def table(name: str) -> str:
    """The generated text between one pair of markers. Raises KeyError on an unknown name."""
    if name == "reasons":
        rows = ["| reason | refused because | a named part gets |", "|---|---|---|"]
        for reason in wire.REASONS:
            gets = f"`UNINSPECTED({reason})`" if reason in wire.UNINSPECTED_REASONS else "nothing"
            rows.append(f"| `{reason}` | {REASONS[reason]} | {gets} |")
        return "\n".join(rows) + "\n"
    if name.startswith("journal_"):
        return "\n".join(_columns(name.removeprefix("journal_"))) + "\n"
    return "\n".join(line for model in MESSAGES[name] for line in _fields(model)) + "\n"


def _columns(name: str) -> Iterator[str]:
    columns = ROW_TABLES[name].columns
    has_meaning = any(column.meaning for column in columns)
    yield "| column | type | meaning |" if has_meaning else "| column | type |"
    yield "|---|---|---|" if has_meaning else "|---|---|"
    for column in columns:
        kind = column.sql + (", may be null" if column.nullable else "")
        meaning = f" {column.meaning} |" if has_meaning else ""
        yield f"| `{column.name}` | {kind} |{meaning}"


def with_tables(document: str) -> str:
    """The document with every marked table as the models have it now."""
    return _MARKED.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", document)


def main(argv: Sequence[str] | None = None) -> int:
    """Bring the documents up to date; with --check only say whether they are."""
    parser = argparse.ArgumentParser(description="Write the generated tables of the documents.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if outdated")
    options = parser.parse_args(argv)
    outdated = 0
    for document in DOCUMENTS:
        before = document.read_text(encoding="utf-8")
        after = with_tables(before)
        if after == before:
            continue
        if options.check:
            print(f"{document}: outdated; run: python -m lines.doc_tables", file=sys.stderr)
            outdated = 1
        else:
            document.write_text(after, encoding="utf-8")
    return outdated


if __name__ == "__main__":
    sys.exit(main())
