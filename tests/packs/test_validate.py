"""The validator: every problem of a file, one line each, in the author's terms."""

from __future__ import annotations

import base64
import copy
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spinf_core.packs.file import MAX_BYTES, PackError, pack_of, read_pack
from spinf_core.packs.microlayer import lock_fits, lock_of
from spinf_core.packs.validate import problems

PACK = json.loads((Path(__file__).parents[2] / "fixtures/packs/moderation/0.1.0.json").read_text(encoding="utf-8"))
Json = dict[str, Any]


def changed(change: Callable[[Json], object]) -> Json:
    pack: Json = copy.deepcopy(PACK)
    change(pack)
    return pack


def read(pack: Json, kind: str) -> Json:
    found: Json = next(each for each in pack["reads"] if each["kind"] == kind)
    return found


def set_read(which: str, /, **fields: Any) -> Callable[[Json], object]:
    return lambda pack: read(pack, which).update(fields)


def set_query(**fields: Any) -> Callable[[Json], object]:
    return lambda pack: pack["scoring"]["queries"][0].update(fields)


def set_micro(**fields: Any) -> Callable[[Json], object]:
    return lambda pack: pack["decision"]["micro_layer"].update(fields)


WRONG: list[tuple[Callable[[Json], object], str]] = [
    (lambda p: p.update(pack="Demo/x"), 'pack: "Demo/x" is not a name'),
    (lambda p: p.update(pack=5), "pack must be a text, not the number 5"),
    (lambda p: p.pop("version"), "version is missing"),
    (lambda p: p.update(version="a b"), 'version: "a b" is not a version'),
    (lambda p: p.pop("model"), "model is missing"),
    (lambda p: p.update(media=["txt"]), 'media.0: "txt" is not a kind of content'),
    (lambda p: p.update(answers="logits"), 'answers must be "p" or "logprob"'),
    (lambda p: p.update(contexts={}), "contexts must be an object with a context"),
    (lambda p: p["contexts"].update(ai="{X} {X}"), "contexts.ai holds {X}, the content's place, 2 times"),
    (lambda p: p["contexts"].update(ai="none"), "contexts.ai holds {X}, the content's place, 0 times"),
    (lambda p: p["contexts"].update(ai="{brand}: {X}"), "contexts.ai names {brand}, which is no parameter"),
    (lambda p: p.update(parameters={"brand": {"label": "B"}}), "parameters.brand is in no context"),
    (lambda p: p.update(parameters={"brand": {"label": 5}}), "parameters.brand.label must be a text"),
    (lambda p: p["scoring"].update(queries=[]), "scoring.queries must be a list of at least one query"),
    (lambda p: p["scoring"].update(case_insensitive="no"), "scoring.case_insensitive must be true or false"),
    (set_query(options=[" yes"]), "query spam-advert.options has 1; 2 to 1000 may be"),
    (set_query(options=[" yes", " yes"]), 'query spam-advert.options.1: " yes" repeats option 0'),
    (set_query(group="mine"), "query spam-advert.group must be left out"),
    (set_query(template="No slot"), "query spam-advert.template: there is no slot"),
    (set_query(template="It is {*}"), "query spam-advert.template must end with {?}"),
    (set_query(template="Is it {G}{?}"), "query spam-advert.template has the placeholder {G}"),
    (set_query(template="Is it {F}{?}"), "query spam-advert.combinations is missing"),
    (set_query(combinations=[{"F": "x"}]), "query spam-advert.combinations gives values to {F}, which the template lacks"),
    (set_query(id="spam-kind"), "query spam-kind repeats the id of an earlier query"),
    (set_query(tempalte="x"), "query spam-advert.tempalte is not a field here; did you mean template?"),
    (set_read("pair", kind="both"), "read spam-advert.kind must be one of pair, option, any, set"),
    (set_read("pair", sign=2), "read spam-advert.sign must be 1 or -1"),
    (set_read("pair", query="none"), 'read spam-advert.query: "none" is no query of this pack'),
    (set_read("pair", category="none"), 'read spam-advert.category: "none" is no category of this pack'),
    (set_read("pair", F="x"), "read spam-advert.F must be left out: query spam-advert has no placeholder {F}"),
    (set_read("pair", sd=0), "read spam-advert.sd must be above 0"),
    (set_read("pair", mean=None), "read spam-advert.mean is missing"),
    (set_read("pair", mean=float("nan")), "read spam-advert.mean must be a number"),
    (
        set_read("option", option=9),
        "read violence-level.option must be an index of the query's options, 0 to 2, not the number 9",
    ),
    (set_read("option", mu=[1]), "read violence-level.mu must be a number"),
    (set_read("any", mu=[1.0]), "read spam-kind.mu has 1 numbers; the query has 4 options"),
    (set_read("set", unsafe=[]), "read scam-offer.unsafe must be a list of indexes"),
    (set_read("set", unsafe=[0, 1, 2]), "read scam-offer.unsafe names every option"),
    (set_read("set", unsafe=[1, 1]), "read scam-offer.unsafe names an option twice"),
    (lambda p: p["reads"].append(p["reads"][0]), "read spam-advert repeats the id of an earlier read"),
    (lambda p: p["categories"]["spam"].pop("threshold"), "categories.spam.threshold is missing; null reports"),
    (lambda p: p["categories"]["spam"].update(threshold=2), "categories.spam.threshold must be from 0 to 1"),
    (lambda p: p["categories"]["spam"].update(platt=[1]), "categories.spam.platt must be a list of 2 numbers"),
    (lambda p: p["categories"]["spam"].update(requires=["none"]), 'categories.spam.requires.0: "none" is no category'),
    (lambda p: p["categories"]["spam"].update(requires=["spam"]), 'categories.spam.requires.0: "spam" is the category itself'),
    (lambda p: p["categories"]["spam"].update(aggregate="view"), 'categories.spam.aggregate must be "views"'),
    (lambda p: p["categories"]["spam"].update(aggregate="views"), "read spam-advert.view is missing; category spam"),
    (
        lambda p: p["categories"]["spam"].update(decide=False),
        "categories.spam.decide is not a field here; did you mean decides?",
    ),
    (lambda p: p["categories"].update(x={"label": "X", "platt": [1, 0], "threshold": None}), "categories.x has no read"),
    (
        lambda p: p["categories"]["spam"]["normal_quantiles"].update(values=[0.5, 0.4, 0.6, 0.7]),
        "categories.spam.normal_quantiles.values must rise",
    ),
    (
        lambda p: p["categories"]["spam"]["normal_quantiles"].update(values=[0.5]),
        "categories.spam.normal_quantiles has 4 levels and 1 values",
    ),
    (lambda p: p["decision"].update(mode="min"), "decision.mode must be one of max, per_category, micro_layer"),
    (lambda p: p["decision"].update(fallback="micro_layer"), "decision.fallback must be max or per_category"),
    (lambda p: p["decision"].pop("max"), "decision.max must be an object with a threshold"),
    (lambda p: p["decision"].pop("micro_layer"), "decision.micro_layer must be an object"),
    (lambda p: p["decision"].update(critical=["x"]), 'decision.critical.0: "x" is no category'),
    (set_micro(inputs=["spam"]), 'decision.micro_layer.inputs.0: "spam" must be "c:CATEGORY" or "r:READ"'),
    (set_micro(inputs=["r:none"]), 'decision.micro_layer.inputs.0: "r:none" names no read'),
    (set_micro(hidden=2), "decision.micro_layer.weights holds "),
    (set_micro(dtype="float64"), 'decision.micro_layer.dtype must be "float32"'),
    (set_micro(weights="?"), "decision.micro_layer.weights must be base64"),
    (
        set_micro(weights=base64.b64encode(struct.pack("<f", float("inf"))).decode()),
        "decision.micro_layer.weights holds a number",
    ),
    (set_micro(lock="sha256:x"), "decision.micro_layer.lock must be sha256: and 64 hex digits"),
]


