"""The commands and clients of README.md and docs/serving.md work against a server, and docs/plugins.md's front end in one."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from .conftest import LiveServer, Serve, settings_with, toy_loaded

ROOT = Path(__file__).parents[2]
PAGES = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/serving.md")}
SHOWN = "http://127.0.0.1:8000"


@pytest.fixture
def default_server(serve: Serve) -> LiveServer:
    """A server that goes by the default model's name; its tokenizer needs more tokens for an option."""
    loaded = toy_loaded(settings_with(limits__max_option_tokens=20))
    return serve(attrs.evolve(loaded, names=frozenset({"smollm2-135m"})))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", PAGES)
def test_the_curl_line_is_answered(page: str, default_server: LiveServer) -> None:
    (line,) = re.findall(r"^\$ (curl .+)$", PAGES[page], re.MULTILINE)
    assert SHOWN in line
    command = shlex.split(line.replace(SHOWN, default_server.url))
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=30)
    assert len(json.loads(answer.stdout)["results"][0]["queries"]) == 5


PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGES["docs/serving.md"], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", PYTHON)
def test_the_clients_get_an_answer(block: str, default_server: LiveServer) -> None:
    assert SHOWN in block
    found: dict[str, Any] = {}
    exec(block.replace(SHOWN, default_server.url), found)
    results = found["response"]["results"] if "response" in found else found["completion"].model_extra["results"]
    assert results[0]["queries"][0]["id"] == "refund"
