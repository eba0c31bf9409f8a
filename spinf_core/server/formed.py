"""`POST /v0/score`: prompts that are already formed, each with its options; no template, no floor.

{"prompts": [{"id": "a", "prompt": "The sky is", "options": [" blue", " red"]}], "case_insensitive": true}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spinf_core.errors import Rejected
from spinf_core.protocol import ScoreResponse, json_loads

Formed = dict[str, Any]


def formed_request(body: bytes) -> Formed:
    """The scoring request that asks the same: each prompt a content whose only question is the bare slot.

    Raises:
        Rejected: `invalid_json`, or `invalid_field` naming `prompts` or one of them.
    """
    value = json_loads(body)
    if not isinstance(value, Mapping) or not isinstance(value.get("prompts"), list) or not value["prompts"]:
        raise Rejected("invalid_field", "prompts must be a list of at least one {prompt, options}", "prompts")
    inputs = []
    for number, prompt in enumerate(value["prompts"]):
        if not isinstance(prompt, Mapping):
            raise Rejected("invalid_field", f"prompts.{number} must be an object", f"prompts.{number}")
        inputs.append(
            {
                **({"id": prompt["id"]} if "id" in prompt else {}),
                "messages": [{"role": "user", "content": prompt.get("prompt")}],
                "queries": [{"id": "prompt", "template": "{?}", "options": prompt.get("options")}],
            }
        )
    scoring = {"empty_floor": False, "case_insensitive": value.get("case_insensitive", True)}
    return {"model": value.get("model"), "inputs": inputs, "scoring": scoring}


def translate(error: Rejected) -> Rejected:
    """An error about the request that was made, in terms of the one that was sent."""
    param = error.param or ""
    for made, sent in ((".messages.0.content", ".prompt"), (".messages", ".prompt"), (".queries.0", "")):
        param = param.replace(made, sent)
    param = param.replace("inputs", "prompts", 1).replace("scoring.", "", 1)
    return Rejected(error.code, error.message, param or None, error.retry_after)


def formed_response(response: ScoreResponse) -> dict[str, Any]:
    """Options by prompt, rounded as in the public response."""
    public = response.to_dict()
    results = []
    for entry in public["results"]:
        (combination,) = entry["queries"][0]["combinations"]
        options = [{name: option[name] for name in ("text", "logprob", "p")} for option in combination["options"]]
        results.append({"id": entry["input_id"], "options": options, "residual": combination["residual"]})
    kept = ("id", "created", "model", "system_fingerprint", "usage", "timing")
    return {name: public[name] for name in kept} | {"object": "formed_score", "results": results}
