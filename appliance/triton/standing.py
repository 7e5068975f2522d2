"""How one GPU stands: when its server is to be started anew, how long it stays out. Pure.

Instants are integer nanoseconds of the monotonic clock. A GPU that was lost once comes back as
soon as its goldens allow; one that is lost again and again waits twice as long each time, until it
has held for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.triton.faults import Kind

_NOT_COUNTED = (Kind.NOT_READY, Kind.CONNECTION, Kind.SHM_DISABLED, Kind.SHM_UNREACHABLE,
                Kind.VERSION)  # fmt: skip
"""A server that is not there or is starting is already being started; one of another version, or
that does not let us in, would come back the same."""

_SPOILT = (Kind.STICKY, Kind.OUT_OF_MEMORY, Kind.STUB, Kind.DISAGREED)
"""What no golden cures and no further try: only a new process."""


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits. failures, unanswered: in a row without being ready in between, and over at least
    failing_ns, until a restart.

    free_losses: how many losses cost no quarantine; quiet_ns: how long a GPU must have been ready
    for them to be forgotten. disagreements: how often re-scored parts may disagree before the GPU
    stays out; quiet for hour_ns they are forgotten. readmit_goldens, readmit_ns: what a lost GPU
    has to show, in a row and for how long. golden_limit_ns: when a golden counts as unanswered.
    """

    failures: int = 5
    unanswered: int = 2
    failing_ns: int = 5_000_000_000
    free_losses: int = 2
    quarantine_first_ns: int = 2_000_000_000
    quarantine_max_ns: int = 64_000_000_000
    quiet_ns: int = 60_000_000_000
    disagreements: int = 2
    hour_ns: int = 3_600_000_000_000
    readmit_goldens: int = 20
    readmit_ns: int = 5_000_000_000
    golden_limit_ns: int = 5_000_000_000


class Standing:
    """The record of one GPU."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.failures = 0
        self.unanswered = 0
        self.losses = 0
        self._failing_since_ns = 0
        self._ready_at_ns: int | None = None
        self._disagreed_at_ns: list[int] = []

    def failed(self, kind: Kind, now_ns: int) -> bool:
        """Something of the server failed; whether it is to be started anew, now."""
        if kind in _NOT_COUNTED:
            return False
        if not self.failures:
            self._failing_since_ns = now_ns
        self.failures += 1
        self.unanswered += kind is Kind.UNANSWERED
        patience = self.patience
        is_often = self.failures >= patience.failures or self.unanswered >= patience.unanswered
        is_long = now_ns - self._failing_since_ns >= patience.failing_ns
        if kind in _SPOILT or (is_often and is_long):
            self.failures = self.unanswered = 0
            return True
        return False

    def ready(self, now_ns: int) -> None:
        """All goldens have passed."""
        self.failures = self.unanswered = 0
        if self._ready_at_ns is None:
            self._ready_at_ns = now_ns

    def lost(self, now_ns: int) -> int:
        """The GPU is out; the instant before which it may not come back."""
        patience = self.patience
        ready_at_ns, self._ready_at_ns = self._ready_at_ns, None
        if ready_at_ns is None:
            return now_ns  # it was not in: one loss is counted once
        if now_ns - ready_at_ns >= patience.quiet_ns:
            self.losses = 0
        self.losses += 1
        beyond = self.losses - patience.free_losses
        if beyond <= 0:
            return now_ns
        doubled_ns = patience.quarantine_first_ns << min(beyond - 1, 32)
        return now_ns + min(doubled_ns, patience.quarantine_max_ns)

    def disagreed(self, now_ns: int) -> bool:
        """A re-scored part disagreed; whether the GPU is to stay out."""
        since_ns = now_ns - self.patience.hour_ns
        self._disagreed_at_ns = [at for at in self._disagreed_at_ns if at >= since_ns]
        self._disagreed_at_ns.append(now_ns)
        return len(self._disagreed_at_ns) >= self.patience.disagreements