@pytest.mark.parametrize(("change", "expected"), WRONG, ids=[expected[:60] for _, expected in WRONG])
def test_each_problem_is_named(change: Callable[[Json], object], expected: str) -> None:
    found = problems(changed(change))
    assert any(line.startswith(expected) for line in found), found


def test_every_problem_is_listed_one_a_line() -> None:
    pack = changed(lambda pack: [change(pack) for change, _ in WRONG[:1] + WRONG[5:7] + WRONG[25:26]])
    lines = problems(pack)
    assert len(lines) == 4
    with pytest.raises(PackError) as caught:
        pack_of("p.json", pack)
    assert str(caught.value).splitlines() == [f"p.json: {line}" for line in lines]


def test_a_whole_pack_has_no_problem() -> None:
    assert problems(PACK) == []


def test_notes_of_the_author_are_no_problem() -> None:
    assert problems(changed(lambda pack: pack.update(calibrated_on="forum posts", homepage="…"))) == []


def test_a_null_stands_for_a_member_left_out() -> None:
    pack = pack_of("p", changed(set_read("pair", view=None, F=None, sign=None)))
    assert (pack.reads[0].F, pack.reads[0].view, pack.reads[0].sign) == (None, None, 1)


def draft() -> Json:
    return {name: PACK[name] for name in ("pack", "version", "media", "answers", "contexts", "scoring")}


