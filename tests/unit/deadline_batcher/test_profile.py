"""Profiles: only a usable one loads, and what is wrong is said with the file and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deadline_batcher.profile import (
    Profile,
    ProfileError,
    Provenance,
    SizeStatistics,
    load_profile,
    monotone,
)

PROVENANCE = Provenance(model_sha256="ab" * 32, device="H200", cores=16, threads=1)


def profile(**changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "model": "m",
        "engine": "pool",
        "origin": "measured",
        "margin": 1.2,
        "rule": "max × margin",
        "wcet_ns": {1: 4, 2: 5, 3: 5},
        "measured": {
            1: SizeStatistics(samples=9, p50_ns=1, p95_ns=2, p99_ns=2, p999_ns=3, max_ns=3)
        },
        "provenance": PROVENANCE,
    }
    return Profile(**{**fields, **changes})


def test_a_profile_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "new" / "p.json"
    profile().save(path)
    assert load_profile(path) == profile()
    assert [entry.name for entry in path.parent.iterdir()] == ["p.json"]


def test_no_such_profile_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.json: no such profile; .*takt profile"):
        load_profile(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Invalid JSON"),
        ('{"model": "m"', "Invalid JSON"),
        ("{}", "provenance: Field required"),
        ("[]", "object"),
    ],
)
def test_a_spoilt_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=rf"p\.json: .*{says}.*measure again"):
        load_profile(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"wcet_ns": {}}, "without a gap"),
        ({"wcet_ns": {2: 5}}, "without a gap"),
        ({"wcet_ns": {1: 4, 3: 5}}, "without a gap; missing: 2$|missing: 2 "),
        ({"wcet_ns": {1: 4, 4: 5}}, "missing: 2, 3"),
        ({"wcet_ns": {0: 1, 1: 4}}, "without a gap"),
        ({"wcet_ns": {1: 0}}, "positive"),
        ({"wcet_ns": {1: 5, 2: 4}}, "falls from size 1 to 2 by 1e-06 ms"),
        ({"wcet_ns": {1: float("nan")}}, "finite number"),
        ({"wcet_ns": {1: float("inf")}}, "finite number"),
        ({"used": [2, 3]}, "size 1"),
        ({"used": [1, 9]}, "only profiled sizes, not \\[9\\]"),
        ({"margin": 0.99}, "greater than or equal to 1"),
        ({"margin": float("nan")}, "finite"),
        ({"origin": "guessed"}, "measured"),
        ({"engine": "gpu"}, "fallback"),
        ({"note": "?"}, "not permitted"),
    ],
)
def test_an_unusable_profile_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        profile(**changes)


def test_the_sizes_used_are_those_marked_or_the_efficient_ones() -> None:
    assert profile(wcet_ns={1: 4, 2: 9, 3: 10}).used_sizes == (1, 3)
    assert profile(wcet_ns={1: 4, 2: 9, 3: 10}, used=[3, 1, 2]).used_sizes == (1, 2, 3)


PUBLISHED = Path(__file__).resolve().parents[3] / "configs" / "profiles"


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("resnet50-t4", []),
        ("resnet50-a40", []),
        ("efficientdet-a100", []),
        ("vgg16-titan-x", [2]),
    ],
)
def test_a_published_profile_names_its_source(name: str, left_out: list[int]) -> None:
    published = load_profile(PUBLISHED / f"{name}.json")
    assert (published.origin, published.conditions) == ("published", {})
    assert "batching.md 4." in published.source
    assert sorted(set(published.wcet_ns) - set(published.used_sizes)) == left_out


def test_the_published_t4_is_the_source_s_p99_with_the_margin() -> None:
    published = load_profile(PUBLISHED / "resnet50-t4.json")
    assert published.margin == 1.25
    assert published.wcet_ns[1] == 3_986_250  # 3.189 ms
    assert published.wcet_ns[8] == 11_331_250  # 9.065 ms
    assert published.wcet_ns[6] == 9_291_875  # half-way from 5.802 to 9.065


def test_batch_max_is_the_largest_size() -> None:
    assert profile().batch_max == 3


def test_when_and_by_which_release_it_was_measured_is_no_mismatch() -> None:
    later = PROVENANCE.model_copy(update={"measured_on": "2026-12-01", "takt_version": "9"})
    assert PROVENANCE.mismatch(later) == []


@pytest.mark.parametrize(
    "field",
    sorted(set(Provenance.model_fields) - {"measured_on", "takt_version"}),
)
def test_any_other_difference_is_named(field: str) -> None:
    value = getattr(PROVENANCE, field)
    other = PROVENANCE.model_copy(update={field: value + (1 if isinstance(value, int) else "x")})
    (said,) = PROVENANCE.mismatch(other)
    assert said.startswith(f"{field}: profile has {value!r}, this machine has")


def test_monotone_lifts_a_size_below_its_smaller_one() -> None:
    assert monotone({3: 6, 1: 5, 2: 4, 4: 9}) == {1: 5, 2: 5, 3: 6, 4: 9}
    assert monotone({}) == {}
