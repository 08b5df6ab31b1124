"""Main KV rows on gfx950, compressed ones too: the portable kernels with that machine's conversions of several values.

Whether they convert as the emulator does, which is by AMD's published text, the known-answer test at start decides on
the device; without them the portable backend serves.
"""

from functools import partial

from dsv4_kernels.portable import compress, kv_dequantize, kv_norm_rope, kv_store

store_kv = partial(kv_store.store_kv, machine="gfx950")
norm_rope_store_kv = partial(kv_norm_rope.norm_rope_store_kv, machine="gfx950")
dequantize_kv = partial(kv_dequantize.dequantize_kv, machine="gfx950")
compress_tokens = partial(compress.compress_tokens, machine="gfx950")
compress_kv = partial(compress.compress_kv, machine="gfx950")
