"""`takt replay`: an event journal through a fresh scheduler must give the same commands."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from deadline_batcher.journal import JournalError, JournalVersionError, replay


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 the same commands, 1 a difference, 2 wrong use."""
    parser = argparse.ArgumentParser(
        prog="takt replay",
        description="Run a batcher's event journal through a fresh scheduler and compare.",
        epilog="example: takt replay journal/batcher-events.jsonl; a journal of another version "
        "is refused (exit 2): the release that wrote it replays it",
    )
    parser.add_argument("journal", type=Path, help="the event journal")
    told = parser.parse_args(argv)
    counts: Counter[str] = Counter()
    try:
        with told.journal.open(encoding="utf-8") as lines:
            for _, event, commands in replay(lines):
                counts[type(event).__name__] += 1
                counts.update(type(command).__name__ for command in commands)
    except UnicodeDecodeError as error:
        told_why = f"no event journal: not UTF-8 text ({error.reason} at byte {error.start})"
        print(f"takt replay: {told.journal}: {told_why}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"takt replay: {told.journal}: {error.strerror}", file=sys.stderr)
        return 2
    except JournalError as error:
        print(f"takt replay: {told.journal}: {error}", file=sys.stderr)
        return 2 if isinstance(error, JournalVersionError) else 1
    for name, count in counts.most_common():
        print(f"{count:9d}  {name}")
    print("the same commands, every one")
    return 0
