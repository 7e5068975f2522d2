"""The locator against tomllib: the same places, each on the line that holds it."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from appliance.toml_lines import Place, toml_lines

TEXT = '''\
# [not.a.table]
title = "a # b = [c"
a.b."c.d" = 1

[plant]
name = """
x = 1
"quoted" \\""" still
""""
nothing = \'\'\'it''s\'\'\'
list = [ # comment ]
  1, [2,
  "]"],
  {x = 1, y.z = [3]},
]

[[line]]
id = "line01"
[line.sub]
key = 1
[[line]]
id = "line02"
[[line.part]]
n = 1979-05-27 07:32:00
[[line.part]]
n = -inf
'''


def places(value: Any, place: Place = ()) -> set[Place]:
    """Every place of a parsed document."""
    found = {place} if place else set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= places(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found |= places(inner, (*place, index))
    return found


def test_every_place_of_a_hard_document() -> None:
    lines = toml_lines(TEXT)
    assert set(lines) == places(tomllib.loads(TEXT))
    assert lines["a", "b", "c.d"] == 3
    assert lines["plant", "nothing"] == 10
    assert (lines["plant", "list", 1], lines["plant", "list", 1, 1]) == (12, 13)
    assert lines["plant", "list", 2, "y", "z", 0] == 14
    assert (lines["line", 0], lines["line", 1], lines["line", 1, "id"]) == (17, 21, 22)
    assert (lines["line", 0, "sub", "key"], lines["line", 1, "part", 1, "n"]) == (20, 26)


def test_windows_line_ends() -> None:
    assert toml_lines(TEXT.replace("\n", "\r\n")) == toml_lines(TEXT)


KEYS = st.one_of(
    st.from_regex(r"\A[A-Za-z0-9_-]{1,6}\Z"),
    st.text(st.characters(codec="utf-8", exclude_characters="\x7f", min_codepoint=32), max_size=5),
)
STRINGS = st.sampled_from(
    ['"plain"', "'lit\\'", '"es\\"c # ["', '"""a\nb = [\n"""', "'''\n[x]\n'''", '""', "''"]
)
SCALARS = st.one_of(STRINGS, st.sampled_from(["1", "-2.5", "true", "nan", "0xff", "07:32:00"]))


def quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return key if key.isascii() and key.isalnum() else f'"{escaped}"'


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["scalar", "array", "table"] if depth else ["scalar"]))
    if kind == "scalar":
        return draw(SCALARS)
    if kind == "array":
        inner = draw(st.lists(values(depth - 1), max_size=3))
        return "[" + draw(st.sampled_from([", ", ",\n  # ]\n", " ,\n"])).join(inner) + "]"
    keys = draw(st.lists(KEYS, max_size=3, unique=True))
    return "{" + ", ".join(f"{quoted(key)} = {draw(values(depth - 1))}" for key in keys) + "}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    out = []
    names = draw(st.lists(KEYS, min_size=1, max_size=6, unique=True))
    for number, name in enumerate(names):
        kind = draw(st.sampled_from(["pair", "dotted", "table", "tables"] if number else ["pair"]))
        key = quoted(name)
        value = draw(values())
        if kind in ("pair", "dotted"):
            # Pairs after a header belong to that header's table.
            out.append(f"{key}{' . x' if kind == 'dotted' else ''} = {value}")
        elif kind == "table":
            out.append(f"[ {key} ] # [\nk = {value}")
        else:
            out.append(f"[[{key}]]\nk = {value}\n\n[[{key}]]\n[{key}.sub]\nk = {draw(values())}")
    return "\n".join(out) + "\n"


@given(documents())
def test_the_same_places_as_tomllib(text: str) -> None:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = toml_lines(text)
    assert set(lines) == places(parsed)
    at = text.split("\n")
    for place, line in lines.items():
        last = place[-1]
        if isinstance(last, str) and last.isascii() and last.isalnum():
            assert last in at[line - 1]
