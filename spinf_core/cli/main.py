"""`spinf`: find the command, run it, and turn what it raises into an exit status.

Core's own commands are parsed without looking for plugins. `--help`, an unknown command, and a command that asks for
the composition scan the entry points, once.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from spinf_core import builtin
from spinf_core.columns import aligned
from spinf_core.errors import Rejected, SetupError
from spinf_core.records import Command
from spinf_core.registry import Plugins, Registered, core_version, load_factory

REJECTED = 1
SETUP = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

# The flag itself is taken out before any parser sees it; parsers know it for the sake of their help.
NO_PLUGIN_HELP = "leave a plugin out; may come again (SPINF_DISABLED_PLUGINS)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run `spinf` with these arguments and return its exit status.

    0: done. 1: a request was refused; its error envelope is on stderr. 2: usage or set-up. 130: interrupted.
    141: whoever read the output has gone.
    """
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except Rejected as error:
        print(json.dumps(error.envelope()), file=sys.stderr)
        return REJECTED
    except SetupError as error:
        print(f"spinf: {error}", file=sys.stderr)
        return SETUP
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit, which would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def _run(argv: list[str]) -> int:
    argv, disabled = _take_disabled(argv)
    compose = functools.cache(functools.partial(_compose, disabled))
    position = next((index for index, word in enumerate(argv) if not word.startswith("-")), len(argv))
    top = _top_parser()
    arguments = top.parse_args(argv[:position])
    if arguments.version:
        print(f"spinf {core_version()}")
        return 0
    if arguments.help or position == len(argv):
        print(_help(top, compose()), file=sys.stdout if arguments.help else sys.stderr)
        return 0 if arguments.help else SETUP
    return _run_command(argv[position], argv[position + 1 :], compose)


def _run_command(name: str, argv: Sequence[str], compose: Callable[[], Plugins]) -> int:
    command = _find(name, compose)
    implementation = load_factory(command)
    if not (hasattr(implementation, "configure") and hasattr(implementation, "run")):
        raise SetupError(f"command {name!r} of {command.origin}: {command.record.factory} lacks configure or run")
    parser = argparse.ArgumentParser(prog=f"spinf {name}", description=command.record.summary, allow_abbrev=False)
    parser.add_argument("--no-plugin", metavar="NAME", help=NO_PLUGIN_HELP)
    implementation.configure(parser)
    arguments = parser.parse_args(argv)
    arguments.compose = compose
    if command.record.settings is not None:
        arguments.plugin_settings = _settings_of(command.record, arguments, compose())
    return int(implementation.run(arguments))


def _find(name: str, compose: Callable[[], Plugins]) -> Registered[Command]:
    """Core's command of this name without a scan, or a plugin's."""
    for record in builtin.COMMANDS:
        if record.name == name:
            return Registered(record, "core", "spinf-core", core_version())
    return compose().command(name)


def _compose(disabled: Sequence[str]) -> Plugins:
    from spinf_core.plugins import discover

    return discover(disabled=disabled)


def _settings_of(record: Command, arguments: argparse.Namespace, plugins: Plugins) -> Any:
    from spinf_core.settings import load_settings, settings_file

    file = settings_file(getattr(arguments, "config", None), os.environ)
    return load_settings(file=file, plugins=plugins).of_record(record)


def _take_disabled(argv: list[str]) -> tuple[list[str], list[str]]:
    """Take `--no-plugin NAME` out, wherever it stands before a `--`: it decides which commands there are."""
    kept: list[str] = []
    disabled: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*kept, word, *words], disabled
        if word == "--no-plugin":
            name = next(words, "")
            if not name:
                raise SetupError("--no-plugin: expected a plugin's name")
            disabled.append(name)
        elif word.startswith("--no-plugin="):
            disabled.append(word.partition("=")[2])
        else:
            kept.append(word)
    return kept, disabled


def _top_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spinf",
        usage="spinf [--no-plugin NAME] COMMAND …",
        description="Read a content once and answer many fixed-choice questions about it, as probabilities.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this, or the help of a command that follows")
    parser.add_argument("--version", action="store_true", help="show the version")
    parser.add_argument("--no-plugin", metavar="NAME", help="leave a plugin out; may come again (SPINF_DISABLED_PLUGINS)")
    return parser


def _help(top: argparse.ArgumentParser, plugins: Plugins) -> str:
    """The top-level help: options, every command, and the plugins that failed."""
    commands = [(item.record.name, item.record.summary) for item in plugins.commands]
    parts = [top.format_help().rstrip(), "commands:\n" + "\n".join(f"  {line}" for line in aligned(commands))]
    if plugins.failures:
        lines = [f"  {failure}\n    to disable: {failure.how_to_disable}" for failure in plugins.failures]
        parts.append("plugins that failed:\n" + "\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
