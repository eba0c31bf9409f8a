"""Kernels in Triton, which is imported only here. Each has a plain torch twin; tests run it in Triton's interpreter."""
