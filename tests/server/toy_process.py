"""`spinf serve` of the toy model, as a process: python -m tests.server.toy_process SECONDS_TO_LOAD SECONDS_OF_A_PASS FLAG…

Passes that hold an `é` run out of memory, and with LEAKING=1 in the environment what they took stays taken.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from spinf_core.cli.main import main
from spinf_core.engine.memory import DeviceMemory
from spinf_core.server import run
from spinf_core.testing.toy import ToyModel

from .conftest import toy_loaded


class SlowModel(ToyModel):
    def forward(self, pass_: Any, past: Any = None, keep: Any = None) -> Any:
        time.sleep(float(sys.argv[2]))
        if (pass_.ids == self.tokenizer.encode("é")[0]).any():
            raise torch.OutOfMemoryError("no memory left")
        return super().forward(pass_, past, keep)


def load(name: str, why: str, settings: Any, plugins: Any, progress: Any) -> Any:
    progress("loading the toy")
    time.sleep(float(sys.argv[1]))
    return toy_loaded(settings, SlowModel())


if __name__ == "__main__":
    if os.environ.get("LEAKING"):
        DeviceMemory.held = lambda memory: 3_000_000_000  # type: ignore[method-assign]
    torch.set_num_threads(1)
    run.load = load
    sys.exit(main(["serve", "toy", "--warmup", "none", *sys.argv[3:]]))
