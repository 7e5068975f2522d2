"""Which readings are trouble: thresholds, each held for a time before it counts. Pure.

A finding is raised once its sign has been there for `raise_after_ns` and cleared once it has been
gone for `clear_after_ns`; a hard sign (an Xid, an uncorrected memory error) counts at once. A
monitor that says nothing of a GPU is a finding itself: monitors hang where GPUs are ill.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.monitor.readings import GpuReading, HostReading


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares in permille, times in ns, temperature in degrees Celsius."""

    cpu_some: int
    memory_full: int
    io_some: int
    steal: int
    gpu_temperature_c: int
    gpu_memory: int
    raise_after_ns: int
    clear_after_ns: int
    silent_after_ns: int


class Finding(NamedTuple):
    """A change: `kind` of trouble with `subject` ("host", "gpu0") came (`is_raised`) or went.

    is_doubt: the GPU has to be proved anew before it is trusted. is_fault: with every batch size.
    """

    subject: str
    kind: str
    is_raised: bool
    detail: str
    is_doubt: bool = False
    is_fault: bool = False


FATAL_XIDS = frozenset({31, 43, 45, 48, 61, 62, 63, 64, 69, 74, 79, 92, 94, 95, 109, 119, 120})
"""Xids after which an answer is not to be trusted, or none comes (NVIDIA's Xid catalogue)."""


@dataclass(slots=True)
class _Sign:
    """One kind of trouble with one subject."""

    seen_since_ns: int | None = None
    gone_since_ns: int | None = None
    is_raised: bool = False


@dataclass(slots=True)
class Judge:
    """Feed it every look; it says what changed. `gpus`: how many there should be readings of."""

    thresholds: Thresholds
    gpus: tuple[int, ...]
    began_ns: int
    _signs: dict[tuple[str, str], _Sign] = field(default_factory=dict)
    _heard_ns: dict[int, int] = field(default_factory=dict)
    _ecc: dict[int, int] = field(default_factory=dict)

    def host(self, look: HostReading) -> list[Finding]:
        """What a look at the host changes."""
        bounds, found = self.thresholds, []
        for kind, share, most, what in (
            ("cpu-pressure", look.cpu_some, bounds.cpu_some, "cpu"),
            ("memory-pressure", look.memory_full, bounds.memory_full, "memory"),
            ("io-pressure", look.io_some, bounds.io_some, "io"),
            ("cpu-steal", look.steal, bounds.steal, ""),
        ):
            by = look.culprits.get(what) or (
                "the hypervisor" if not what else "no process outside this plant"
            )
            detail = f"{share / 10:.0f} % of the time, {most / 10:.0f} % allowed; most by {by}"
            found += self._sign("host", kind, share > most, detail, look.at_ns)
        return found

    def gpu(self, look: GpuReading) -> list[Finding]:
        """What a look at a GPU changes."""
        bounds, subject, now_ns = self.thresholds, f"gpu{look.gpu}", look.at_ns
        self._heard_ns[look.gpu] = now_ns
        found = self._sign(subject, "monitor-silent", False, "speaks again", now_ns)
        hot = look.temperature_c >= bounds.gpu_temperature_c
        detail = f"{look.temperature_c} degrees, {bounds.gpu_temperature_c} allowed"
        found += self._sign(subject, "hot", hot, detail, now_ns)
        held = ", ".join(look.throttle)
        detail = f"at {look.sm_clock_mhz} of {look.sm_clock_max_mhz} MHz: {held or 'not held'}"
        found += self._sign(subject, "throttled", bool(look.throttle), detail, now_ns)
        used = 1000 * look.memory_used_mib // max(1, look.memory_total_mib)
        detail = f"{look.memory_used_mib} of {look.memory_total_mib} MiB"
        found += self._sign(subject, "memory-full", used > bounds.gpu_memory, detail, now_ns)
        others = ", ".join(look.others)
        detail = f"also used by {others}" if others else "nobody else"
        found += self._sign(subject, "shared", bool(look.others), detail, now_ns)
        before = self._ecc.setdefault(look.gpu, look.ecc_uncorrected)
        if look.ecc_uncorrected > before:
            self._ecc[look.gpu] = look.ecc_uncorrected
            detail = f"{look.ecc_uncorrected - before} uncorrected memory errors more"
            found.append(Finding(subject, "memory-error", True, detail, True, True))
        return found

    def xid(self, gpu: int | None, number: int, text: str) -> list[Finding]:
        """What a line of the kernel's log means. gpu None: all of them. number 0: off the bus."""
        is_fault = number == 0 or number in FATAL_XIDS
        kind = f"xid-{number}" if number else "off-the-bus"
        told = self.gpus if gpu is None else (gpu,)
        return [Finding(f"gpu{one}", kind, True, text, is_fault, is_fault) for one in told]

    def tick(self, now_ns: int) -> list[Finding]:
        """What silence changes."""
        found = []
        for gpu in self.gpus:
            quiet_ns = now_ns - self._heard_ns.get(gpu, self.began_ns)
            if quiet_ns < self.thresholds.silent_after_ns:
                continue
            sign = self._signs.setdefault((f"gpu{gpu}", "monitor-silent"), _Sign())
            if not sign.is_raised:
                sign.is_raised = True
                detail = f"no reading for {quiet_ns / 1e9:.1f} s"
                found.append(Finding(f"gpu{gpu}", "monitor-silent", True, detail, is_doubt=True))
        return found

    def standing(self) -> tuple[tuple[str, str], ...]:
        """(subject, kind) of all that is raised now."""
        return tuple(key for key, sign in self._signs.items() if sign.is_raised)

    def _sign(
        self, subject: str, kind: str, is_there: bool, detail: str, now_ns: int
    ) -> list[Finding]:
        sign = self._signs.setdefault((subject, kind), _Sign())
        if is_there:
            sign.gone_since_ns = None
            sign.seen_since_ns = now_ns if sign.seen_since_ns is None else sign.seen_since_ns
            held_ns = now_ns - sign.seen_since_ns
            if not sign.is_raised and held_ns >= self.thresholds.raise_after_ns:
                sign.is_raised = True
                return [Finding(subject, kind, True, detail)]
            return []
        sign.seen_since_ns = None
        if not sign.is_raised:
            return []
        sign.gone_since_ns = now_ns if sign.gone_since_ns is None else sign.gone_since_ns
        # Speech ends silence at once; what comes and goes is called gone only after a while.
        wait_ns = 0 if kind == "monitor-silent" else self.thresholds.clear_after_ns
        if now_ns - sign.gone_since_ns < wait_ns:
            return []
        sign.is_raised, sign.gone_since_ns = False, None
        return [Finding(subject, kind, False, detail)]
