"""PromQL of the panels. Every name is looked up in the table of metric names, so that none can be misspelt."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4_serve.metrics.metric_name import MetricName
from dsv4_serve.metrics.names import BY_NAME

CHOSEN = 'instance=~"$instance"'
"""Every panel shows the replicas that are chosen at the top of its dashboard."""
WINDOW = "$__rate_interval"


def metric(name: str, *matchers: str) -> str:
    """Samples of a family of the chosen replicas; `matchers` such as `region="main"` narrow them.

    Raises ValueError for a family or label that the table does not have.
    """
    entry = BY_NAME.get(name)
    if entry is None:
        raise ValueError(f"{name}: not in the table of metric names; accepted are its {len(BY_NAME)} families")
    for matcher in matchers:
        _check_label(entry, matcher.split("=")[0].rstrip("!"))
    return f"{name}{{{','.join((CHOSEN, *matchers))}}}"


def total(name: str, by: Sequence[str] = (), *matchers: str) -> str:
    """The sum over replicas: what all of them hold or do together."""
    return f"sum{_by(name, by)} ({metric(name, *matchers)})"


def fullest(name: str, by: Sequence[str] = (), *matchers: str) -> str:
    """The maximum over replicas: what the worst of them shows."""
    return f"max{_by(name, by)} ({metric(name, *matchers)})"


def rate(name: str, by: Sequence[str] = (), *matchers: str) -> str:
    """Increase a second of a counter, summed over replicas."""
    return f"sum{_by(name, by)} (rate({metric(name, *matchers)}[{WINDOW}]))"


def quantile(share: float, name: str) -> str:
    """A quantile of a histogram over all chosen replicas: buckets are summed first, quantiles never averaged."""
    buckets = metric(name).replace(name, f"{name}_bucket", 1)
    return f"histogram_quantile({share:g}, sum by (le) (rate({buckets}[{WINDOW}])))"


def mean(name: str) -> str:
    """The mean of a histogram's observations over all chosen replicas."""
    sums, counts = (metric(name).replace(name, f"{name}_{part}", 1) for part in ("sum", "count"))
    return f"sum (rate({sums}[{WINDOW}])) / sum (rate({counts}[{WINDOW}]))"


def ratio(part: str, whole: str) -> str:
    """`part` over `whole`, sample by sample of the same labels."""
    return f"{part} / {whole}"


def _by(name: str, labels: Sequence[str]) -> str:
    for label in labels:
        _check_label(BY_NAME[name], label)
    return f" by ({', '.join(labels)})" if labels else ""


def _check_label(entry: MetricName, label: str) -> None:
    accepted = ("instance", "job", *entry.labels)
    if label not in accepted:
        raise ValueError(f"{entry.name} has no label {label!r}; accepted are {', '.join(accepted)}")
