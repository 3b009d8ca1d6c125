"""`kda_forward` for Hopper GPUs, DK = DV = 128: one launch prepares every chunk, one walks the state over them."""

from kda.kernels.hopper.launching import launch

__all__ = ["launch"]
