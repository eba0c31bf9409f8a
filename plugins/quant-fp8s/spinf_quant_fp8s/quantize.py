"""`spinf quantize`: write an fp8-static checkpoint from a plain one and its scale table."""

from __future__ import annotations

import argparse
from pathlib import Path

from spinf_core.checkpoints.progress import Progress
from spinf_core.cli.console import note
from spinf_core.cli.flags import add_flags, read_settings
from spinf_core.default_model import chosen_model


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "The new checkpoint scores bit for bit as the plain one does with --quant fp8s and the same table."
    parser.add_argument("model", metavar="MODEL", nargs="?", help="id or alias of a model, a checkpoint folder, or a Hub id")
    parser.add_argument("--scales", metavar="FILE", type=Path, required=True, help="the table that `spinf calibrate` wrote")
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="the new checkpoint; missing or empty")
    parser.add_argument(
        "--base-model", metavar="ID", default="", help="org/name on the Hub, for the model card; without it, where it came from"
    )
    add_flags(parser, ())


def run(arguments: argparse.Namespace) -> int:
    """Quantize. Standard output gets the folder's path and nothing else."""
    plugins = arguments.compose()
    settings = read_settings(arguments, plugins, arguments.model)
    name, why = chosen_model(settings.engine.model, plugins)

    from spinf_core.engine.loading import locate
    from spinf_quant_fp8s.quantization import quantize
    from spinf_quant_fp8s.table import ScaleTable

    table = ScaleTable.read(arguments.scales)
    with Progress() as progress:
        progress(f"quantizing {name} ({why})")
        located = locate(name, settings, plugins, progress)
        count = quantize(located, table, arguments.out, arguments.base_model, progress)
    note(f"{count:,} linears in fp8; try `spinf serve {arguments.out}`")
    print(arguments.out)
    return 0
