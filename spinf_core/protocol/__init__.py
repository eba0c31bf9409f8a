"""The scoring API's request and response: what is sent, what may be refused without a tokenizer, what is answered.

The way of a request: bytes → `wire` → a JSON value → `structuring` → `request` objects → `parse` (with `templates`,
`combinations` and `queries`) → `ParsedRequest`, which the compiler takes. Imports attrs, cattrs and the standard
library only.
"""

from spinf_core.protocol.features import Features
from spinf_core.protocol.parse import ParsedInput, ParsedRequest, parse_request
from spinf_core.protocol.queries import Extraction, Kind, ParsedQuery
from spinf_core.protocol.request import ScoreRequest
from spinf_core.protocol.response import ScoreResponse, Warning, request_id
from spinf_core.protocol.templates import Template
from spinf_core.protocol.wire import json_loads

__all__ = [
    "Extraction",
    "Features",
    "Kind",
    "ParsedInput",
    "ParsedQuery",
    "ParsedRequest",
    "ScoreRequest",
    "ScoreResponse",
    "Template",
    "Warning",
    "json_loads",
    "parse_request",
    "request_id",
]
