"""What is asked of a build is read, checked against the bundle, and refused by name."""

from __future__ import annotations

import pytest

from attnport.axes import Axis, AxisSum, axes_by_name
from attnport.engines.build_options import (
    BuildOptions,
    parse_bytes,
    parse_profile,
    parse_target,
    profile_axes,
)
from attnport.engines.profiles import fitting_profile, profile_from_axes
from attnport.errors import UsageError
from attnport.export.records import TensorSpec

AXES = {"batch": Axis("batch", 1, 2, 8), "seq": Axis("seq", 1, 128, 512)}


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("1KiB", 1024), ("1.5 MiB", 3 << 19), ("2GiB", 2 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1KB", "lots", "1 2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is no size: give bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "target"), [("89", 89), ("8.9", 89), ("sm_89", 89), ("SM120", 120), ("12.1", 121)]
)
def test_targets(text: str, target: int) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "9", "8.99", "ada", "sm_"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(UsageError, match="is no compute capability"):
        parse_target(text)


def test_profiles() -> None:
    assert parse_profile("seq=1") == {"seq": (1, 1, 1)}
    assert parse_profile("batch=1:4:8, seq=2:128:512") == {
        "batch": (1, 4, 8),
        "seq": (2, 128, 512),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seq", "not of the form name=min:opt:max"),
        ("seq=1:2", "not of the form name=min:opt:max"),
        ("seq=5:2:1", "min <= opt <= max"),
        ("seq=1,seq=2", "gives seq twice"),
    ],
)
def test_what_is_no_profile(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_profile(text)


def test_a_profile_has_the_bundles_ranges_where_it_gives_none() -> None:
    wide, one = profile_axes([{}, {"seq": (1, 1, 1)}], AXES)
    assert wide == AXES
    assert one == AXES | {"seq": Axis("seq", 1, 1, 1)}
    assert profile_axes((), AXES) == (AXES,)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"length": (1, 1, 1)}, r"axis 'length', which the bundle has not; its axes: batch, seq"),
        ({"seq": (1, 2, 513)}, r"profile 1 takes seq from 1 to 513, and the bundle 1 to 512"),
        ({"seq": (0, 1, 1)}, r"from 0 to 1, and the bundle 1 to 512: stay within"),
    ],
)
def test_a_profile_that_leaves_the_bundle(
    profile: dict[str, tuple[int, int, int]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        profile_axes([{}, profile], AXES)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimization_level": 9}, "optimization level is 9: give 0 to 5"),
        ({"workspace_bytes": 0}, "workspace is 0 bytes"),
        ({"profiles": ({"seq": (5, 2, 1)},)}, "profile 0: axis 'seq' has min=5"),
        ({"wrokspace_bytes": 1}, "build option 'wrokspace_bytes'.*options are profiles, targets"),
        ({"targets": ("Ada",)}, r"build option 'targets\.0' is 'Ada'"),
    ],
)
def test_options_that_make_no_sense(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BuildOptions.checked(**values)


def test_the_narrowest_profile_that_takes_the_sizes_is_run() -> None:
    wide, one = profile_axes([{"seq": (2, 128, 512)}, {"seq": (1, 1, 1)}], AXES)
    assert fitting_profile([wide, one], {"batch": 3, "seq": 1}) == 1
    assert fitting_profile([AXES, one], {"batch": 3, "seq": 1}) == 1
    assert fitting_profile([AXES, one], {"batch": 3, "seq": 2}) == 0
    assert fitting_profile([wide, one], {"batch": 9, "seq": 1}) is None
    assert fitting_profile([{}], {}) == 0


def test_a_static_input_needs_no_range() -> None:
    specs = (
        TensorSpec(name="x", dtype="float16", shape=("batch", 4)),
        TensorSpec(name="table", dtype="float16", shape=(3, 4)),
    )
    profile = profile_from_axes(specs, AXES)
    assert list(profile) == ["x"]
    assert (profile["x"].min, profile["x"].opt, profile["x"].max) == ((1, 4), (2, 4), (8, 4))


SUMS = axes_by_name(
    [Axis("past", 0, 64, 512), Axis("seq", 1, 16, 512), AxisSum("total", ("past", "seq"))]
)


def test_a_sum_follows_in_every_profile() -> None:
    prefill, one = profile_axes([{"past": (0, 0, 0)}, {"seq": (1, 1, 1)}], SUMS)
    assert (prefill["total"].min, prefill["total"].opt, prefill["total"].max) == (1, 16, 512)
    assert (one["total"].min, one["total"].opt, one["total"].max) == (1, 65, 513)
    mask = TensorSpec(name="mask", dtype="bool", shape=("seq", "total"))
    assert profile_from_axes([mask], one)["mask"].opt == (1, 65)
    assert fitting_profile([prefill, one], {"past": 0, "seq": 5, "total": 5}) == 0
    assert fitting_profile([prefill, one], {"past": 9, "seq": 1, "total": 10}) == 1


def test_a_sum_is_given_no_range_of_its_own() -> None:
    with pytest.raises(UsageError, match=r"'total', which follows .*\(total = past \+ seq\)"):
        profile_axes([{"total": (1, 1, 1)}], SUMS)
