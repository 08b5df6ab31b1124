"""The paged logits for Hopper (sm90) in Gluon: 64 and 32 heads, layout split64. Upstream refuses FP4 on that GPU."""

from dsv4_kernels.hopper.logits import paged_logits

__all__ = ["paged_logits"]
