"""Prompt packs, in pure Python on the standard library."""
