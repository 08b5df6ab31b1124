"""`python -m dsv4_serve.engines.embedded`: one process that serves one model directory."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

import uvicorn

from .args import ProcessArgs, parse_args
from .generation import Served
from .parent_death import end_with_parent
from .request_log import configure_logging
from .server import build_app
from .tokenizer import load_tokenizer

logger = logging.getLogger("dsv4.embedded")

GRACEFUL_SHUTDOWN_SECONDS = 30


class StartError(Exception):
    """Why the process cannot serve, in one line."""


class AnnouncingServer(uvicorn.Server):
    """Says when it answers and when it stops; uvicorn's own lines say less and take four."""

    def __init__(self, config: uvicorn.Config, what: str) -> None:
        super().__init__(config)
        self._what = what

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            logger.info("serving %s", self._what)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("shutting down: %d connections are open", len(self.server_state.connections))
        await super().shutdown(sockets=sockets)


def main(argv: Sequence[str] | None = None) -> int:
    parent = os.getppid()
    args = parse_args(sys.argv[1:] if argv is None else argv)
    configure_logging(as_json=args.json_logs)
    end_with_parent(parent)
    try:
        listener = _bind(args)
        served = _load(args)
    except (StartError, OSError, ValueError) as error:
        logger.error("cannot start: %s", error)
        return 1
    config = uvicorn.Config(
        build_app(served),
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
    )
    server = AnnouncingServer(config, f"{served.model_name} on http://{args.host}:{listener.getsockname()[1]}")
    # uvicorn shuts down on these and then raises them again, for the handlers that were there before.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, lambda *_: None)
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _bind(args: ProcessArgs) -> socket.socket:
    """Claim the port before the weights are loaded; connections are refused until uvicorn listens."""
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((args.host, args.port))
    except OSError as error:
        listener.close()
        raise StartError(f"--port {args.port} on {args.host}: {error.strerror}") from None
    return listener


def _load(args: ProcessArgs) -> Served:
    options = args.engine
    if not (options.model_path / "config.json").is_file():
        raise StartError(f"--model-path {options.model_path}: no config.json there; accepted is a model directory")
    tokenizer = load_tokenizer(options.model_path)
    # Importing torch takes seconds; the mistakes above are told before.
    from .engine import AsyncEngine

    logger.info("loading %s from %s", options.served_model_name, options.model_path)
    engine = AsyncEngine.create(options)
    phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in engine.startup_phases.items())
    logger.info("loaded: %s", phases)
    return Served(
        engine=engine,
        tokenizer=tokenizer,
        model_name=options.served_model_name,
        vocab_size=engine.model_config.vocab_size,
        context_length=engine.context_length,
        capacity=_capacity(engine.server_info()),
        bos_token_id=engine.model_config.bos_token_id,
        eos_token_id=engine.model_config.eos_token_id,
        allow_script=args.allow_script,
        chat_version=engine.chat_version,
    )


def _capacity(server_info: Mapping[str, object]) -> int:
    capacity = server_info["max_total_tokens"]
    assert isinstance(capacity, int)
    return capacity


if __name__ == "__main__":
    sys.exit(main())
