"""Records what the real server exports, before and after known requests, for tests without an engine.

    cd tests/sglang && PYTHONPATH=.:..:../../serve:../../kernels .venv/bin/python -m simulated_server.record_metrics

Only families that the launcher translates are kept. The requests: one prompt of 300 tokens twice, then a streamed chat
of 9 tokens that is answered with 12.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import httpx

from dsv4_serve.engines.sglang_metrics import RULES
from serve.harness import MODEL, Launcher, chat_body
from simulated_server import running

RECORDED = running.ROOT / "tests" / "serve" / "sglang_metrics"
SECONDS = 600.0
SOURCES = sorted({rule.source for rule in RULES})
KEPT = re.compile(rf"(# (HELP|TYPE) )?(({'|'.join(map(re.escape, SOURCES))})(_bucket|_sum|_count)?[ {{]|dsv4_)")


def exposition(launcher: Launcher) -> str:
    """What the engine itself exports, as far as it is translated."""
    port = launcher.engine_info()["port"]
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS, trust_env=False).text
    return "".join(line + "\n" for line in text.splitlines() if KEPT.match(line))


def main() -> int:
    with tempfile.TemporaryDirectory() as name, running.start(Path(name)) as launcher:
        running.wait_until_ready(launcher)
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / "before.txt").write_text(exposition(launcher))
        launcher.http.timeout = httpx.Timeout(SECONDS)
        prompt = "".join(chr(ord("a") + (7 * at) % 26) for at in range(300))
        for _ in range(2):
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0}
            launcher.http.post(launcher.url + "/v1/completions", json=body).raise_for_status()
        body = chat_body("Hello", max_tokens=12, stream=True, temperature=0)
        launcher.http.post(launcher.url + "/v1/chat/completions", json=body).raise_for_status()
        (RECORDED / "after.txt").write_text(exposition(launcher))
    return 0


if __name__ == "__main__":
    sys.exit(main())
