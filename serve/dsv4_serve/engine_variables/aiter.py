"""AITER's variables that reach the index path, and those by which its kernels are built, tuned and logged."""

from __future__ import annotations

from dsv4_serve.engine_variables.variable import INTEGER, SWITCH, TEXT, Variable, choice

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

AITER: tuple[Variable, ...] = (
    Variable("AITER_LOG_LEVEL", choice(*LEVELS), "INFO", "what AITER logs"),
    Variable("AITER_LOG_MORE", INTEGER, 0, "1: the log names file and line"),
    Variable("AITER_LOG_TUNED_CONFIG", INTEGER, 0, "1: log each tuned configuration that is used"),
    Variable(
        "AITER_JIT_DIR", TEXT, None, "where kernels that are compiled at run time lie; the user's cache by default"
    ),
    Variable("AITER_REBUILD", INTEGER, 0, "1 or 2: compile again what is there; minutes on the first request"),
    Variable("AITER_ASM_DIR", TEXT, None, "where assembled kernels lie; AITER's own folder by default"),
    Variable("AITER_META_DIR", TEXT, None, "AITER's data folder"),
    Variable("AITER_GPU_ARCHS", TEXT, None, "architectures to compile for; the device's by default"),
    Variable("AITER_TRITON_ONLY", SWITCH, False, "no compiled module: the FP4 writers are then missing"),
    Variable("AITER_USE_SYSTEM_TRITON", INTEGER, 0, "1: the installed Triton instead of AITER's"),
    Variable("AITER_ENABLE_EXPERIMENTAL", INTEGER, 0, "1: kernels that AITER calls experimental"),
    Variable("AITER_BYPASS_TUNE_CONFIG", INTEGER, 0, "1: no tuned configuration of experts"),
    Variable("AITER_ONLINE_TUNE", SWITCH, False, "experts are tuned at run time: stalls live requests"),
    Variable("AITER_KSPLIT", INTEGER, 0, "split of the experts' inner dimension; 0 by its own rule"),
    Variable("AITER_BF16_FP8_MOE_BOUND", INTEGER, 256, "rows from which experts take FP8 activations"),
    Variable("AITER_MOE_SORT_BACKEND", TEXT, "auto", "how tokens are sorted by expert"),
    Variable("AITER_FLYDSL_FORCE", SWITCH, True, "experts by FlyDSL where it can"),
    Variable("AITER_QUICK_REDUCE_QUANTIZATION", TEXT, "NONE", "all-reduce in fewer bits: changes results"),
    Variable("FLYDSL_GPU_ARCH", TEXT, None, "architecture that FlyDSL compiles for; the device's by default"),
    Variable("FLYDSL_RUNTIME_CACHE_DIR", TEXT, None, "where FlyDSL's kernels lie; AITER's cache by default"),
    Variable("FLYDSL_RUNTIME_RUN_ONLY", SWITCH, False, "a FlyDSL kernel that is not in the cache is an error"),
)
