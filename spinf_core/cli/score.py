"""`spinf score`: score one request read from a file, and print the public response."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from spinf_core.cli.flags import add_flags, given_flags
from spinf_core.cli.table import render
from spinf_core.errors import Rejected, SetupError
from spinf_core.registry import composition_table
from spinf_core.settings import load_settings, settings_file


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("request", metavar="REQUEST.json", help="file that holds the request; - reads standard input")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="id or alias of a model, a checkpoint folder, or a Hub id")
    parser.add_argument("--table", action="store_true", help="print a table for people instead of JSON")
    parser.add_argument("--pretty", action="store_true", help="indent the JSON")
    add_flags(parser, ("engine", "limits"))


def run(arguments: argparse.Namespace) -> int:
    """Score the request. Standard output gets the response and nothing else."""
    request = read_request(arguments.request)
    flags = given_flags(arguments)
    if arguments.model is not None:
        flags["engine.model"] = arguments.model
    plugins = arguments.compose()
    settings = load_settings(flags, file=settings_file(arguments.config, os.environ), plugins=plugins)
    for warning in settings.warnings:
        _note(f"warning: {warning}")

    try:
        from spinf_core.engine.engine import Engine
    except ImportError as error:
        brings = "'spinf-core[engine]'" if plugins.stacks else "spinf-smollm2, which brings it and a model for any CPU"
        raise SetupError(f"the engine cannot be imported ({error}); pip install {brings}") from error
    # Libraries that print while a model loads must not spoil the JSON.
    with (
        contextlib.redirect_stdout(sys.stderr),
        Engine(settings.engine.model, settings=settings, plugins=plugins, progress=_note) as engine,
    ):
        _note(composition_table(engine.composition))
        response = engine.score(request).to_dict()
    encoding = sys.stdout.encoding or "ascii"
    if arguments.table:
        text = render(response, width=shutil.get_terminal_size().columns)
        print(text.encode(encoding, "replace").decode(encoding))
    else:
        escaped = encoding.lower() not in ("utf-8", "utf8")
        indent = 2 if arguments.pretty else None
        print(json.dumps(response, indent=indent, ensure_ascii=escaped, allow_nan=False))
    return 0


def read_request(name: str) -> dict[str, Any]:
    """The request in a file, or on standard input for `-`.

    Raises:
        SetupError: where the file cannot be read.
        Rejected: `invalid_json`, where it holds no JSON object.
    """
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise SetupError(f"request {name}: {error.strerror}") from error
    try:
        request = json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise Rejected("invalid_json", "The request is nested too deeply.") from None
    except ValueError as error:
        raise Rejected("invalid_json", f"The request is not valid JSON: {error}.") from None
    if not isinstance(request, dict):
        raise Rejected("invalid_json", "The request must be a JSON object.")
    return request


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
