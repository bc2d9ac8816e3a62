"""Kernels of our own in Triton for GPUs. Its modules are imported only where a device uses them."""

LAUNCH_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
"""Options of every launch. Products and sums are fused, as in matrix products; the default depends on the version."""
