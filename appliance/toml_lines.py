"""Which line of a TOML text each key and array element is on: tomllib parses, but does not say.

For text that tomllib has accepted; on anything else the answers are best effort.
"""

from __future__ import annotations

import tomllib
from typing import Final

Place = tuple[str | int, ...]
"""Keys and indices from the root, as pydantic's `loc`."""

_BARE_ENDS: Final = frozenset(",]}#\n")


def toml_lines(text: str) -> dict[Place, int]:
    """Line number, from 1, of every table, key and array element of a TOML text."""
    return _Scan(text.replace("\r\n", "\n")).run()


class _Scan:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._lines: dict[Place, int] = {}
        self._table: Place = ()
        self._arrays: dict[Place, int] = {}
        self._line, self._counted_to = 1, 0

    def run(self) -> dict[Place, int]:
        while self._skip_blank():
            if self._text.startswith("[[", self._at):
                self._header(2)
            elif self._text[self._at] == "[":
                self._header(1)
            else:
                self._pair(self._table)
        return self._lines

    def _note(self, place: Place, line: int) -> None:
        self._lines.setdefault(place, line)

    def _line_now(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line

    def _skip_blank(self) -> bool:
        """Move past spaces, newlines and comments; False at the end of the text."""
        text = self._text
        while self._at < len(text):
            if text[self._at] == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif text[self._at] in " \t\n":
                self._at += 1
            else:
                return True
        return False

    def _skip_spaces(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1

    def _header(self, brackets: int) -> None:
        line = self._line_now()
        self._at += brackets
        keys = self._keys()
        self._at += brackets
        place: Place = ()
        for depth, key in enumerate(keys):
            place = (*place, key)
            self._note(place, line)
            is_last = depth == len(keys) - 1
            if brackets == 2 and is_last:
                self._arrays[place] = self._arrays.get(place, -1) + 1
            if place in self._arrays:
                place = (*place, self._arrays[place])
                self._note(place, line)
        self._table = place

    def _pair(self, table: Place) -> None:
        line = self._line_now()
        place = table
        for key in self._keys():
            place = (*place, key)
            self._note(place, line)
        self._at += 1  # =
        self._value(place)

    def _keys(self) -> list[str]:
        keys = []
        while self._at < len(self._text):
            self._skip_spaces()
            keys.append(self._key())
            self._skip_spaces()
            if self._text[self._at : self._at + 1] != ".":
                break
            self._at += 1
        return keys

    def _key(self) -> str:
        start = self._at
        if self._text[start : start + 1] in ('"', "'"):
            self._string()
            quoted = self._text[start : self._at]
            return next(iter(tomllib.loads(f"{quoted} = 0")))
        while self._at < len(self._text) and (
            self._text[self._at].isalnum() or self._text[self._at] in "-_"
        ):
            self._at += 1
        if self._at == start:
            self._at = len(self._text)  # no TOML: stop
        return self._text[start : self._at]

    def _value(self, place: Place) -> None:
        self._skip_spaces()
        first = self._text[self._at : self._at + 1]
        if first in ('"', "'"):
            self._string()
        elif first == "[":
            self._array(place)
        elif first == "{":
            self._inline_table(place)
        else:
            while self._at < len(self._text) and self._text[self._at] not in _BARE_ENDS:
                self._at += 1

    def _string(self) -> None:
        quote = self._text[self._at]
        is_long = self._text.startswith(quote * 3, self._at)
        close = quote * 3 if is_long else quote
        self._at += len(close)
        while self._at < len(self._text) and not self._text.startswith(close, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += len(close)
        if is_long:
            # Up to two quotes may stand right before the closing three.
            for _ in range(2):
                self._at += self._text[self._at : self._at + 1] == quote

    def _array(self, place: Place) -> None:
        self._at += 1
        index = 0
        while self._skip_blank() and self._text[self._at] != "]":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            element = (*place, index)
            self._note(element, self._line_now())
            before = self._at
            self._value(element)
            index += 1
            if self._at == before:
                break
        self._at += 1

    def _inline_table(self, place: Place) -> None:
        self._at += 1
        while self._skip_blank() and self._text[self._at] != "}":
            if self._text[self._at] == ",":
                self._at += 1
                continue
            self._pair(place)
        self._at += 1