def test_a_draft_is_checked_on_its_request_side_only() -> None:
    assert problems(draft()) == []
    assert pack_of("p", draft()).draft
    started = draft() | {"reads": [{"id": "r", "kind": "?"}], "categories": {"spam": {}}}
    assert problems(started) == []
    assert problems(draft() | {"contexts": {"a": ""}}) == ["contexts.a is empty"]


def test_one_fitted_constant_makes_it_no_draft() -> None:
    found = problems(draft() | {"reads": [{"id": "r", "mean": 0.0}]})
    assert "decision must be an object, not null" in found


def test_a_draft_cannot_be_evaluated() -> None:
    from spinf_core.packs.evaluate import Evaluator

    with pytest.raises(ValueError, match=r"demo/moderation@0\.1\.0 is a draft"):
        Evaluator(pack_of("p", draft()))


def test_the_lock_covers_queries_reads_platt_and_inputs_alone() -> None:
    assert lock_fits(PACK)
    for change in (
        set_query(options=[" yes", " maybe"]),
        set_read("pair", mean=0.5),
        lambda p: p["categories"]["spam"].update(platt=[1.0, 0.0]),
        lambda p: p["decision"]["micro_layer"]["inputs"].reverse(),
    ):
        assert not lock_fits(changed(change))
    for change in (
        lambda p: p["categories"]["spam"].update(threshold=0.1),
        lambda p: p["decision"].update(critical=[]),
        lambda p: p.update(model="other", pack="a/b"),
    ):
        assert lock_fits(changed(change))
    assert PACK["decision"]["micro_layer"]["lock"] == lock_of(PACK)


def test_a_file_over_16_mib_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_text(json.dumps(PACK) + " " * MAX_BYTES)
    with pytest.raises(PackError, match=r"large.json: is larger than 16 MiB"):
        read_pack(path)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\ufeff{]"])
def test_what_is_no_json_is_one_problem(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PackError, match=r"p\.json: is not JSON"):
        read_pack(path)


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]), st.just({}), st.just([{}])
)


@settings(max_examples=400, deadline=None)
@given(path=st.lists(st.integers(0, 50), min_size=1, max_size=5), value=ODD)
def test_whatever_stands_anywhere_the_file_is_read_or_its_problems_are_listed(path: list[int], value: object) -> None:
    pack = copy.deepcopy(PACK)
    at: Any = pack
    for step in path:
        keys: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if not isinstance(at[key], dict | list) or step == path[-1]:
            at[key] = value
            break
        at = at[key]
    lines = problems(pack)
    assert all(lines)
    assert not any("\n" in line for line in lines)
    if not lines:
        pack_of("p", pack)
