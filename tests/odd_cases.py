"""Odd shapes and places of every operation, as data: which mixtures of specialisations are compiled for tests.

Triton compiles a kernel anew for numbers that are 1, multiples of 16 or neither, and for pointers that are aligned or
not. Each line here is another mixture of them.
"""

from __future__ import annotations

import torch

from odd_compress import Compress
from odd_index import Keys, Queries
from odd_logits import Logits
from odd_router import Gate, Products
from odd_rows import Rows
from odd_selection import Schedules, Selection
from odd_tensors import DENSE, Place

Case = Keys | Queries | Logits | Selection | Schedules | Rows | Compress | Products | Gate

ODD, EVEN, FAR, SHIFTED = Place(1, 1), Place(2, 2), Place(16, 16), Place(1)
"""Neither aligned nor a multiple; pairs of bfloat16 as words; rows apart, aligned; an unaligned beginning alone."""

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BOTH_ODD, ONE_ODD, BOTH_FAR = (ODD, ODD), (DENSE, ODD), (FAR, FAR)

KEYS = [
    Keys("split64", "rne_v41", False, rows=1, pages=1),
    Keys("split64", "rne_v41", False, rows=5, gap=1, k=ODD, weight=SHIFTED, angles=BOTH_ODD, integers=SHIFTED),
    Keys("split64", "aiter", True, rows=16, dtype=F32, k=SHIFTED, angles=ONE_ODD),
    Keys("split8", "rne_v41", False, rows=4, pages=1, dtype=F16, k=FAR, weight_dtype=BF16, angles=BOTH_FAR),
    Keys("split8", "rne_v41", False, rows=3, pages=3, gap=3, k=ODD, weight=SHIFTED, integers=SHIFTED, positions=1),
    Keys("split128", "aiter", True, rows=17, pages=1, dtype=F32, k=ODD, angle_dtype=BF16, angles=BOTH_ODD),
    Keys("fused_cuda", "cuda_c4", True, rows=2, gap=1, weight_dtype=F16, weight=SHIFTED, integers=SHIFTED),
    Keys("record68", "deepseek", False, rows=9, pages=1, dtype=F32, k=EVEN, angles=BOTH_ODD),
    Keys("record68", "rne_v41", False, rows=1, gap=5, k=ODD, weight=SHIFTED, angle_dtype=F16, positions=1),
    Keys("record68_n16", "aiter", True, rows=16, k=SHIFTED, integers=SHIFTED),
    Keys("record68_p128", "rne_v41", False, rows=5, gap=1, dtype=F16, k=ODD, angles=ONE_ODD, integers=SHIFTED),
]
QUERIES = [
    Queries("rne_v41", False, rows=1, heads=32, positions=1),
    Queries("rne_v41", False, rows=3, heads=32, q=ODD, weights=ODD, angles=BOTH_ODD, integers=SHIFTED),
    Queries("rne_v41", False, rows=2, heads=64, dtype=F32, q=EVEN, weight_dtype=BF16, weights=FAR, angles=ONE_ODD),
    Queries("aiter", True, rows=1, heads=16, dtype=F16, q=SHIFTED, weight_dtype=F16, weights=SHIFTED),
    Queries("aiter", True, rows=5, heads=48, dtype=F32, q=ODD, weights=ODD, angle_dtype=BF16, angles=BOTH_FAR),
    Queries("cuda_c4", True, rows=2, heads=112, q=FAR, weight_dtype=BF16, weights=ODD, integers=SHIFTED),
    Queries("deepseek", False, rows=4, heads=128, q=ODD, weights=FAR, angle_dtype=F16, angles=BOTH_ODD),
]
EDGES = (0, 1, 63, 64, 65, 130)
LOGITS = [
    Logits("split64", (1,), heads=32),
    Logits("split64", EDGES, heads=64, gap=1, weights=ODD, table=ODD, integers=SHIFTED, out=ODD, spare_columns=1),
    Logits("split64", EDGES, heads=16, seqs=(0, 0, 1, 1, 1, 2), weight_dtype=BF16, weights=ODD, out=EVEN),
    Logits("split64", EDGES, heads=32, seqs=(0, 0, 0, 0, 0, 1), starts=(0, 0, 7, 63, 64, 130), integers=SHIFTED),
    Logits("split64", EDGES, heads=48, starts=(0, 1, 0, 63, 2, 65), weights=FAR, table=FAR, out=FAR),
    Logits("split8", (0, 1, 7, 8, 9, 65), heads=32, gap=3, weights=ODD, table=ODD, integers=SHIFTED, out=ODD),
    Logits("split8", (8, 9, 9, 64), heads=128, seqs=(0, 0, 0, 3), pages=17, weight_dtype=F16, table=ODD),
    Logits("split128", (127, 128, 129), heads=64, gap=2, weights=SHIFTED, out=ODD, spare_columns=70),
    Logits("fused_cuda", EDGES, heads=112, gap=1, weights=ODD, table=ODD, integers=SHIFTED, out=ODD),
    Logits("record68", EDGES, heads=32, entry=8, gap=3, weights=ODD, table=ODD, integers=SHIFTED, out=ODD),
    Logits("record68", (40, 3, 64), heads=64, entry=8, seqs=(1, 1, 1), weight_dtype=BF16, weights=FAR),
    Logits("record68_n16", (1, 66), heads=16, entry=16, weights=ODD, out=SHIFTED),
    Logits("record68_p128", (5, 200, 129), heads=64, gap=1, weights=ODD, table=SHIFTED, integers=SHIFTED),
    Logits("record68_p128", (5, 24, 129), heads=32, entry=8, table=ODD, out=ODD),
]
LENGTHS = (0, 1, 7, 8, 9, 64, 65)
SELECTIONS = [
    Selection(1, (0, 1, 1), 1, page_slots=1),
    Selection(65, LENGTHS, 3, logits=ODD, table=ODD, integers=SHIFTED, page_slots=3),
    Selection(65, LENGTHS, 64, True, shared=True, logits=FAR, table=ODD, integers=SHIFTED, page_slots=8),
    Selection(80, LENGTHS, 31, True, shared=True, logits=SHIFTED, page_slots=7),
    Selection(1025, (1025, 1024, 1023, 3), 65, logits=ODD, table=FAR, integers=SHIFTED),
]
SCHEDULES = [
    Schedules(1, 5000),
    Schedules(1, 5000, spare=15, integers=SHIFTED),
    Schedules(17, 1, integers=SHIFTED),
    Schedules(16, 4096, spare=16),
    Schedules(1025, 131072, spare=300, integers=SHIFTED),
    Schedules(257, 255, spare=1023, integers=SHIFTED),
]
ROWS = [
    Rows("v4", 1, 1, rows=1, positions=1),
    Rows("v4", 2, 5, ODD, 5, kv=ODD, weight=SHIFTED, angles=BOTH_ODD, integers=SHIFTED, heads=17, query=ODD),
    Rows("v4", 64, 1, EVEN, 16, F32, kv=SHIFTED, heads=1, query_dtype=F32, query=ODD, out_dtype=F32),
    Rows("v4", 3, 3, FAR, 9, F16, weight_dtype=BF16, kv=ODD, weight=SHIFTED, heads=16, query_dtype=F16, query=EVEN),
    Rows("v4", 2, 4, ODD, 4, kv=EVEN, weight_dtype=F16, angle_dtype=BF16, angles=ONE_ODD, heads=2, query=EVEN),
    Rows("v4_interleaved", 2, 5, ODD, 5, kv=ODD, weight=SHIFTED, angles=BOTH_ODD, integers=SHIFTED, heads=3, query=ODD),
    Rows("v4_interleaved", 5, 1, EVEN, 3, F32, kv=ODD, angles=BOTH_FAR, heads=1, query_dtype=F32, query=FAR),
    Rows("v41", 1, 1, rows=1, positions=1, heads=1, query=SHIFTED),
    Rows("v41", 256, 1, ODD, 17, kv=ODD, weight=SHIFTED, angles=BOTH_ODD, integers=SHIFTED, heads=17, query=ODD),
    Rows("v41", 3, 5, ODD, 5, F32, kv=EVEN, weight_dtype=BF16, weight=SHIFTED, out_dtype=F32, angle_dtype=F16),
    Rows("v41", 2, 16, FAR, 16, F16, kv=FAR, weight_dtype=F16, heads=16, query=FAR),
    Rows("v41", 2, 5, SHIFTED, 5, kv=EVEN, integers=SHIFTED, heads=2, query=SHIFTED),
    Rows("v41_interleaved", 3, 3, ODD, 9, kv=ODD, weight=SHIFTED, angles=BOTH_ODD, integers=SHIFTED, heads=1),
    Rows("v41_interleaved", 2, 1, EVEN, 2, F32, kv=SHIFTED, heads=0, out_dtype=F32),
    Rows("v41_fp4", 1, 1, rows=1, positions=1),
    Rows("v41_fp4", 256, 1, ODD, 17, kv=ODD, weight=SHIFTED, angles=BOTH_ODD, integers=SHIFTED, heads=17, query=ODD),
    Rows("v41_fp4", 3, 5, ODD, 5, F32, kv=ODD, weight_dtype=BF16, weight=SHIFTED, out_dtype=F32),
    Rows("v41_fp4", 2, 5, EVEN, 4, F16, kv=FAR, angle_dtype=BF16, heads=3, query_dtype=F32, query=SHIFTED),
    Rows("v41_fp4", 2, 5, SHIFTED, 16, kv=EVEN, integers=SHIFTED, angles=ONE_ODD),
    Rows("v41_fp4_interleaved", 3, 3, ODD, 9, kv=ODD, weight=SHIFTED, angles=BOTH_ODD, integers=SHIFTED, heads=2),
    Rows("v41_fp4_interleaved", 1, 16, FAR, 16, F32, kv=EVEN, out_dtype=F32),
]
COMPRESSORS = [
    Compress(1, (1,), page_rows=1),
    Compress(1, (5, 3), strange=True, dtype=BF16, projected=ODD, weight=SHIFTED, pool=ODD, integers=SHIFTED),
    Compress(1, (5, 12), dtype=F16, projected=EVEN, weight_dtype=BF16, layout="v41", pool=ODD, angles=BOTH_ODD),
    Compress(1, (9,), dtype=BF16, projected=EVEN, weight_dtype=F16, layout="v4", pool=EVEN, angle_dtype=BF16),
    Compress(1, (4, 4), strange=True, projected=ODD, store=False, integers=SHIFTED),
    Compress(2, (1, 2), page_rows=1, has_ape=False),
    Compress(2, (9, 4, 6), 3, 4, strange=True, projected=ODD, weight=SHIFTED, ape=SHIFTED, ring=ODD, pool=ODD,
             angles=BOTH_ODD, integers=SHIFTED),
    Compress(2, (30, 2), 0, 30, "v41", page_rows=3, projected=EVEN, weight_dtype=BF16, ring=FAR, pool=FAR),
    Compress(2, (17, 5), 7, 30, "v41_interleaved", has_ape=False, projected=ODD, angle_dtype=F16, ring=ODD, pool=EVEN),
    Compress(2, (16, 7), 6, 7, "v41_fp4_interleaved", weight_dtype=F16, projected=ODD, ring=SHIFTED, angles=ONE_ODD),
    Compress(2, (9, 9), 1, 2, store=False, strange=True, projected=ODD, ring=ODD, integers=SHIFTED),
    Compress(4, (13, 5), 3, 4, "v4", strange=True, projected=ODD, weight=SHIFTED, ape=SHIFTED, ring=ODD, pool=ODD,
             angles=BOTH_ODD, integers=SHIFTED),
    Compress(4, (40, 3), 0, 30, "v4", page_rows=64, has_ape=False, projected=FAR, ring=FAR, pool=EVEN),
    Compress(4, (21,), 5, 30, "v4_interleaved", projected=EVEN, weight_dtype=BF16, ring=ODD, pool=ODD),
    Compress(4, (13, 9), 0, 4, index="split64", projected=ODD, weight=SHIFTED, ape=SHIFTED, ring=ODD, pool=ODD,
             angles=BOTH_ODD, integers=SHIFTED),
    Compress(4, (30, 1), 2, 30, index="split8", hadamard=True, projected=FAR, ring=FAR, weight_dtype=BF16),
    Compress(2, (9, 3), 2, 3, index="record68", strange=True, has_ape=False, projected=EVEN, ring=ODD, pool=ODD),
    Compress(128, (260,), 0, 256, "v4", strange=True, projected=ODD, weight=SHIFTED, ape=SHIFTED, ring=ODD, pool=ODD,
             angles=BOTH_ODD, integers=SHIFTED),
    Compress(128, (257,), 2, 200, index="split64", projected=ODD, ring=ODD, integers=SHIFTED),
]  # fmt: skip
PRODUCTS = [
    Products(1, 1, 1),
    Products(17, 513, 20, x=ODD, weight=ODD),
    Products(16, 512, 16, x=SHIFTED),
    Products(1, 600, 33, weight=SHIFTED),
    Products(1, 1100, 1, x=ODD),
    Products(33, 1040, 1, x=EVEN, weight=FAR),
    Products(5, 15, 17, x=FAR, weight=EVEN),
    Products(2, 1600, 256, x=FAR, weight=FAR),
    Products(65, 600, 513, x=ODD, weight=ODD),
    Products(257, 1040, 33, x=SHIFTED, weight=FAR),
]
GATES = [
    Gate(1, 1, 1, 1),
    Gate(1, 5, 16, 3, start=1),
    Gate(2, 4, 17, 17, renormalise=False),
    Gate(16, 3, 65, 8, start=1),
    Gate(10, 3, 384, 6, biased=False),
    Gate(3, 2, 511, 31, start=2),
    Gate(7, 16, 512, 32, renormalise=False, start=3),
]
LARGE: list[Case] = [
    Selection(3001, (3001, 2049, 512, 0), 512, True, logits=ODD, table=ODD, shared=True, page_slots=128),
    Selection(2064, (2064, 100), 512, logits=EVEN, integers=SHIFTED),
    Selection(4111, (4111, 2048, 2047), 2048, True, logits=ODD, integers=SHIFTED),
    Compress(128, (130, 257), 7, 8, "v41", has_ape=False, projected=EVEN, ring=FAR),
]
"""These take long where they are not compiled."""
CASES: list[Case] = [*COMPRESSORS, *LOGITS, *ROWS, *SELECTIONS, *KEYS, *QUERIES, *PRODUCTS, *GATES, *SCHEDULES]
