"""DeepSeek-V4.1: shared low-ratio KV in FP4, two-level index selection, delayed hyper-connections, n-gram memory."""
