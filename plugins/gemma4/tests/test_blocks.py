"""Rows of an image see one another: the stack beside transformers under transformers' own masks, here on rows of text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from spinf_gemma4.stack import load

from spinf_core.compiler.jobs import split
from spinf_core.engine.packing import lay_out
from spinf_core.engine.probes import Probe
from spinf_core.quant.unquantized import Unquantized
from spinf_core.stack import LoadContext
from spinf_core.testing.conformance import SIZES, log_probabilities

sys.path.insert(0, str(Path(__file__).parent))

import tiny

BLOCKS = ((3, 12), (12, 20), (50, 95))  # the last is longer than the window of 24 and reaches over a tile's end
CONTENT = 110


def transformers_masks(variant: str, model: Any, ids: torch.Tensor, block: torch.Tensor) -> dict[str, torch.Tensor]:
    from transformers.masking_utils import create_masks_for_generate
    from transformers.models.gemma4.modeling_gemma4 import create_masks_for_vision_model

    embedded = model.get_input_embeddings()(ids)
    positions = torch.arange(ids.shape[1])[None]
    make = create_masks_for_generate if variant == "unified" else create_masks_for_vision_model
    masks: dict[str, torch.Tensor] = make(
        config=model.config,
        inputs_embeds=embedded,
        attention_mask=None,
        cache=None,
        position_ids=positions,
        block_sequence_ids=block,
    )
    return masks


@pytest.mark.parametrize("variant", ["unified", "plain"])
@torch.inference_mode()
def test_equals_transformers(variant: str, tmp_path: Path) -> None:
    theirs: Any = tiny.make(variant, use_bidirectional_attention="vision")
    folder = tiny.save(theirs, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    ours = load(LoadContext(folder=folder, config=config, device=torch.device("cpu"), scheme=Unquantized("fp32")))
    content, *branches = (
        tuple(np.random.default_rng(seed).integers(0, 512, count).tolist()) for seed, count in ((1, CONTENT), (2, 3), (3, 30))
    )
    job = Probe(content, tuple(branches)).job()
    batch = lay_out([next(split(job, job.rows))], SIZES)
    pass_, rows = batch.pass_, batch.read_rows(0)
    block = pass_.block.copy()
    for number, (first, stop) in enumerate(BLOCKS):
        block[first:stop] = number
    found = log_probabilities(ours, ours.forward(attrs.evolve(pass_, block=block))[0][rows])
    without = log_probabilities(ours, ours.forward(pass_)[0][rows])

    for branch, row, plain in zip(branches, found, without, strict=True):
        ids = torch.tensor([[*content, *branch]])
        block_ids = torch.full(ids.shape, -1)
        block_ids[0, :CONTENT] = torch.from_numpy(block[:CONTENT])
        logits = theirs(ids, attention_mask=transformers_masks(variant, theirs, ids, block_ids)).logits[0, -1]
        torch.testing.assert_close(row, logits.log_softmax(-1), atol=1e-4, rtol=0)
        assert (row - plain).abs().max() > 1e-3


@torch.inference_mode()
def test_a_checkpoint_that_says_nothing_of_them_reads_them_in_order(tmp_path: Path) -> None:
    folder = tiny.save(tiny.make("small"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    model = load(LoadContext(folder=folder, config=config, device=torch.device("cpu"), scheme=Unquantized("fp32")))
    job = Probe(tuple(range(80)), ((1, 2), (3,))).job()
    pass_ = lay_out([next(split(job, job.rows))], SIZES).pass_
    block = pass_.block.copy()
    block[10:70] = 0
    assert torch.equal(model.forward(attrs.evolve(pass_, block=block))[0], model.forward(pass_)[0])
