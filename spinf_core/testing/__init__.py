"""The kit for authors of plugins: a toy stack, and the conformance suite that any stack must pass.

May import everything of core; needs the `testing` extra.
"""
