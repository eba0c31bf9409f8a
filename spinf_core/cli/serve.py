"""`spinf serve`: serve a model over HTTP."""

from __future__ import annotations

import argparse

from spinf_core.cli.console import note
from spinf_core.cli.flags import add_flags, read_settings
from spinf_core.errors import SetupError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="id or alias of a model, a checkpoint folder, or a Hub id")
    add_flags(parser, ("engine", "server", "features", "limits"))


def run(arguments: argparse.Namespace) -> int:
    """Serve until the process is told to stop."""
    plugins = arguments.compose()
    settings = read_settings(arguments, plugins, arguments.model)
    try:
        from spinf_core.server.run import serve
    except ImportError as error:
        raise SetupError(f"the server cannot be imported ({error}); pip install 'spinf-core[engine,server]'") from error
    return serve(settings, plugins, note)
