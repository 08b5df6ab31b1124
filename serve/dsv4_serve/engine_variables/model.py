"""SGLang's variables of the model's weights and prompts, of engram tables, of DSpark, and of extensions."""

from __future__ import annotations

from dsv4_serve.engine_variables.variable import INTEGER, LIST, SWITCH, TEXT, Variable, choice

WEIGHTS: tuple[Variable, ...] = (
    Variable("SGLANG_DSV4_FP4_EXPERTS", SWITCH, True, "experts stay in FP4"),
    Variable("SGLANG_DSV4_FP4_DEQUANT", SWITCH, False, "experts are expanded when they are loaded"),
    Variable("SGLANG_DSV4_REASONING_EFFORT", TEXT, "", "V4: effort where a request names none"),
    Variable("SGLANG_DSV41_REASONING_EFFORT", TEXT, None, "V4.1: the same"),
)

ENGRAM: tuple[Variable, ...] = (
    Variable("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE", SWITCH, False, "engram tables in host memory"),
    Variable("SGLANG_DSV41_ENGRAM_HOST_TABLE_LAYOUT", TEXT, "shared", "whether ranks share one host table"),
    Variable("SGLANG_OPT_DSV41_ENGRAM_HOST_STAGING", SWITCH, False, "rows of host tables through a staging buffer"),
    Variable("SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS", SWITCH, False, "tables spread over the devices"),
    Variable("SGLANG_OPT_ENGRAM_EXTEND_HASH", SWITCH, False, "hashes of a prefill in one kernel"),
    Variable("SGLANG_OPT_DSV41_MEGA_MHC_PREFILL", SWITCH, False, "hyper-connections of a prefill in one kernel"),
)

DSPARK: tuple[Variable, ...] = (
    Variable(
        "SGLANG_RAGGED_VERIFY_MODE",
        choice("static", "cap-accept", "compact"),
        "static",
        "verify rows: fixed or by request",
    ),
    Variable("SGLANG_HIP_DSPARK_DRAFT_RAW_METADATA", SWITCH, True, "draft metadata inside the graph"),
    Variable("SGLANG_DSPARK_FAST_KERNEL", SWITCH, True, "compiled draft step"),
    Variable("SGLANG_DSPARK_FOLDED_PROPOSAL", SWITCH, True, "proposal folded into the draft's last step"),
    Variable("SGLANG_DSPARK_STACKED_CTX_KV", SWITCH, True, "context KV of all draft layers at once"),
    Variable("SGLANG_DSPARK_EMBED_IN_GRAPH", SWITCH, True, "embedding inside the draft's graph"),
    Variable("SGLANG_DSPARK_OPT_MARKOV_W2_BF16", SWITCH, True, "Markov head in bf16"),
    Variable("SGLANG_DSPARK_OPT_MARKOV_W2_TP_SHARD", SWITCH, True, "Markov head spread over ranks"),
    Variable("SGLANG_DSPARK_NVLINK_VOCAB_GATHER", SWITCH, True, "vocabulary gathered by peers"),
    Variable("SGLANG_DSPARK_ENABLE_MULTI_STREAM", SWITCH, True, "draft and target on two streams"),
    Variable("SGLANG_DSPARK_FP32_LM_HEAD", SWITCH, False, "draft head in float32"),
    Variable("SGLANG_DSPARK_USE_GREEDY_DRAFT", SWITCH, False, "the draft takes its best token"),
    Variable("SGLANG_DSPARK_SIMULATE_FOLD", SWITCH, False, "acceptance is simulated: for benchmarks alone"),
    Variable("SGLANG_DSPARK_CONFIDENCE_RELAY_LAG_STEPS", INTEGER, 2, "how old a confidence may be"),
    Variable("SGLANG_OPT_DSV41_DSPARK_POST_FOLD", SWITCH, False, "fold behind the verify"),
    Variable("SGLANG_OPT_DSV41_DSPARK_MID_FOLD", SWITCH, False, "fold inside the verify"),
    Variable("SGLANG_OPT_DSV41_DSPARK_PREPARE_INPUTS_ONCE", SWITCH, False, "one preparation for all draft steps"),
    Variable("SGLANG_OPT_DSV41_TARGET_VERIFY_METADATA_GLUE", SWITCH, False, "verify metadata by one kernel"),
    Variable("SGLANG_OPT_DSV41_TARGET_METADATA_EARLY", SWITCH, False, "verify metadata before the draft ends"),
    Variable("SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH", SWITCH, False, "what follows a forward in a graph"),
    Variable("SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH", SWITCH, False, "acceptance in a graph"),
    Variable("SGLANG_OPT_SKIP_GLUED_REPLAY_VIEW", SWITCH, False, "replays without a view of their metadata"),
)

EXTENSION: tuple[Variable, ...] = (
    Variable("SGLANG_PLUGINS", LIST, "", "plugins that are loaded, all by default; must hold dsv4"),
    Variable("SGLANG_PLATFORM", TEXT, "", "an out-of-tree platform"),
    Variable("SGLANG_EXTERNAL_MODEL_PACKAGE", TEXT, "", "a package whose models replace SGLang's"),
    Variable("SGLANG_LOGGING_CONFIG_PATH", TEXT, None, "a logging configuration in JSON"),
    Variable("SGLANG_HOST_IP", TEXT, None, "this machine's address among several"),
    Variable("SGLANG_LOCAL_IP_NIC", TEXT, None, "the network interface of that address"),
)
