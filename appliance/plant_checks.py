"""What one table of the plant file cannot know: how its tables and files fit together.

Works on what tomllib read, whether or not the models accept it, so that every mistake is told at
once; whatever has the wrong type is left to the models.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from appliance.plant import LineSection, MarginsSection, PathsSection, PoolSection
from appliance.toml_lines import Place

Mistake = tuple[Place, str]
"""Where, and what is wrong and allowed."""

SOCKET_PATH_BYTES_MAX: Final = 107
_LONGEST_SOCKET: Final = "journal.sock"
_STUB_PATH: Final = re.compile(r"[A-Za-z0-9._/+,=@~-]*")
"""What the unquoted command line survives by which Triton 2.51 starts its Python stub."""
_ANY_HOST: Final = frozenset({"0.0.0.0", "*", "::"})


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean …?)` for a name close to it, else nothing."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def cross_checks(raw: Mapping[str, Any], folder: Path) -> Iterator[Mistake]:
    """Every mistake between tables. raw: the parsed file; folder: where relative paths start."""
    yield from _names(raw)
    yield from _ports(raw)
    yield from _pool(raw)
    yield from _files(raw, folder)
    yield from _budgets(raw)
    yield from _runtime(raw, folder)
    yield from _stub_path(raw, folder)


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def _tables(raw: Mapping[str, Any], name: str) -> list[tuple[int, Mapping[str, Any]]]:
    found = raw.get(name)
    listed = found if isinstance(found, list) else []
    return [(index, row) for index, row in enumerate(listed) if isinstance(row, dict)]


def _names(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    for name, key in (("model", "name"), ("line", "id")):
        seen: dict[str, int] = {}
        for index, row in _tables(raw, name):
            value = row.get(key)
            if not isinstance(value, str):
                continue
            if value in seen:
                told = f'"{value}" is already {name}[{seen[value]}]; allowed: a name of its own'
                yield (name, index, key), told
            seen.setdefault(value, index)
    models = [row["name"] for _, row in _tables(raw, "model") if isinstance(row.get("name"), str)]
    for index, row in _tables(raw, "line"):
        wanted = row.get("model")
        if isinstance(wanted, str) and wanted not in models:
            told = f'no model is called "{wanted}"{nearest(wanted, models)}'
            yield ("line", index, "model"), f"{told}; allowed: {', '.join(models) or 'none yet'}"


def _endpoints(raw: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    endpoints = _table(raw, "pool").get("endpoints")
    for index, text in enumerate(endpoints if isinstance(endpoints, list) else []):
        if isinstance(text, str):
            yield ("pool", "endpoints", index), text
    for index, row in _tables(raw, "line"):
        for key in ("frames", "verdicts"):
            if isinstance(row.get(key), str):
                yield ("line", index, key), row[key]


def _ports(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    taken: dict[int, list[tuple[str, Place]]] = {}
    for place, text in _endpoints(raw):
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            continue
        if not host or not port:
            continue
        host = "127.0.0.1" if host == "localhost" else host
        for other_host, other in taken.setdefault(port, []):
            if host == other_host or host in _ANY_HOST or other_host in _ANY_HOST:
                told = f"{text}: port {port} is already taken by {show(other)}"
                yield place, f"{told}; allowed: a port of its own"
                break
        taken[port].append((host, place))


def _pool(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    pool, plant = _table(raw, "pool"), _table(raw, "plant")
    if "emulate" in pool and pool.get("embedded") is not True:
        yield ("pool", "emulate"), "needs embedded = true: only the bundled servers can emulate"
    defaults = PoolSection.model_fields
    least, most = (
        pool.get(key, defaults[key].default)
        for key in ("restart_backoff_min_ms", "restart_backoff_max_ms")
    )
    if _are_numbers(least, most) and least > most:
        told = f"{least:g} is more than restart_backoff_max_ms {most:g}"
        yield ("pool", "restart_backoff_min_ms"), told
    endpoints, lost = pool.get("endpoints"), plant.get("gpus_lost_tolerated")
    if isinstance(endpoints, list) and type(lost) is int and endpoints and lost >= len(endpoints):
        told = f"{lost} of {len(endpoints)} endpoints; allowed: 0 to {len(endpoints) - 1}"
        yield ("plant", "gpus_lost_tolerated"), told


def _are_numbers(*values: Any) -> bool:
    return all(type(value) in (int, float) for value in values)


def _files(raw: Mapping[str, Any], folder: Path) -> Iterator[Mistake]:
    named: list[tuple[Place, Any]] = [(("pool", "emulate"), _table(raw, "pool").get("emulate"))]
    for index, row in _tables(raw, "model"):
        named += [(("model", index, key), row.get(key)) for key in ("pool", "fallback")]
    for place, text in named:
        if isinstance(text, str) and "\0" not in text and not (folder / text).is_file():
            path = (folder / text).absolute()
            yield place, f'"{text}": there is no file {path}; allowed: an existing file'
    for index, row in _tables(raw, "model"):
        named += [(("model", index, k), row.get(k)) for k in ("profile", "fallback_profile")]
    named += [(("paths", key), text) for key, text in _table(raw, "paths").items()]
    for place, text in named:
        if isinstance(text, str) and "\0" in text:
            yield place, f"{text!r} has a NUL character in it; allowed: a path"


def _budgets(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    margins = {**MarginsSection().model_dump(), **_table(raw, "margins")}
    reserve = (margins["output_ms"], margins["timer_ms"])
    for index, row in _tables(raw, "line"):
        deadline = row.get("deadline_ms")
        spent = tuple(
            row.get(key, LineSection.model_fields[key].default)
            for key in ("actuation_ms", "transport_max_ms")
        )
        if not _are_numbers(deadline, *spent, *reserve):
            continue
        if deadline <= sum(spent) + sum(reserve):
            told = (
                f"{deadline:g} leaves nothing after actuation_ms {spent[0]:g}, "
                f"transport_max_ms {spent[1]:g}, margins.output_ms {reserve[0]:g} and "
                f"margins.timer_ms {reserve[1]:g}; allowed: more than {sum(spent) + sum(reserve):g}"
            )
            yield ("line", index, "deadline_ms"), told


def _runtime(raw: Mapping[str, Any], folder: Path) -> Iterator[Mistake]:
    runtime = _table(raw, "paths").get("runtime", PathsSection().runtime)
    if not isinstance(runtime, str) or "\0" in runtime:
        return
    size = len(os.fsencode((folder / runtime).absolute() / _LONGEST_SOCKET))
    if size > SOCKET_PATH_BYTES_MAX:
        told = f"{size} bytes with {_LONGEST_SOCKET}; a socket's path may have "
        yield ("paths", "runtime"), f"{told}{SOCKET_PATH_BYTES_MAX}: use a shorter path"


def _stub_path(raw: Mapping[str, Any], folder: Path) -> Iterator[Mistake]:
    if _table(raw, "pool").get("embedded") is not True:
        return
    triton = _table(raw, "paths").get("triton", PathsSection().triton)
    if not isinstance(triton, str) or "\0" in triton:
        return
    path = str((folder / triton).absolute())
    wrong = sorted(set(_STUB_PATH.sub("", path)))
    if wrong:
        told = f"the bundled Triton cannot start its models in {path}: "
        told += f"{', '.join(repr(letter) for letter in wrong)} in a path ends its Python stub; "
        told += "move the plant to (or set paths.triton to) a folder of letters, digits and"
        yield ("pool", "embedded"), f"{told} . _ / + , = @ ~ - alone"


def show(place: Place) -> str:
    """`line[3].deadline_ms` of a place."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"
