"""A measurement cut short goes on where it was, and only if it is the same measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.profile_samples import CHUNK, Samples, SamplesError
from deadline_batcher.profile import Provenance

HERE = Provenance(model_sha256="ab" * 32, device="H200", cores=16)
PLACE = ("alone", "gpu0", 2)


def test_what_was_measured_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "p.json.samples"
    first = Samples(path, HERE)
    first.add(PLACE, [7, 8])
    first.add(("busy", "gpu1", 1), [9])
    first.flush()
    second = Samples(path, HERE)
    assert second.resumed == 3
    second.add(PLACE, [5])
    assert (second.count(PLACE), second.of(PLACE)) == (3, [7, 8, 5])
    assert sorted(second.places()) == [PLACE, ("busy", "gpu1", 1)]


def test_a_full_chunk_is_on_disk_without_being_asked(tmp_path: Path) -> None:
    first = Samples(tmp_path / "s", HERE)
    first.add(PLACE, [1] * CHUNK)
    first.add(PLACE, [2])
    assert Samples(tmp_path / "s", HERE).resumed == CHUNK


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    first = Samples(tmp_path / "s", HERE)
    first.add(PLACE, [1, 2, 3])
    first.flush()
    with (tmp_path / "s").open("a") as file:
        file.write('["alone", "gpu0", 2, [4, 5')
    again = Samples(tmp_path / "s", HERE)
    assert again.of(PLACE) == [1, 2, 3]
    again.add(PLACE, [6])
    again.flush()
    assert Samples(tmp_path / "s", HERE).of(PLACE) == [1, 2, 3, 6]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_sha256": "cd" * 32}, "model_sha256"),
        ({"gpu": "L4"}, "gpu: profile has ''"),
        ({"driver": "1.2"}, "driver"),
    ],
)
def test_samples_of_something_else_are_refused(
    tmp_path: Path, changes: dict[str, str], says: str
) -> None:
    Samples(tmp_path / "s", HERE)
    other = HERE.model_copy(update=changes)
    with pytest.raises(SamplesError, match=rf"something else \({says}.*--afresh"):
        Samples(tmp_path / "s", other)
    assert Samples(tmp_path / "s", other, afresh=True).resumed == 0


@pytest.mark.parametrize("text", ["", "{}\n", "nonsense\n"])
def test_a_spoilt_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "s").write_text(text)
    with pytest.raises(SamplesError, match="spoilt; begin again with --afresh"):
        Samples(tmp_path / "s", HERE)


def test_a_finished_measurement_leaves_nothing(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "s", HERE)
    samples.discard()
    assert not list(tmp_path.iterdir())
