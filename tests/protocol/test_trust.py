"""What a trusted caller may lower for one call."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from spinf_core.errors import Rejected
from spinf_core.limits import Limits
from spinf_core.protocol import Features, ParsedRequest, parse_request

SERVER = Features(extraction=True, media=frozenset({"image", "video"}), packs=frozenset({"a/x", "a/y"}))


def parse(**fields: Any) -> ParsedRequest:
    queries = [{"id": "a", "template": "is{?}", "options": ["x", "y"]}]
    body = {"messages": [], "scoring": {"queries": queries}, **fields}
    return parse_request(body, trusted=True, features=SERVER)


def test_the_limits_are_the_documented_ones() -> None:
    assert attrs.asdict(Limits()) == {
        "max_content_tokens": 4096,
        "max_query_tokens": 256,
        "max_prompts_per_input": 10_000,
        "max_extractions_per_input": 10,
        "max_processed_tokens": 2_000_000,
        "max_options": 1000,
        "max_option_tokens": 5,
        "max_frames": 1024,
        "max_audio_seconds": 600,
        "max_image_pixels": 50_000_000,
    }


@pytest.mark.parametrize("value", [0, -1, True, "5", 5.0, None])
def test_a_limit_of_the_server_must_be_a_positive_integer(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"max_options: expected"):
        Limits(max_options=value)


def test_a_trusted_caller_lowers_limits_and_cannot_raise_them() -> None:
    limits = parse(limits={"max_options": 5, "max_frames": 10**9}).limits
    assert limits == Limits(max_options=5)


def test_a_lowered_limit_is_enforced() -> None:
    with pytest.raises(Rejected) as caught:
        parse(limits={"max_options": 1})
    assert (caught.value.code, caught.value.param) == ("too_many_options", "scoring.queries.0.options")


def test_a_trusted_caller_switches_features_off_and_cannot_switch_them_on() -> None:
    changes = {"extraction": False, "generation": True, "media": ["image", "audio"], "packs": ["a/x", "b/z"]}
    features = parse(features=changes).features
    assert (features.extraction, features.generation) == (False, False)
    assert features.media - features.media_disabled == {"image"}
    assert features.packs == {"a/x"}


@pytest.mark.parametrize(("sent", "media", "packs"), [(False, set(), set()), (True, {"image", "video"}, {"a/x", "a/y"})])
def test_a_boolean_stands_for_all_or_none(sent: bool, media: set[str], packs: set[str]) -> None:
    features = parse(features={"media": sent, "packs": sent}).features
    assert features.media - features.media_disabled == media
    assert features.packs == packs


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("limits", [], "limits"),
        ("limits", {"max_option": 5}, "limits.max_option"),
        ("limits", {"max_options": "5"}, "limits.max_options"),
        ("limits", {"max_options": 5.0}, "limits.max_options"),
        ("limits", {"max_options": True}, "limits.max_options"),
        ("limits", {"max_options": 0}, "limits.max_options"),
        ("limits", {"max_options": None}, "limits.max_options"),
        ("limits", {"lowered": 1}, "limits.lowered"),
        ("features", 5, "features"),
        ("features", {"extraction": 0}, "features.extraction"),
        ("features", {"generation": "off"}, "features.generation"),
        ("features", {"media": "image"}, "features.media"),
        ("features", {"media": ["image", 5]}, "features.media.1"),
        ("features", {"packs": {}}, "features.packs"),
        ("features", {"media_disabled": []}, "features.media_disabled"),
    ],
)
def test_malformed_overrides_are_named(field: str, value: object, param: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse(**{field: value})
    assert (caught.value.code, caught.value.param) == ("invalid_field", param)
