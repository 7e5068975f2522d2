"""Loading a plant file: every mistake at once, with its line, what is wrong, what is allowed."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from appliance.planning import ModelProfiles, PlanningError, make_plan, profiles_of
from appliance.plant import Plant
from appliance.plant_checks import Mistake, cross_checks, nearest, show
from appliance.toml_lines import Place, toml_lines
from deadline_batcher.profile import ProfileError, load_profile
from lines.keys import KeyFileError, load_public, load_secret

PLANT_BYTES_MAX: Final = 4 * 1024 * 1024
_TOML_PLACE: Final = re.compile(r"^(?P<text>.*) \(at line (?P<line>\d+), column (?P<column>\d+)\)$")
_TOML_END: Final = re.compile(r"^(?P<text>.*) \(at end of document\)$")


class PlantError(Exception):
    """A plant file that cannot be used. Its text has one mistake a line; `mistakes` lists them."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


def load_plant(path: Path) -> Plant:
    """The plant of a file. Raises PlantError with every mistake in it, by line."""
    raw, lines = _read(path)
    folder = path.absolute().parent
    found: list[Mistake] = []
    plant: Plant | None = None
    if "folder" in raw:
        found.append((("folder",), f"unknown key; allowed: {_allowed_keys(Plant)}"))
    try:
        plant = Plant.model_validate({**raw, "folder": folder})
    except ValidationError as error:
        found += [_explain(one) for one in error.errors(include_url=False)]
    crossed = list(cross_checks(raw, folder))
    # The check of one line alone and that of the whole may object to the same deadline.
    crossed_places = {place for place, _ in crossed}
    found = [one for one in found if one[0] not in crossed_places] + crossed
    if found or plant is None:
        raise _mistaken(path, found, lines)
    return plant


def _mistaken(path: Path, found: Iterable[Mistake], lines: Mapping[Place, int]) -> PlantError:
    told = sorted({(_line_of(place, lines), show(place), text) for place, text in found})
    return PlantError([f"{path}:{line}: {where}: {text}" for line, where, text in told])


