"""`spinf serve`: serve a model over HTTP."""

from __future__ import annotations

import argparse
import os
import sys

from spinf_core.cli.flags import add_flags, given_flags
from spinf_core.errors import SetupError
from spinf_core.settings import load_settings, settings_file


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="id or alias of a model, a checkpoint folder, or a Hub id")
    add_flags(parser, ("engine", "server", "features", "limits"))


def run(arguments: argparse.Namespace) -> int:
    """Serve until the process is told to stop."""
    flags = given_flags(arguments)
    if arguments.model is not None:
        flags["engine.model"] = arguments.model
    plugins = arguments.compose()
    settings = load_settings(flags, file=settings_file(arguments.config, os.environ), plugins=plugins)
    for warning in settings.warnings:
        _note(f"warning: {warning}")
    try:
        from spinf_core.server.run import serve
    except ImportError as error:
        raise SetupError(f"the server cannot be imported ({error}); pip install 'spinf-core[engine,server]'") from error
    return serve(settings, plugins, _note)


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
