"""From a parsed request and a tokenizer to jobs: contents and their cuts, options, token tries, reads and floors.

Imports `protocol`, numpy and the tokenizer; no torch.
"""