def _read(path: Path) -> tuple[dict[str, Any], dict[Place, int]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PlantError([f"{path}: {error.strerror or error}"]) from error
    if len(content) > PLANT_BYTES_MAX:
        raise PlantError([f"{path}: {len(content)} bytes; allowed: at most {PLANT_BYTES_MAX}"])
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PlantError([f"{path}:{line}: not UTF-8; allowed: TOML in UTF-8"]) from error
    try:
        return tomllib.loads(text), toml_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise PlantError([_syntax(path, text, str(error))]) from error
    except RecursionError as error:
        raise PlantError([f"{path}: nested too deep"]) from error


def _syntax(path: Path, text: str, told: str) -> str:
    placed, ended = _TOML_PLACE.match(told), _TOML_END.match(told)
    if placed:
        return f"{path}:{placed['line']}: {placed['text']} (column {placed['column']}); no TOML"
    line = max(1, len(text.splitlines()))
    return f"{path}:{line}: {ended['text'] if ended else told}, at the end of the file; no TOML"


def _line_of(place: Place, lines: Mapping[Place, int]) -> int:
    """The line of a place, or of what holds it where it is missing."""
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return lines[place[:length]]
    return 1


def _explain(error: ErrorDetails) -> Mistake:
    place: Place = error["loc"]
    holder = _model_at(place[:-1])
    name = place[-1] if place else ""
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        near = nearest(str(name), _keys(holder))
        return place, f"unknown key{near}; allowed: {_allowed_keys(holder)}"
    if error["type"] == "missing":
        allowed = _allowed_at(place)
        return place, f"is missing{f'; allowed: {allowed}' if allowed else ''}"
    inner = _model_at(place)
    if inner is not None:
        # A check of a whole table names first the key that it is about.
        first = message.split(" ", 1)
        if first[0] in inner.model_fields:
            return (*place, first[0]), first[-1]
        return place, message
    if error["type"] == "value_error":
        return place, message
    given = json.dumps(error["input"], default=str, ensure_ascii=False)
    shown = given if len(given) <= 60 else f"{given[:57]}..."
    allowed = _allowed_at(place)
    return place, f"{shown}: {_lower(message)}{f'; allowed: {allowed}' if allowed else ''}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _keys(model: type[BaseModel] | None) -> list[str]:
    if model is None:
        return []
    return [name for name, field in model.model_fields.items() if not field.exclude]


def _allowed_keys(model: type[BaseModel] | None) -> str:
    return ", ".join(_keys(model))


def _model_at(place: Place) -> type[BaseModel] | None:
    """The model of the table at a place; None where it is no table."""
    model: type[BaseModel] = Plant
    for part in place:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        if field is None:
            return None
        types = (field.annotation, *get_args(field.annotation))
        inner = [t for t in types if isinstance(t, type) and issubclass(t, BaseModel)]
        if not inner:
            return None
        model = inner[0]
    return model


def _allowed_at(place: Place) -> str:
    """What the JSON schema of a key allows, in words; empty where it says nothing more."""
    names = [part for part in place if not isinstance(part, int)]
    holder = _model_at(tuple(names[:-1]))
    if holder is None or not names or _model_at(place) is not None:
        return ""
    properties = holder.model_json_schema()["properties"]
    schema = properties.get(names[-1], {})
    if schema.get("type") == "array" and isinstance(place[-1], int):
        schema = schema.get("items", {})
    return _in_words(schema)


def _in_words(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(words for one in schema["anyOf"] if (words := _in_words(one)))
    if "enum" in schema:
        return ", ".join(json.dumps(value) for value in schema["enum"])
    kinds = {"integer": "a whole number", "number": "a number", "string": "text",
             "boolean": "true or false", "array": "a list", "object": "a table"}  # fmt: skip
    told = [kinds.get(schema.get("type", ""), "")]
    for key, text in (
        ("exclusiveMinimum", "more than {:g}"),
        ("minimum", "at least {:g}"),
        ("maximum", "at most {:g}"),
        ("minItems", "at least {} of them"),
        ("maxItems", "at most {} of them"),
        ("pattern", "like {}"),
    ):
        if key in schema:
            told.append(text.format(schema[key]))
    return ", ".join(word for word in told if word)


def warnings(plant: Plant) -> list[str]:
    """What would stop this plant later, although its file is right: profiles and keys."""
    found = []
    profiles = {model.profile for model in plant.model}
    profiles |= {model.fallback_profile_file for model in plant.model}
    for text in sorted(profiles):
        if not plant.path(text).exists():
            found.append(f"{plant.path(text)}: no profile yet; make it with: takt profile")
    table = plant.route.capacity
    if table is not None and not plant.path(table).exists():
        found.append(f"{plant.path(table)}: no table yet; make it with: takt capacity")
    keys = plant.path(plant.paths.keys)
    try:
        load_secret(keys / "server.key_secret")
    except KeyFileError as error:
        found.append(str(error))
    for line in plant.line:
        if line.camera is not None:
            try:
                load_public(keys / "cameras" / f"{line.camera}.key")
            except KeyFileError as error:
                found.append(f"{line.id}: {error}")
    return found


def troubles(plant: Plant) -> list[Mistake]:
    """What is wrong with the plant's files and folders, looked into: models, profiles, folders."""
    return [*_model_troubles(plant), *_profile_troubles(plant), *_folder_troubles(plant)]


def _model_troubles(plant: Plant) -> Iterator[Mistake]:
    # ONNX Runtime costs every process that loads a plant file its memory: here alone.
    from fallback.session import Session, SessionError

    seen: dict[Path, str] = {}
    for index, model in enumerate(plant.model):
        for key, text in (("pool", model.pool), ("fallback", model.fallback)):
            path = plant.path(text)
            if path not in seen:
                seen[path] = ""
                try:
                    if path.stat().st_size == 0:
                        seen[path] = f"{path}: is empty; allowed: an ONNX model"
                    else:
                        Session(path, 1)
                except (SessionError, OSError) as error:
                    seen[path] = " ".join(str(error).split())
            if seen[path]:
                yield ("model", index, key), seen[path]


def _profile_troubles(plant: Plant) -> Iterator[Mistake]:
    """Profiles that are there and cannot be used; those that are missing are a warning."""
    found: dict[str, ModelProfiles] = {}
    for index, model in enumerate(plant.model):
        files = {"profile": model.profile, "fallback_profile": model.fallback_profile_file}
        there = {key: plant.path(text) for key, text in files.items() if plant.path(text).exists()}
        wrong = False
        for key, path in there.items():
            try:
                load_profile(path)
            except (ProfileError, OSError) as error:
                wrong = True
                yield ("model", index, key), " ".join(str(error).split())
        if wrong or len(there) < len(files):
            continue
        try:
            found |= profiles_of(plant.model_copy(update={"model": [model]}))
        except PlanningError as error:
            yield ("model", index, "profile"), str(error)
    if len(found) == len(plant.model):
        try:
            make_plan(plant, found)
        except PlanningError as error:
            yield ("line",), str(error).replace("\n", "; ")


def _folder_troubles(plant: Plant) -> Iterator[Mistake]:
    paths = plant.paths
    written = {"runtime": paths.runtime, "journal": paths.journal, "logs": paths.logs}
    if plant.pool.embedded:
        written["triton"] = paths.triton
    for key, text in {**written, "keys": paths.keys}.items():
        path = plant.path(text)
        there = next(p for p in (path, *path.parents) if os.path.lexists(p))
        if not there.is_dir():
            yield ("paths", key), f"{there} is no folder; allowed: a folder, or one to be made"
        elif key in written:
            try:
                with tempfile.TemporaryFile(dir=there):
                    pass
            except OSError as error:
                told = f"{path}: nothing can be written in {there}: {error.strerror or error}"
                yield ("paths", key), f"{told}; allowed: a folder that can be written"


def main(argv: Sequence[str] | None = None) -> int:
    """`takt check`: 0 the file is right, 1 it has mistakes, 2 wrong use."""
    parser = argparse.ArgumentParser(
        prog="takt check",
        description="Check a plant file; tells every mistake with its line.",
        epilog="example: takt check plant.toml",
    )
    parser.add_argument("plant", type=Path, help="the plant file")
    parser.add_argument("--json", action="store_true", help="for a machine")
    options = parser.parse_args(argv)
    if not options.plant.is_file():
        print(f"{options.plant}: no such file", file=sys.stderr)
        return 2
    mistakes: Sequence[str] = ()
    warned: list[str] = []
    try:
        plant = load_plant(options.plant)
        warned = warnings(plant)
        if found := troubles(plant):
            raise _mistaken(options.plant, found, _read(options.plant)[1])
    except PlantError as error:
        mistakes = error.mistakes
    if options.json:
        print(json.dumps({"ok": not mistakes, "mistakes": mistakes, "warnings": warned}))
    elif mistakes:
        print("\n".join(mistakes))
    else:
        print("\n".join(f"note: {text}" for text in warned), end="\n" if warned else "")
        print(
            f"{options.plant}: right. {plant.plant.name}: {len(plant.line)} lines, "
            f"{len(plant.pool.endpoints)} endpoints, {len(plant.model)} models"
        )
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
