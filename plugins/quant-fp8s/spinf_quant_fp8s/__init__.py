"""spinf-quant-fp8s: fp8 weights and activations, by static calibrated scales (fp8s), per token (fp8row) or per tensor (fp8)."""
