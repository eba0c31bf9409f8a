"""The table that `spinf score --table` prints."""

from __future__ import annotations

import pytest

from spinf_core.cli.table import bar, render


def response(**changes):
    """A response of the public shape, with one query of two options."""
    query = {
        "id": "refund",
        "combinations": [
            {
                "values": {},
                "options": [
                    {"text": " yes", "logprob": -0.9, "p": 0.72, "floor_p": 0.6},
                    {"text": " no", "logprob": -1.84, "p": 0.28, "floor_p": 0.4},
                ],
                "residual": 0.44,
                "floor_residual": 0.9,
            }
        ],
    }
    return {
        "id": "scr_0",
        "object": "score",
        "results": [{"input_id": "mail", "queries": [query]}],
        "warnings": [],
        "usage": {
            "prompt_tokens": 1234,
            "prompt_tokens_details": {
                "content_tokens": 1200,
                "text_tokens": 1200,
                "query_tokens": 24,
                "floor_tokens": 10,
            },
        },
        "timing": {"wall_ms": 12.4},
        **changes,
    }


def with_combination(**combination):
    return response(results=[{"input_id": "0", "queries": [{"id": "q", "combinations": [{"values": {}, **combination}]}]}])


def test_a_query_is_shown_with_p_floor_and_lift():
    assert render(response(), width=58) == "\n".join(
        [
            "input mail",
            "",
            "  refund",
            "    option        p    floor      lift",
            '    " yes"   0.7200   0.6000   +0.1200  █████████████',
            '    " no"    0.2800   0.4000   -0.1200  █████',
            "    residual 0.4400 (floor 0.9000)",
            "",
            "usage: 1,234 tokens: 1,200 of content, 24 of questions, 10 of floors; 12 ms",
        ]
    )


def test_without_floors_there_is_no_lift():
    text = render(with_combination(options=[{"text": "a", "p": 1.0, "floor_p": None}], residual=0.0, floor_residual=None))

    assert '"a"      1.0000        –         –' in text
    assert "residual 0.0000\n" in text


def test_the_values_of_a_combination_are_shown():
    text = render(with_combination(values={"month": "May"}, options=[{"text": "a", "p": 1.0}], residual=0.0))

    assert "  month = May\n" in text


def test_answers_are_shown_with_value_and_mass():
    answers = [{"text": "$5", "p": 0.5, "value": 5, "currency": "USD"}]
    text = render(with_combination(answers=answers, mass=0.93))

    assert '"$5"     0.5000  5 USD' in text
    assert "mass 0.9300" in text


def test_generated_answers_are_shown_with_how_they_ended():
    assert '"Hello"  stop' in render(with_combination(answers=[{"text": "Hello", "finish": "stop"}]))


def test_packs_are_shown_with_their_decision():
    pack = {
        "id": "a/b",
        "version": "1.0.0",
        "categories": {"spam": {"score": 0.9, "percentile": 0.99, "flagged": True}},
        "decision": {"unsafe": True, "mode": "max"},
    }
    text = render(response(results=[{"input_id": "0", "queries": [], "packs": [pack]}]))

    assert "a/b 1.0.0" in text
    assert "spam     0.9000  flagged" in text
    assert "decision: unsafe (max)" in text


def test_warnings_are_shown_with_where_they_belong():
    warning = {"code": "low_option_mass", "input_id": "0", "query_id": "q", "message": "Little mass."}

    assert "warning: 0/q: Little mass. (low_option_mass)" in render(response(warnings=[warning]))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_options_stay_within_the_width(width):
    options = [{"text": "x" * 100, "p": 1.0, "floor_p": 0.5}, {"text": "y", "p": 0.0, "floor_p": 0.5}]
    text = render(with_combination(options=options, residual=0.0, floor_residual=None), width=width)

    assert all(len(line) <= max(width, 44) for line in text.splitlines() if not line.startswith("usage"))


def test_what_would_steer_the_terminal_is_spelled_out():
    text = render(with_combination(options=[{"text": "\x1b[2J\x9b2J\n", "p": 1.0}], residual=0.0))

    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\\u001b[2J" in text


@pytest.mark.parametrize(("share", "expected"), [(0, ""), (1, "████"), (0.5, "██"), (0.53125, "██▏"), (2, "████"), (-1, "")])
def test_a_bar_is_as_long_as_its_share(share, expected):
    assert bar(share, 4) == expected
