"""Our part inside vLLM's processes: a general plugin that serves the MXFP4 index where AITER does not."""
