"""What the fake does instead of its duty: rules per RPC, for a number of calls or until changed.

For any RPC: `hang` (until released), `delay` (ms), `error` (code, text). For ModelInfer also:
`late_write` (answers after `ms`, and writes only `ms` after that), `no_write` (answers OK, touches
nothing), `swapped` (scores of two rows exchanged), `swapped_rows` (whole rows, nonces too),
`wrong` (scores moved `by`, where the picture's crc32 is not in `spare`), `nan`, `one_row` (only
the first row is computed, the rest repeat it: server#2135), `first_answer` (for ever the answer of
the first picture, nonces right: a frozen path), `decay` (every call `ms` slower than the last),
`reset` (executes, then every connection is cut), `frozen` (computes, but never answers).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Rule:
    """One behaviour. count: calls it still applies to; None is until it is replaced."""

    fault: str
    ms: float = 0.0
    by: float = 0.0
    code: str = "INTERNAL"
    text: str = ""
    count: int | None = None
    spare: list[int] = field(default_factory=list)
    calls: int = 0


@dataclass
class State:
    """Everything that can be told. hold_ms: what a batch takes on the one GPU, by its rows."""

    version: str = "2.51.0"
    variant: str = "2.51"  # or "deferred" (PR#7743), "no-client-shm" (PR#8721)
    hold_ms: float = 0.0
    hold_row_ms: float = 0.0
    is_ready: bool = True
    rules: dict[str, list[Rule]] = field(default_factory=dict)

    def tell(self, told: dict[str, Any]) -> None:
        """Take what a test says: any field; `rules` replaces the rules of the RPCs it names."""
        for name, value in told.items():
            if name == "rules":
                for rpc, rules in value.items():
                    self.rules[rpc] = [Rule(**rule) for rule in rules]
            elif name in ("version", "variant", "hold_ms", "hold_row_ms", "is_ready"):
                setattr(self, name, value)
            else:
                raise KeyError(name)

    def rule(self, rpc: str) -> Rule | None:
        """What applies to this call of an RPC; uses one of its count up."""
        rules = self.rules.get(rpc, [])
        while rules:
            rule = rules[0]
            if rule.count is None or rule.calls < rule.count:
                rule.calls += 1
                return rule
            rules.pop(0)
        return None
