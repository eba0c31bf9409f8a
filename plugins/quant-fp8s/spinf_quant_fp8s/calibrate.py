"""`spinf calibrate`: find the static fp8 scales of a model's activations, and write them as a scale table."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from pathlib import Path

from spinf_core.checkpoints.progress import Progress
from spinf_core.cli.console import note
from spinf_core.cli.flags import add_flags, read_settings
from spinf_core.default_model import chosen_model
from spinf_core.errors import SetupError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "The corpus should resemble what will be served: a few hundred requests with the contents and questions of every "
        "kind. The unquantized model reads them, and each linear's scale is 2^ceil(log2(headroom * largest / 448)) for the "
        "largest magnitude of its inputs."
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help="id or alias of a model, a checkpoint folder, or a Hub id")
    parser.add_argument("--corpus", metavar="FILE", type=Path, required=True, help="bodies of /v1/score requests, one a line")
    parser.add_argument("--out", metavar="FILE", type=Path, default=Path("scales.json"), help="the table (default scales.json)")
    parser.add_argument(
        "--headroom", metavar="FACTOR", type=float, default=2.0, help="room above the largest magnitude seen (default 2)"
    )
    add_flags(parser, ("engine", "features", "limits"))


def run(arguments: argparse.Namespace) -> int:
    """Calibrate. Standard output gets the table's path and nothing else."""
    if not (math.isfinite(arguments.headroom) and arguments.headroom >= 1):
        raise SetupError(f"--headroom {arguments.headroom:g}: expected 1 or more; below it the corpus itself would be clamped")
    plugins = arguments.compose()
    settings = read_settings(arguments, plugins, arguments.model)
    name, why = chosen_model(settings.engine.model, plugins)

    from spinf_quant_fp8s.calibration import calibrate
    from spinf_quant_fp8s.corpus import Corpus

    # Libraries that print while a model loads must not spoil the output.
    with contextlib.redirect_stdout(sys.stderr), Progress() as progress:
        corpus = Corpus.read(arguments.corpus)
        progress(f"calibrating {name} ({why})")
        table = calibrate(name, corpus, arguments.out, arguments.headroom, settings, plugins, progress)
    made = table.provenance
    note(f"{len(table.scales):,} scales from {made['requests']:,} requests of {made['tokens']:,} tokens")
    print(arguments.out)
    return 0
