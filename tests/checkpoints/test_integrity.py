"""A checkpoint folder that is not whole is named at once, with the file and the mend."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from spinf_core.checkpoints import check_folder, read_tensors
from spinf_core.errors import SetupError

SECOND = "model-00002-of-00003.safetensors"


def test_a_whole_checkpoint_passes_and_gives_its_config(checkpoint: Path) -> None:
    assert check_folder(checkpoint) == {"model_type": "llama"}


def test_headers_agree_with_the_safetensors_library(checkpoint: Path) -> None:
    tensors = read_tensors(checkpoint)
    for name, info in tensors.items():
        with safe_open(checkpoint / info.file, framework="np") as file:
            theirs = file.get_slice(name)
            assert (theirs.get_dtype(), tuple(theirs.get_shape())) == (info.dtype, info.shape)
    assert len(tensors) == 3


def test_a_missing_shard_is_named(checkpoint: Path) -> None:
    (checkpoint / SECOND).unlink()
    with pytest.raises(SetupError, match=f"shard {SECOND} is missing; fetch it again with `x`"):
        check_folder(checkpoint, "fetch it again with `x`")


def test_a_shard_cut_by_a_kilobyte_is_named(checkpoint: Path) -> None:
    path = checkpoint / SECOND
    path.write_bytes(path.read_bytes()[:-1024])
    with pytest.raises(SetupError, match=f"shard {SECOND} is 1,024 bytes short; fetch it again with `x`"):
        check_folder(checkpoint, "fetch it again with `x`")


def test_a_shard_with_a_tail_is_named(checkpoint: Path) -> None:
    with (checkpoint / SECOND).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(SetupError, match=f"shard {SECOND} is 1 bytes too long"):
        check_folder(checkpoint)


@pytest.mark.parametrize("size", [0, 5, 8, 60])
def test_a_shard_cut_inside_its_header_is_named(checkpoint: Path, size: int) -> None:
    path = checkpoint / SECOND
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(SetupError, match=f"shard {SECOND} ends inside its header"):
        check_folder(checkpoint)


@pytest.mark.parametrize(
    "content",
    [
        b"<!DOCTYPE html>" * 100,
        (20).to_bytes(8, "little") + b"[1]" + b" " * 17,
        (9).to_bytes(8, "little") + b'{"a":{}}}',
    ],
)
def test_what_is_no_safetensors_file_is_refused(checkpoint: Path, content: bytes) -> None:
    (checkpoint / SECOND).write_bytes(content)
    with pytest.raises(SetupError, match=f"shard {SECOND} has (no|a) safetensors header"):
        check_folder(checkpoint)


def test_a_tensor_that_the_index_puts_elsewhere_is_named(checkpoint: Path) -> None:
    save_file({"other": np.zeros(1, np.float32)}, checkpoint / SECOND)
    with pytest.raises(SetupError, match=r"tensor layer\.2\.weight is not in " + SECOND):
        check_folder(checkpoint)


def test_an_index_cannot_lead_out_of_its_folder(checkpoint: Path) -> None:
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(SetupError, match="no valid weight_map"):
        check_folder(checkpoint)


@pytest.mark.parametrize(("content", "fault"), [(None, "missing"), ("{", "not valid JSON"), ("[]", "not a JSON object")])
def test_a_bad_config_is_named(checkpoint: Path, content: str | None, fault: str) -> None:
    config = checkpoint / "config.json"
    config.unlink() if content is None else config.write_text(content)
    with pytest.raises(SetupError, match=rf"config\.json is {fault}"):
        check_folder(checkpoint)


def test_pickled_weights_are_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(SetupError, match=r"pytorch_model\.bin, a pickle.*convert"):
        check_folder(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SetupError, match=r"neither model.safetensors nor model.safetensors.index.json"):
        check_folder(tmp_path)


def test_checkpoints_import_nothing_heavy() -> None:
    code = (
        "import sys, spinf_core.checkpoints; "
        "sys.exit(str([m for m in ('torch', 'transformers', 'huggingface_hub', 'numpy') if m in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""
