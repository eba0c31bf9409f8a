"""How long the command line takes to start, beside the imports that it cannot do without.

    python benchmarks/start_up.py

`spinf score` runs one small request with the default model's weights in the cache: with the self-test's result kept from a run
before, and with the self-test run again.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

REPEATS = 5
REQUEST = {
    "messages": [{"role": "user", "content": "I was charged twice for September, please refund one of the charges."}],
    "scoring": {
        "queries": [
            {"id": "refund", "template": "\n\nDoes the customer ask for a refund?\nAnswer:{?}", "options": [" yes", " no"]}
        ]
    },
}


def seconds(command: Sequence[str]) -> float:
    """Wall time of a process that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    python = sys.executable
    spinf = [python, "-m", "spinf_core.cli.main"]
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "request.json"
        request.write_text(json.dumps(REQUEST))
        score = [*spinf, "score", str(request), "smollm2-135m"]
        commands = {
            'python -c "import attrs, cattrs, pluggy"': [python, "-c", "import attrs, cattrs, pluggy"],
            "spinf --help": [*spinf, "--help"],
            "spinf models": [*spinf, "models"],
            'python -c "import torch"': [python, "-c", "import torch"],
            'python -c "import torch, transformers"': [python, "-c", "import torch, transformers"],
            "spinf score, self-test kept": score,
            "spinf score, self-test run": [*score, "--self-test"],
            "spinf score --quant bf16, self-test kept": [*score, "--quant", "bf16"],
            "spinf score --quant bf16, self-test run": [*score, "--quant", "bf16", "--self-test"],
        }
        print(f"medians of {REPEATS}, after one run that is not counted")
        print("| command | seconds |\n|---|---|")
        for name, command in commands.items():
            seconds(command)
            print(f"| `{name}` | {statistics.median(seconds(command) for _ in range(REPEATS)):.2f} |", flush=True)


if __name__ == "__main__":
    main()
