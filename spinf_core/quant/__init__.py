"""Quantization: the interface by which a scheme supplies linears, and core's own schemes. Imports `nn`, nothing of requests."""
