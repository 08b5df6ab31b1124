"""The prefix cache: a tree of full pages keyed by their tokens, with reference counts and LRU eviction.

A node is one page of 256 tokens after its parent's; its path from the root spells a prefix. Pages of running requests
are in the tree as soon as they are full, so requests that run together share them. A node may keep a tail (window and
compressor state at its end); a hit ends at the deepest node that has one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .config import PAGE_TOKENS
from .pools import CachePools
from .prefix_key import ROOT, prefix_key

Key = tuple[int, ...]


@dataclass(eq=False)
class Node:
    """A cached page. `users` counts running requests that hold it; `used_at` orders eviction.

    `prefix` names the whole prefix that ends with this page, wherever it is kept.
    """

    key: Key
    prefix: bytes
    page: int
    parent: Node | None
    tail: int | None = None
    users: int = 0
    used_at: int = 0
    children: dict[Key, Node] = field(default_factory=dict)


class RadixCache:
    """Owns the pages and tails of its nodes in `pools`. `on_loss` is told of a node before its page or tail goes."""

    def __init__(
        self, pools: CachePools, enabled: bool = True, on_loss: Callable[[Node], None] = lambda node: None
    ) -> None:
        self._pools, self._enabled, self._on_loss = pools, enabled, on_loss
        self._root = Node((), ROOT, 0, None)
        self._clock = itertools.count(1)
        self._unheld = 0

    def match(self, token_ids: Sequence[int]) -> list[Node]:
        """The longest usable cached prefix that leaves at least one token to compute; its nodes are held.

        They come from the root down; the last one has a tail.
        """
        path = self.lookup(token_ids)
        for held in path:
            self.hold(held)
        return path

    def lookup(self, token_ids: Sequence[int]) -> list[Node]:
        """What `match` would find, not held."""
        path: list[Node] = []
        node = self._root
        for start in range(0, len(token_ids) - PAGE_TOKENS, PAGE_TOKENS):
            child = node.children.get(tuple(token_ids[start : start + PAGE_TOKENS]))
            if child is None:
                break
            path.append(child)
            node = child
        while path and path[-1].tail is None:
            path.pop()
        return path

    def hold(self, node: Node) -> None:
        """A running request uses this node."""
        self._unheld -= node.users == 0
        node.users += 1
        node.used_at = next(self._clock)

    def release(self, nodes: Sequence[Node]) -> None:
        """A running request is done with these nodes."""
        for node in nodes:
            if node.users < 1:
                raise RuntimeError(f"page {node.page} was released but has no user")
            node.users -= 1
            self._unheld += node.users == 0
            node.used_at = next(self._clock)

    def insert(self, parent: Node | None, token_ids: Sequence[int], page: int) -> Node:
        """Put a full page behind `parent` (None: the root) and hold it; returns its node.

        When the tokens are cached already, the given page is freed and the cached node held: both pages have the
        same bytes, because the engine is bit-exact.
        """
        above = parent or self._root
        key = tuple(token_ids)
        node = above.children.get(key)
        if node is None:
            node = Node(key, prefix_key(above.prefix, key), page, above)
            above.children[key] = node
            self._unheld += 1
        else:
            self._pools.pages.give(page)
        self.hold(node)
        return node

    def take_page(self) -> int | None:
        """A free page, evicting the least recently used leaf if there is none; None when all are held."""
        page = self._pools.pages.take()
        if page is None and self._evict_leaf():
            page = self._pools.pages.take()
        return page

    def take_tail(self) -> int | None:
        """A free tail, or the least recently used one of a node that no running request holds, or None."""
        tail = self._pools.tails.take()
        if tail is None:
            owners = [n for n in self.nodes() if n.tail is not None and n.users == 0]
            if owners:
                oldest = min(owners, key=lambda n: n.used_at)
                self._on_loss(oldest)
                self._drop_tail(oldest)
                tail = self._pools.tails.take()
        return tail

    def forget(self) -> int:
        """Evict every page that no running request holds; returns how many."""
        count = 0
        while self._evict_leaf():
            count += 1
        return count

    def discard(self, nodes: Sequence[Node]) -> None:
        """Throw away the last of these nodes, and those before it, as far as nobody holds or continues them."""
        for node in reversed(nodes):
            if node.users or node.children:
                break
            self._remove(node)

    @property
    def evictable_pages(self) -> int:
        """Pages that no running request holds (directly or through a deeper one). Any thread may read it."""
        return self._unheld

    @property
    def enabled(self) -> bool:
        """Whether finished requests leave their pages behind."""
        return self._enabled

    def pages(self) -> list[int]:
        """Every page that the tree owns."""
        return [node.page for node in self.nodes()]

    def tails(self) -> list[int]:
        """Every tail that the tree owns."""
        return [node.tail for node in self.nodes() if node.tail is not None]

    def _evict_leaf(self) -> bool:
        leaves = [node for node in self.nodes() if not node.children and node.users == 0]
        if not leaves:
            return False
        oldest = min(leaves, key=lambda node: node.used_at)
        self._on_loss(oldest)
        self._remove(oldest)
        return True

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        self._drop_tail(node)
        self._pools.pages.give(node.page)
        self._unheld -= 1
        del node.parent.children[node.key]

    def _drop_tail(self, node: Node) -> None:
        if node.tail is not None:
            self._pools.tails.give(node.tail)
            node.tail = None

    def nodes(self) -> Iterator[Node]:
        """Every cached page, parents before children."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
