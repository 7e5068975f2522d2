"""Pressure read from /proc files, and the culprit of a real load."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from appliance.monitor.host import HostWatch, stall_us, steal_and_all

PSI = "some avg10=1.00 avg60=0.50 avg300=0.10 total={some}\nfull avg10=0.0 avg60=0.0 avg300=0.0 total={full}\n"  # noqa: E501


def _write(proc: Path, some: int, full: int, steal: int, idle: int) -> None:
    (proc / "pressure").mkdir(exist_ok=True)
    for name in ("cpu", "memory", "io"):
        (proc / "pressure" / name).write_text(PSI.format(some=some, full=full))
    (proc / "stat").write_text(f"cpu  100 0 100 {idle} 0 0 0 {steal} 0 0\ncpu0 1 1\n")


def test_totals_are_read_by_line() -> None:
    text = PSI.format(some=12, full=7)
    assert (stall_us(text, "some"), stall_us(text, "full"), stall_us("", "some")) == (12, 7, 0)
    assert steal_and_all("cpu  1 2 3 4 5 6 7 8 9 10\n") == (8, 36)


def test_shares_are_of_the_time_between_two_looks(tmp_path: Path) -> None:
    _write(tmp_path, some=0, full=0, steal=0, idle=0)
    watch = HostWatch(lambda _: True, tmp_path)
    time.sleep(0.2)
    _write(tmp_path, some=100_000, full=20_000, steal=20, idle=80)
    look = watch.look()
    assert 300 < look.cpu_some <= 500  # 0.1 s in a little more than 0.2 s
    assert 60 < look.memory_full <= 100
    assert look.steal == 200
    time.sleep(0.05)
    assert watch.look().cpu_some == 0


def test_a_kernel_without_pressure_figures_is_calm(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 1 1 1 1 1 1 1\n")
    look = HostWatch(lambda _: True, tmp_path).look(names_culprits=True)
    assert (look.cpu_some, look.memory_full, look.io_some) == (0, 0, 0)


def test_the_culprit_is_the_one_who_works_and_never_one_of_ours() -> None:
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass # the-hog"])
    try:
        watch = HostWatch(lambda command: "the-hog" not in command)
        watch.look(names_culprits=True)
        time.sleep(0.5)
        told = watch.look(names_culprits=True).culprits
        assert f"(process {spin.pid})" in told["cpu"] and "% of a core" in told["cpu"]
        ours = HostWatch(lambda command: "the-hog" in command)
        ours.look(names_culprits=True)
        time.sleep(0.3)
        assert str(spin.pid) not in str(ours.look(names_culprits=True).culprits)
    finally:
        spin.kill()
        spin.wait()
