"""Progress is one line that is overwritten on a terminal, plain lines elsewhere, and never on stdout."""

from __future__ import annotations

import io

import pytest

from spinf_core.checkpoints import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_plain_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress("fetching a")
        progress("checking a")
    assert stream.getvalue() == "fetching a\nchecking a\n"


def test_a_terminal_s_line_is_overwritten_and_wiped() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress("fetching a")
        progress("checking a")
    assert stream.getvalue() == "\r\x1b[Kfetching a\r\x1b[Kchecking a\r\x1b[K"


def test_a_line_never_wraps_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    Progress(stream)("x" * 50)
    assert stream.getvalue() == "\r\x1b[K" + "x" * 19


def test_stdout_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Progress()("fetching a")
    assert capsys.readouterr() == ("", "fetching a\n")
