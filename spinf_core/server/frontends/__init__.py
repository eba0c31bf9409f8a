"""Core's own front ends: the scoring API and its chat alias."""
