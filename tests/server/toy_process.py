"""`spinf serve` of the toy model, as a process: python -m tests.server.toy_process SECONDS_TO_LOAD SECONDS_OF_A_PASS FLAG…"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from spinf_core.cli.main import main
from spinf_core.server import run
from spinf_core.testing.toy import ToyModel

from .conftest import toy_loaded


class SlowModel(ToyModel):
    def forward(self, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        time.sleep(float(sys.argv[2]))
        return super().forward(pass_, past, keep)


def load(name: str, why: str, settings: Any, plugins: Any, progress: Any) -> Any:
    progress("loading the toy")
    time.sleep(float(sys.argv[1]))
    return toy_loaded(settings, SlowModel())


if __name__ == "__main__":
    torch.set_num_threads(1)
    run.load = load
    sys.exit(main(["serve", "toy", "--warmup", "none", *sys.argv[3:]]))
