from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spinf_core.errors import Rejected
from spinf_core.protocol.templates import Template, escape

NAMES = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=8).filter(lambda name: name != "n")


def rejected(text: str) -> Rejected:
    with pytest.raises(Rejected) as caught:
        Template.parse(text, "scoring.queries.0.template")
    return caught.value


@given(st.text())
def test_escaped_text_fills_to_itself(text: str) -> None:
    assert Template.parse(escape(text) + "{?}").fill({}) == text


@given(st.lists(st.one_of(st.text(), NAMES.map(lambda name: (name,))), max_size=8), st.data())
def test_filling_replaces_each_placeholder_once(pieces: list[str | tuple[str]], data: st.DataObject) -> None:
    names = {piece[0] for piece in pieces if isinstance(piece, tuple)}
    if len(names) > 5:
        return
    values = {name: data.draw(st.text() | st.just("{a}{{}}{?}")) for name in names}
    template = "".join(escape(p) if isinstance(p, str) else "{" + p[0] + "}" for p in pieces) + "{?}"
    expected = "".join(p if isinstance(p, str) else values[p[0]] for p in pieces)
    assert Template.parse(template).fill(values) == expected


@given(st.text(string.ascii_letters + "{}?*n$ \n", max_size=20))
def test_any_text_parses_or_is_refused_as_a_template(text: str) -> None:
    refused: tuple[str, str | None] | None = None
    try:
        template = Template.parse(text, "p")
    except Rejected as error:
        refused = (error.code, error.param)
    else:
        assert escape(template.pieces[0]) in text
    assert refused in (None, ("invalid_template", "p"))


@pytest.mark.parametrize(
    ("text", "slot", "before", "stop"),
    [
        ("{?}", "scored", "", ""),
        ("Is it?{?}", "scored", "Is it?", ""),
        ('is "{*}"', "text", 'is "', '"'),
        ("is {*}", "text", "is ", ""),
        ("{*}}}", "text", "", "}"),
        ("Sold: {n}", "number", "Sold: ", ""),
        ("Paid: {$}", "currency", "Paid: ", ""),
        ("{{?}} {{n}}{?}", "scored", "{?} {n}", ""),
        ("a\nb\x00{?}", "scored", "a\nb\x00", ""),
    ],
)
def test_slots(text: str, slot: str, before: str, stop: str) -> None:
    template = Template.parse(text)
    assert (template.slot, template.fill({}), template.stop) == (slot, before, stop)


def test_json_with_escaped_braces_is_literal() -> None:
    template = Template.parse('{{"name": "{who}", "set": {{}}}}\nAnswer:{?}')
    assert template.placeholders == ("who",)
    assert template.fill({"who": "{who}"}) == '{"name": "{who}", "set": {}}\nAnswer:'


def test_placeholders_are_distinct_and_in_order() -> None:
    assert Template.parse("{b} {a_1} {b}{?}").placeholders == ("b", "a_1")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a { b{?}", 2),
        ("a } b{?}", 2),
        ("{{{ x}}{?}", 2),
        ("{}{?}", 0),
        ("{na me}{?}", 0),
        ("{café}{?}", 0),
        ("{{?}", 3),
        ("é{x", 1),
        ("{a{b}{?}", 0),
    ],
)
def test_a_lone_brace_is_refused_at_its_position(text: str, position: int) -> None:
    error = rejected(text)
    assert (error.code, error.param) == ("invalid_template", "scoring.queries.0.template")
    assert f"lone {text[position]} at position {position};" in error.message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no slot"),
        ("plain", "no slot"),
        ("{{?}}", "no slot"),
        ("{?}{?}", "second slot, {?}, at position 3"),
        ("{n}{?}", "second slot, {?}, at position 3"),
        ("{?} after", "text follows"),
        ("{?}{name}", "placeholder after the slot, {name}, at position 3"),
        ("{n}.", "text follows"),
        ("{$} ", "text follows"),
        ("{*}\n", "newline"),
        ("{*}a\rb", "newline"),
        ("{*}{name}", "placeholder after the slot"),
        ("{a}{b}{c}{d}{e}{f}{?}", "6 placeholders; at most 5"),
    ],
)
def test_malformed_templates_are_refused_with_the_reason(text: str, reason: str) -> None:
    error = rejected(text)
    assert (error.code, error.param) == ("invalid_template", "scoring.queries.0.template")
    assert reason in error.message


def test_five_placeholders_may_be_repeated() -> None:
    assert len(Template.parse("{a}{b}{c}{d}{e}{a}{?}").placeholders) == 5


def test_filling_without_a_value_names_the_missing_field() -> None:
    with pytest.raises(Rejected) as caught:
        Template.parse("{name}{?}").fill({"other": "x"}, "scoring.queries.0.combinations.1")
    assert (caught.value.code, caught.value.param) == ("missing_value", "scoring.queries.0.combinations.1.name")
