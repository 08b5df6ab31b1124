"""Which node a request goes to. Thresholds of `cache_aware` are sglang-router's defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from tools.scaling.node import Node
from tools.scaling.workload import Turn

CACHE_THRESHOLD, BALANCE_ABSOLUTE, BALANCE_RELATIVE = 0.3, 64, 1.5
Route = Callable[[Sequence[Node], Turn], Node]


def round_robin() -> Route:
    numbers = count()
    return lambda nodes, turn: nodes[next(numbers) % len(nodes)]


def least_loaded() -> Route:
    return lambda nodes, turn: min(nodes, key=lambda node: node.load)


def cache_aware() -> Route:
    """The node that was sent most of this prefix, as long as loads are even; else the least loaded.

    Like the router's, its memory of prefixes is what it sent, not what the nodes still hold.
    """
    sent: dict[tuple[int, int], int] = {}
    totals: dict[int, int] = {}

    def route(nodes: Sequence[Node], turn: Turn) -> Node:
        loads = [node.load for node in nodes]
        uneven = max(loads) - min(loads) > BALANCE_ABSOLUTE and max(loads) > BALANCE_RELATIVE * min(loads)
        if uneven:
            place = loads.index(min(loads))
        else:
            matched = [min(sent.get((number, turn.chain), 0), turn.shared) for number in range(len(nodes))]
            place = max(range(len(nodes)), key=lambda number: matched[number])
            if matched[place] <= CACHE_THRESHOLD * turn.prompt:
                place = min(range(len(nodes)), key=lambda number: totals.get(number, 0))
        sent[place, turn.chain] = turn.prompt + turn.output
        totals[place] = totals.get(place, 0) + turn.prompt - turn.shared
        return nodes[place]

    return route


POLICIES: dict[str, Callable[[], Route]] = {
    "cache-aware": cache_aware,
    "least loaded": least_loaded,
    "round robin": round_robin,
}
