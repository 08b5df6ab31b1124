"""The fixed sizes of attention: window and query tiles."""

from __future__ import annotations

WINDOW = 128
"""Tokens that a query sees uncompressed, its own included."""

TILE_TOKENS = 8
"""Query positions that share a window tile; every chunk of a prompt starts at a multiple of it."""

TILE_SLOTS = WINDOW + TILE_TOKENS
"""Positions that a tile sees; also the tokens that a working slot's ring keeps."""

MAX_NGRAM_TOKENS = 4
"""Tokens of the longest n-gram that a model may look up, the row's own included."""

MAX_DRAFT_TOKENS = TILE_TOKENS - 1
"""Draft tokens that one step may verify. The rings of a slot have room for so many beyond what a token needs: rows of
rejected drafts lie there, read by nobody, until those of real tokens replace them."""
