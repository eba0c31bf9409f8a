"""The kit for authors of plugins.

- `conformance.StackConformance` and `tokenizers.TokenizerConformance`: what any stack and any tokenizer must pass.
- `toy`: a toy stack with an oracle. `toy_plugin`: a plugin around it, and `toy_engine`, an engine that loads in a second.
- `requests`: short requests, and every unrounded number of a response.

May import everything of core; needs the `testing` extra.
"""
