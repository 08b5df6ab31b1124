"""The stand-in under vLLM's command line, with vLLM 0.33.0's routes and metric names: no vLLM runs here.

Called as `vllm serve MODEL --port N ...`. What it reports of itself comes from those words, so that the launcher
holds what it asked for against what arrived. STANDIN_ARGS: `--rate` and `--lag` of `standin.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import uvicorn

from serve.standin import Standin
from serve.standin_answers import Receive, Scope, Send, reply, reply_text

METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="{block_size}",cache_dtype="{cache_dtype}",enable_prefix_caching="{caching}",\
engine="0",kv_cache_size_tokens="1000000",num_gpu_blocks="3907"}} 1.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}
"""


class VllmStandin(Standin):
    """`words`: the command line that it was started by."""

    words: argparse.Namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/version":
            await reply(send, 200, {"version": "0.33.0"})
        elif path == "/metrics":
            await reply_text(send, METRICS.format(**self.reported()))
        elif path == "/v1/models":
            model = {"id": self.words.served_model_name, "max_model_len": self.words.max_model_len}
            await reply(send, 200, {"object": "list", "data": [model]})
        elif path == "/server_info":
            await reply(send, 404, {"detail": "Not Found"})
        else:
            await super().__call__(scope, receive, send)

    def reported(self) -> dict[str, Any]:
        lagging = int(time.monotonic() - self.last_end < self.lag)
        return {
            "block_size": self.words.block_size,
            "cache_dtype": self.words.kv_cache_dtype,
            "caching": self.words.caching,
            "running": self.running or lagging,
            "generated": self.generated,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--block-size", required=True)
    parser.add_argument("--kv-cache-dtype", required=True)
    parser.add_argument("--enable-prefix-caching", dest="caching", action="store_true")
    parser.add_argument("--disable-prefix-caching", dest="caching", action="store_false")
    words, _ = parser.parse_known_args()
    behaviour = argparse.ArgumentParser()
    behaviour.add_argument("--rate", type=float, default=50.0)
    behaviour.add_argument("--lag", type=float, default=0.0)
    standin = VllmStandin(**vars(behaviour.parse_args(json.loads(os.environ.get("STANDIN_ARGS", "[]")))))
    standin.words = words
    print("vllm stand-in: " + " ".join(sys.argv[1:]), flush=True)
    uvicorn.run(standin, host="127.0.0.1", port=words.port, log_level="error", lifespan="off", access_log=False)


if __name__ == "__main__":
    main()
