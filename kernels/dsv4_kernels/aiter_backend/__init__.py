"""The pinned AITER's own kernels behind our operations: queries, keys and paged logits in layout split64.

Each name of AITER is looked up and its signature checked when its operation is first called, which is the known-answer
test at start: an AITER that lacks a name, changed it, or computes something else loses that operation alone.
"""

from dsv4_kernels.aiter_backend.logits import paged_logits, rowgroup_logits
from dsv4_kernels.aiter_backend.quantize import quantize_query, write_index_keys

__all__ = ["paged_logits", "quantize_query", "rowgroup_logits", "write_index_keys"]
