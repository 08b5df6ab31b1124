"""The dashboards, in the order in which an operator needs them."""

from __future__ import annotations

from tools.observability.board import Board
from tools.observability.boards.capacity import CAPACITY_BOARD
from tools.observability.boards.indexer import INDEXER
from tools.observability.boards.latency import LATENCY
from tools.observability.boards.overview import OVERVIEW
from tools.observability.boards.startup import STARTUP
from tools.observability.boards.tiers import TIERS

BOARDS: tuple[Board, ...] = (OVERVIEW, CAPACITY_BOARD, INDEXER, LATENCY, TIERS, STARTUP)
