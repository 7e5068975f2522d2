"""Procedural pictures: the same for a seed, different between seeds, and what they claim to be."""

import numpy as np
import pytest

from hil_sim.pictures import DEFECT_KINDS, FREE, KINDS, make_masked_picture, make_picture


def test_a_seed_gives_the_same_picture_every_time() -> None:
    first, second = make_picture(7), make_picture(7)
    assert first.kind == second.kind
    assert np.array_equal(first.pixels, second.pixels)


def test_seeds_give_different_pictures() -> None:
    pictures = {make_picture(seed, kind=FREE).pixels.tobytes() for seed in range(20)}
    assert len(pictures) == 20


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (224, 224), (33, 32)])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_have_the_asked_size_and_kind(size: tuple[int, int], kind: str) -> None:
    picture = make_picture(3, *size, kind=kind)
    assert picture.pixels.shape == (size[1], size[0])
    assert picture.pixels.dtype == np.uint8
    assert picture.kind == kind
    assert picture.is_defect == (kind != FREE)


@pytest.mark.parametrize("kind", DEFECT_KINDS)
def test_a_defect_changes_the_tile_where_its_mask_says(kind: str) -> None:
    for seed in range(10):
        picture, mask = make_masked_picture(seed, kind=kind)
        good = make_picture(seed, kind=FREE)
        changed = np.abs(picture.pixels.astype(float) - good.pixels.astype(float))
        assert mask.any()
        assert changed[mask == 255].mean() > 2 * changed[mask == 0].mean()


def test_a_good_tile_has_an_empty_mask() -> None:
    assert not make_masked_picture(5, kind=FREE)[1].any()


def test_without_a_kind_the_seed_chooses_and_all_kinds_occur() -> None:
    kinds = [make_picture(seed, 64, 64).kind for seed in range(200)]
    assert set(kinds) == set(KINDS)
    assert 90 < kinds.count(FREE) < 150


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="blowhole"):
        make_picture(1, kind="scratch")


def test_a_frame_too_small_to_show_a_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        make_picture(1, 31, 480)
