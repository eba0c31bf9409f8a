"""spinf-gemma4: the Gemma 4 family: the unified 12B, the 31B, the small ones with per-layer embeddings, mixture of experts."""
