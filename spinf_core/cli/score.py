"""`spinf score`: score one request, read from a file or made of a prompt pack and texts, and print the public response."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from spinf_core.cli.console import note
from spinf_core.cli.flags import add_flags, read_settings
from spinf_core.cli.table import render
from spinf_core.errors import Rejected, SetupError
from spinf_core.packs.loading import OFFICIAL_NAMESPACE
from spinf_core.protocol import json_loads
from spinf_core.protocol.text import described
from spinf_core.registry import composition_table


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("request", metavar="REQUEST.json", help="file that holds the request; - reads standard input")
    parser.add_argument("rest", metavar="MODEL", nargs="*", help="id or alias of a model, a checkpoint folder, or a Hub id")
    parser.add_argument("--model", metavar="MODEL", help="the same, where --pack makes texts of the words")
    parser.add_argument(
        "--pack",
        metavar="ID[:CONTEXT]",
        action="append",
        help="score with a prompt pack; every word is a text then; may come again",
    )
    parser.add_argument(
        "--parameter", metavar="NAME=VALUE", action="append", default=[], help="a parameter of the pack; may come again"
    )
    parser.add_argument("--table", action="store_true", help="print a table for people instead of JSON")
    parser.add_argument("--pretty", action="store_true", help="indent the JSON")
    add_flags(parser, ("engine", "features", "limits"))


def run(arguments: argparse.Namespace) -> int:
    """Score the request. Standard output gets the response and nothing else."""
    request, model = _request(arguments)
    plugins = arguments.compose()
    settings = read_settings(arguments, plugins, model)

    try:
        from spinf_core.engine.engine import Engine
    except ImportError as error:
        brings = "'spinf-core[engine]'" if plugins.stacks else "spinf-smollm2, which brings it and a model for any CPU"
        raise SetupError(f"the engine cannot be imported ({error}); pip install {brings}") from error
    # Libraries that print while a model loads must not spoil the JSON.
    with (
        contextlib.redirect_stdout(sys.stderr),
        Engine(
            settings.engine.model,
            settings=settings,
            plugins=plugins,
            progress=note,
            official_packs=settings.features.official_packs and _names_official(request),
        ) as engine,
    ):
        note(composition_table(engine.composition))
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


def _request(arguments: argparse.Namespace) -> tuple[dict[str, Any], str | None]:
    """The request and the model's name."""
    if not arguments.pack:
        if arguments.parameter:
            raise SetupError("--parameter goes with --pack; a request holds its own parameters")
        if len(arguments.rest) > 1:
            raise SetupError(f"one model may be named, not {' and '.join(arguments.rest)}; texts go with --pack")
        return read_request(arguments.request), arguments.model or next(iter(arguments.rest), None)
    parameters = dict(map(_parameter, arguments.parameter))
    inputs = [
        {"id": str(number), "messages": [{"role": "user", "content": text}], "parameters": parameters}
        for number, text in enumerate([arguments.request, *arguments.rest])
    ]
    packs = []
    for word in arguments.pack:
        name, _, context = word.partition(":")
        id_, _, version = name.partition("@")
        packs.append({"id": id_, "version": version or None, "context": context or None})
    return {"inputs": inputs, "scoring": {"packs": packs}}, arguments.model


def _parameter(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not (name and equals):
        raise SetupError(f"--parameter {pair}: expected NAME=VALUE")
    return name, value


def _names_official(request: dict[str, Any]) -> bool:
    """Whether the request asks for a pack of the official namespace, so that those are worth fetching."""
    scoring = request.get("scoring")
    packs = scoring.get("packs") if isinstance(scoring, dict) else None
    ids = [entry.get("id") for entry in packs if isinstance(entry, dict)] if isinstance(packs, list) else []
    return any(isinstance(id_, str) and id_.startswith(f"{OFFICIAL_NAMESPACE}/") for id_ in ids)


def read_request(name: str) -> dict[str, Any]:
    """The request in a file, or on standard input for `-`.

    Raises:
        SetupError: where the file cannot be read.
        Rejected: `invalid_json`, where it holds no JSON object; see `json_loads` for the rest.
    """
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise SetupError(f"request {name}: {error.strerror}") from error
    request = json_loads(content)
    if not isinstance(request, dict):
        raise Rejected("invalid_json", f"the request must be a JSON object, not {described(request)}")
    return request
