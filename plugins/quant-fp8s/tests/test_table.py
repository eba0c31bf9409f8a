"""Scale tables: written, read, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spinf_quant_fp8s.table import ScaleTable, static_scale

from spinf_core.errors import SetupError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scales.json"
    table = ScaleTable(revision="abc", provenance={"texts": 3}, scales={"b": 2**-5, "a": 0.25})

    table.write(path)
    read = ScaleTable.read(path)

    assert (read.revision, read.provenance, read.scales) == ("abc", {"texts": 3}, {"a": 0.25, "b": 2**-5})
    assert [file.name for file in tmp_path.iterdir()] == ["scales.json"]


def test_a_table_by_hand_needs_a_revision_and_scales_alone(tmp_path: Path) -> None:
    path = tmp_path / "scales.json"
    path.write_text('{"revision": "abc", "scales": {"model.layers.0.mlp.down_proj": 0.125}}')

    assert ScaleTable.read(path).input_scale("model.layers.0.mlp.down_proj") == 0.125


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"revision": "a"}', '{"revision": "a", "scales": [1]}', '{"revision": "a", "scales": {"m": "x"}}'],
)
def test_what_is_no_table_is_refused_by_its_path(tmp_path: Path, content: str) -> None:
    path = tmp_path / "scales.json"
    path.write_text(content)

    with pytest.raises(SetupError, match=r"scales\.json is not one: .*revision and scales"):
        ScaleTable.read(path)


def test_a_missing_table_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"nowhere\.json"):
        ScaleTable.read(tmp_path / "nowhere.json")


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf"), 1e-60, 1e60])
def test_a_scale_that_float32_cannot_divide_by_is_refused_by_its_module(tmp_path: Path, value: float) -> None:
    path = tmp_path / "scales.json"
    path.write_text(json.dumps({"revision": "a", "scales": {"good": 0.5, "bad": value}}))

    with pytest.raises(SetupError, match=r"scale of bad in scale table .*scales\.json is .*; mend the table"):
        ScaleTable.read(path)


def test_a_module_that_the_table_lacks_is_refused_by_name(tmp_path: Path) -> None:
    table = ScaleTable(revision="a", provenance={}, scales={}, path="scales.json")

    with pytest.raises(SetupError, match=r"scales\.json has no scale for layers\.7\.o_proj"):
        table.input_scale("layers.7.o_proj")


def test_a_table_of_another_revision_is_refused_by_both_names() -> None:
    table = ScaleTable(revision="abc", provenance={"model": "org/m"}, scales={}, path="scales.json")

    with pytest.raises(SetupError, match=r"scales\.json was made for revision abc \(org/m\), .* is revision def; .*calibrate"):
        table.check_revision("def")
    table.check_revision("abc")
    table.check_revision("")  # not known, as in a stack's own tests


def test_the_digest_moves_with_every_scale_and_with_nothing_else() -> None:
    def digest(scales: dict[str, float], revision: str = "a") -> str:
        return ScaleTable(revision=revision, provenance={}, scales=scales).digest

    assert digest({"a": 1.0, "b": 2.0}) == digest({"b": 2.0, "a": 1.0}, "z")
    assert len({digest(scales) for scales in ({"a": 1.0}, {"a": 2.0}, {"b": 1.0}, {})}) == 4


def test_a_table_without_provenance_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scales.json"
    path.write_text('{"revision": "abc", "provenance": null, "scales": {}}')

    assert ScaleTable.read(path).provenance == {}


@pytest.mark.parametrize(("headroom", "scale"), [(1.0, 1.0), (1.5, 2.0), (4.0, 4.0)])
def test_headroom_is_a_factor_above_the_largest_value(headroom: float, scale: float) -> None:
    assert static_scale(448.0, headroom) == scale


@pytest.mark.parametrize(
    ("largest", "scale"), [(224.0, 1.0), (225.0, 2.0), (448.0, 2.0), (7.0, 2**-5), (1e-40, 2**-108), (0.0, 1.0)]
)
def test_a_static_scale_is_the_power_of_two_that_leaves_twice_the_room(largest: float, scale: float) -> None:
    assert static_scale(largest) == scale
