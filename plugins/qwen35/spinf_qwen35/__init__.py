"""spinf-qwen35: the Qwen3.5 family: three gated delta layers to one of attention, for text."""
