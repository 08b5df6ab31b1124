"""The command line of the embedded engine's process."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from .config import Device, IndexerDtype, KVDtype
from .options import EngineOptions, Speculative, WritePolicy

DEFAULT_PORT = 8010


@dataclass(frozen=True)
class ProcessArgs:
    """Where to listen, how to log, and the engine's own options."""

    host: str
    port: int
    json_logs: bool
    allow_script: bool
    engine: EngineOptions


def parse_args(argv: Sequence[str]) -> ProcessArgs:
    """Exits with code 2 and one line for a wrong option."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        options = EngineOptions(
            model_path=args.model_path,
            served_model_name=args.served_model_name or args.model_path.resolve().name,
            indexer_dtype=args.indexer_dtype,
            kv_dtype=args.kv_dtype,
            hadamard=args.hadamard,
            page8=args.page8,
            rowgroup=args.rowgroup,
            max_total_tokens=args.max_total_tokens,
            kv_bytes=args.kv_bytes,
            max_running_requests=args.max_running_requests,
            max_queued_requests=args.max_queued_requests,
            context_length=args.context_length,
            chunk_tokens=args.chunk_tokens,
            threads=args.threads,
            device=args.device,
            kernels_dir=args.kernels_dir,
            hicache=args.hicache,
            host_bytes=args.host_bytes,
            disk_dir=args.disk_dir,
            disk_bytes=args.disk_bytes,
            write_policy=args.write_policy,
            speculative=args.speculative,
            draft_tokens=args.draft_tokens,
        )
    except ValueError as error:
        parser.error(str(error))
    return ProcessArgs(args.host, args.port, args.json_logs, args.allow_token_script, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dsv4_serve.engines.embedded",
        description="Serve a DeepSeek-V4 or V4.1 model directory on the CPU, for trying and for tests. There is no "
        "authentication here: `dsv4 serve` stands in front.",
    )
    _add_process_options(parser)
    _add_engine_options(parser, EngineOptions(Path(), ""))
    return parser


def _add_process_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", type=_loopback, default="127.0.0.1", help="a loopback address (default %(default)s)")
    add("--port", type=_port, default=DEFAULT_PORT, help="default %(default)s; 0 takes a free one")
    add("--json-logs", action="store_true", help="log one JSON object a line")
    add("--allow-token-script", action="store_true", help="for tests: requests may force tokens (dsv4_script)")


def _add_engine_options(parser: argparse.ArgumentParser, defaults: EngineOptions) -> None:
    def add(name: str, explanation: str, **how: Any) -> None:
        default = getattr(defaults, name.removeprefix("--").replace("-", "_"), None)
        shown = "" if default in (None, "") or "required" in how else " (default %(default)s)"
        settings: dict[str, Any] = {"default": default, **how}
        parser.add_argument(name, help=explanation + shown, **settings)

    add("--model-path", "directory with config.json, weights and tokenizer.json", type=Path, required=True)
    add("--served-model-name", "the name that clients use (default: the directory's)", default=None)
    add("--indexer-dtype", "storage of the index keys", choices=get_args(IndexerDtype))
    add("--kv-dtype", "storage of the main KV (default: the model's own)", choices=get_args(KVDtype))
    parser.add_argument(
        "--no-hadamard", dest="hadamard", action="store_false", default=None, help="index keys unrotated"
    )
    parser.add_argument("--rowgroup", action="store_true", help="score the rows of decoding as row groups")
    parser.add_argument("--page8", action="store_true", help="index keys of ratio 1 (V4.1) in pages of 8")
    add("--max-total-tokens", "size of the paged pools in tokens", type=int)
    add("--kv-bytes", "size of the paged pools in bytes, instead", type=int)
    add("--max-running-requests", "requests in one batch", type=int)
    add("--max-queued-requests", "requests that may wait; more are refused with 429", type=int)
    add("--context-length", "tokens of prompt and answer together (default: the model's)", type=int)
    add("--chunk-tokens", "prompt tokens of one step", type=int)
    add("--kernels-dir", "kernels of `dsv4 kernels build`, for a gfx950 device", type=Path)
    add("--device", "where tensors live; cuda is for checking kernels on a GPU", choices=get_args(Device))
    parser.add_argument("--hicache", action="store_true", help="tiers of the prefix cache below the pools")
    add("--host-bytes", "host memory of the tiers; 0 for none (default: twice the pools)", type=int)
    add("--disk-dir", "directory of the disk tier, its own", type=Path)
    add("--disk-bytes", "what the disk tier may take", type=int)
    add("--write-policy", "when pages go down a tier", choices=get_args(WritePolicy))
    add(
        "--speculative",
        "drafts: by look-up in the request's own text, or by the model's drafter",
        choices=get_args(Speculative),
    )
    add("--draft-tokens", "tokens of a draft at most (default: as many as are drafted at once)", type=int)
    add("--threads", "CPU threads; 0 is automatic", type=int)


def _loopback(value: str) -> str:
    address = "127.0.0.1" if value == "localhost" else value
    try:
        loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise argparse.ArgumentTypeError(f"{value!r}: accepted is a loopback address such as 127.0.0.1")
    return address


def _port(value: str) -> int:
    try:
        port = int(value)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{value!r}: accepted is 0 to 65535")
    return port
