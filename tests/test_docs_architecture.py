"""The pass that docs/architecture.md draws is the one that the engine lays out."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs/architecture.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_example_prints_what_the_page_says():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "architecture.md", "exec"), {})
    assert [line.rstrip() for line in printed.getvalue().splitlines()] == block("text output").splitlines()
