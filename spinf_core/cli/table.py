"""A response as a table for people: plain text, no colour, as wide as it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_NUMBERS = 28  # the three columns of numbers and the spaces around them
_LONGEST_BAR = 40
_SHORTEST_LABEL = 8


def render(response: Mapping[str, Any], width: int = 80) -> str:
    """The public response as text: each input, each query, its options or answers; then warnings and usage.

    `lift` is p − floor_p: what the content adds to what the question alone suggests.
    """
    lines: list[str] = []
    for result in response["results"]:
        lines.append(f"input {_shown(result['input_id'])}")
        for query in result.get("queries", []):
            lines += _query(query, width)
        for pack in result.get("packs", []):
            lines += _pack(pack, width)
        lines.append("")
    lines += [_warning(warning) for warning in response.get("warnings", [])]
    lines.append(_usage(response))
    return "\n".join(line.rstrip() for line in lines)


def bar(share: float, width: int) -> str:
    """A horizontal bar for a share between 0 and 1, to an eighth of a character."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _query(query: Mapping[str, Any], width: int) -> Iterator[str]:
    yield ""
    yield f"  {_shown(query['id'])}"
    for combination in query["combinations"]:
        if combination.get("values"):
            pairs = ", ".join(f"{name} = {_shown(value)}" for name, value in combination["values"].items())
            yield f"  {_cut(pairs, width - 2)}"
        if "options" in combination:
            yield from _options(combination, width)
        else:
            yield from _answers(combination, width)


def _options(combination: Mapping[str, Any], width: int) -> Iterator[str]:
    options = combination["options"]
    label, bars = _columns([_quoted(option["text"]) for option in options], width)
    yield f"    {'option':<{label}}  {'p':>7}  {'floor':>7}  {'lift':>8}"
    for option in options:
        p, floor = option["p"], option.get("floor_p")
        numbers = f"{p:7.4f}  {_number(floor):>7}  {_number(None if floor is None else p - floor, sign='+'):>8}"
        yield f"    {_cut(_quoted(option['text']), label):<{label}}  {numbers}  {bar(p, bars)}"
    floor = combination.get("floor_residual")
    beside = "" if floor is None else f" (floor {floor:.4f})"
    yield f"    residual {combination['residual']:.4f}{beside}"


def _answers(combination: Mapping[str, Any], width: int) -> Iterator[str]:
    answers = combination["answers"]
    label, bars = _columns([_quoted(answer["text"]) for answer in answers], width)
    for answer in answers:
        text = f"{_cut(_quoted(answer['text']), label):<{label}}"
        if "p" in answer:
            value = " ".join(str(answer[key]) for key in ("value", "currency") if answer.get(key) is not None)
            yield f"    {text}  {answer['p']:7.4f}  {_cut(value, 18):<18}  {bar(answer['p'], bars)}"
        else:
            yield f"    {text}  {answer.get('finish', '')}"
    if "mass" in combination:
        yield f"    mass {combination['mass']:.4f}"


def _pack(pack: Mapping[str, Any], width: int) -> Iterator[str]:
    yield ""
    yield f"  {_shown(pack['id'])} {_shown(pack.get('version', ''))}"
    categories = pack.get("categories", {})
    label, bars = _columns([_shown(name) for name in categories], width)
    for name, category in categories.items():
        score, flag = category["score"], "flagged" if category.get("flagged") else ""
        yield f"    {_cut(_shown(name), label):<{label}}  {score:7.4f}  {flag:<18}  {bar(score, bars)}"
    if decision := pack.get("decision"):
        yield f"    decision: {'unsafe' if decision.get('unsafe') else 'safe'} ({_shown(decision.get('mode', ''))})"


def _warning(warning: Mapping[str, Any]) -> str:
    where = "/".join(_shown(warning[key]) for key in ("input_id", "query_id") if warning.get(key))
    return f"warning: {where}{': ' if where else ''}{_shown(warning['message'])} ({warning['code']})"


def _usage(response: Mapping[str, Any]) -> str:
    usage = response["usage"]
    details = usage["prompt_tokens_details"]
    parts = [
        f"{usage['prompt_tokens']:,} tokens: {details['content_tokens']:,} of content",
        f"{details['query_tokens']:,} of questions",
        f"{details['floor_tokens']:,} of floors",
    ]
    time = response.get("timing", {}).get("wall_ms")
    return "usage: " + ", ".join(parts) + ("" if time is None else f"; {time:,.0f} ms")


def _columns(labels: Sequence[str], width: int) -> tuple[int, int]:
    """The widths of the label column and of the longest bar. Where room is short, bars go first."""
    room = max(width - 4 - _NUMBERS - 2, _SHORTEST_LABEL)
    label = min(max(map(len, [*labels, "option"])), room)
    return label, min(room - label, _LONGEST_BAR)


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.4f}"


def _quoted(text: str) -> str:
    """An option or answer with its spaces visible."""
    return _shown(json.dumps(text, ensure_ascii=False))


def _shown(text: object) -> str:
    """A text without characters that would steer the terminal."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(text))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
