"""What model files are made of: linear, norm, rotary, embedding, head, tree attention, the gated delta rule.

Imports `spinf_core.stack` and torch; knows nothing of requests.
"""
