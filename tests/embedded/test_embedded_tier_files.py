"""What the disk tier keeps and believes: the index, the order of eviction, faults by reason."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsv4_serve.engines.embedded.options import OptionError
from dsv4_serve.engines.embedded.prefix_key import ROOT
from dsv4_serve.engines.embedded.tiers.index_file import IndexFile
from dsv4_serve.engines.embedded.tiers.io_thread import IoThread
from dsv4_serve.engines.embedded.tiers.ledger import Entry, Ledger
from dsv4_serve.engines.embedded.tiers.page_file import encode
from embedded.disk_tier_harness import FOREIGN, OURS, Disk, chain, same


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """No test leaves a directory locked."""
    yield
    while Disk.opened:
        Disk.opened.pop().kill()


def test_groups_survive_a_restart_and_a_kill(tmp_path: Path) -> None:
    groups = chain(3)
    disk = Disk(tmp_path)
    for group in groups:
        disk.tier.put(group)
    assert disk.count("stored") == 3
    disk = disk.again()
    assert all(same(disk.tier.get(group.prefix), group) for group in groups)
    disk.kill()
    disk = Disk(tmp_path)
    assert all(same(disk.tier.get(group.prefix), group) for group in groups)
    assert disk.count("refused", "index") == 0


Spoil = Callable[[Path], object]
FAULTS: list[tuple[str, Spoil]] = [
    ("missing", lambda path: path.unlink()),
    ("truncated", lambda path: path.write_bytes(path.read_bytes()[:-200])),
    ("truncated", lambda path: path.write_bytes(b"")),
    ("corrupt", lambda path: path.write_bytes(path.read_bytes()[:-2] + b"xx")),
    ("corrupt", lambda path: path.write_bytes(path.read_bytes() + b"more")),
    ("corrupt", lambda path: path.write_bytes(b"not a page" * 500)),
    ("foreign", lambda path: path.write_bytes(encode(chain(1)[0], FOREIGN))),
    ("foreign", lambda path: path.write_bytes(encode(chain(1, seed=5)[0], OURS))),
    ("unreadable", lambda path: path.rename(path.with_suffix("")).with_name(path.name).mkdir()),
]


@pytest.mark.parametrize(("reason", "spoil"), FAULTS, ids=[f"{reason}-{n}" for n, (reason, _) in enumerate(FAULTS)])
def test_a_spoiled_page_is_a_miss_that_is_counted_and_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reason: str, spoil: Spoil
) -> None:
    (group,) = chain(1)
    disk = Disk(tmp_path)
    disk.tier.put(group)
    spoil(disk.file(group))
    assert disk.tier.get(group.prefix) is None
    assert disk.count("refused", reason) == 1
    assert "is not used" in caplog.text
    assert disk.tier.get(group.prefix) is None
    assert disk.count("refused", reason) == 1, "it was struck out"
    if reason != "unreadable":
        disk.tier.put(group)
        assert same(disk.tier.get(group.prefix), group)


def test_another_format_in_the_same_directory_never_answers(tmp_path: Path) -> None:
    (group,) = chain(1)
    disk = Disk(tmp_path)
    disk.tier.put(group)
    other = disk.again(fingerprint=FOREIGN)
    assert other.tier.get(group.prefix) is None
    assert other.count("refused", "foreign") == 1


def test_after_a_change_of_format_one_look_up_makes_room_for_a_whole_prefix(tmp_path: Path) -> None:
    """It stopped at the first page that it may not use, and those behind it were never written anew."""
    groups = chain(4)
    before = Disk(tmp_path)
    for group in groups:
        before.tier.put(group)
    after = before.again(fingerprint=FOREIGN)
    done = threading.Event()
    io = IoThread(after.tier, done.set)
    fetch = io.fetch([group.prefix for group in groups])
    assert done.wait(60)
    assert fetch.groups == {}
    io.drain()
    assert after.count("refused", "foreign") == 4
    assert len(after.tier.ledger) == 0
    assert all(io.write(group, wait=True) for group in groups)
    io.drain()
    again = io.fetch([group.prefix for group in groups])
    io.drain()
    assert [same(again.groups.get(group.prefix), group) for group in groups] == [True] * 4
    io.stop()


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_half_a_line_of_the_index_costs_its_page_only(tmp_path: Path, cut: int) -> None:
    groups = chain(3)
    disk = Disk(tmp_path)
    for group in groups:
        disk.tier.put(group)
    disk.kill()
    index = tmp_path / "index"
    index.write_bytes(index.read_bytes()[:-cut])
    # One character missing is the line's end: the line itself is whole.
    lost = 0 if cut == 1 else 1
    disk = Disk(tmp_path)
    assert disk.count("refused", "index") == lost
    assert [same(disk.tier.get(group.prefix), group) for group in groups] == [True, True, not lost]
    assert disk.file(groups[2]).exists() is not lost, "a file that the index does not know is removed"
    disk.tier.put(groups[2])
    assert len(disk.again().tier.ledger) == 3


def test_a_damaged_line_in_the_middle_costs_its_page_only(tmp_path: Path) -> None:
    groups = chain(3)
    disk = Disk(tmp_path)
    for group in groups:
        disk.tier.put(group)
    disk.kill()
    lines = (tmp_path / "index").read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"tail":true', b'"tail":TRUE')
    (tmp_path / "index").write_bytes(b"".join(lines))
    disk = Disk(tmp_path)
    assert disk.count("refused", "index") == 1
    assert [same(disk.tier.get(group.prefix), group) for group in groups] == [True, False, True]


def test_an_index_line_continues_after_one_that_was_cut(tmp_path: Path) -> None:
    index = IndexFile(tmp_path / "index")
    entries = [Entry(bytes([n]) * 32, ROOT, 100 + n, True) for n in range(3)]
    index.stored(entries[0])
    (tmp_path / "index").write_bytes((tmp_path / "index").read_bytes() + b"0badc0de {half")
    IndexFile(tmp_path / "index").stored(entries[1])
    index = IndexFile(tmp_path / "index")
    assert index.read() == (entries[:2], 1)
    index.removed(entries[0].prefix)
    assert IndexFile(tmp_path / "index").read() == (entries[1:2], 1)
    index.rewrite(entries[2:])
    assert IndexFile(tmp_path / "index").read() == (entries[2:], 0)


def test_a_directory_without_its_index_is_empty_not_trusted(tmp_path: Path) -> None:
    (group,) = chain(1)
    disk = Disk(tmp_path)
    disk.tier.put(group)
    disk.tier.close()
    (tmp_path / "index").unlink()
    disk = Disk(tmp_path)
    assert disk.tier.get(group.prefix) is None
    assert not disk.file(group).exists()


def test_the_limit_holds_and_leaves_go_before_what_they_continue(tmp_path: Path) -> None:
    first, second = chain(3), chain(3, seed=1)
    disk = Disk(tmp_path, groups=4)
    for group in (*first, *second):
        disk.tier.put(group)
        assert len(list(tmp_path.glob("*.page"))) == len(disk.tier.ledger) <= 4
    assert disk.count("evicted") == 2
    kept = [same(disk.tier.get(group.prefix), group) for group in (*first, *second)]
    assert kept == [True, False, False, True, True, True]
    smaller = disk.again(groups=2)
    assert len(smaller.tier.ledger) == 2
    assert len(list(tmp_path.glob("*.page"))) == 2


def test_what_was_used_last_is_kept_longest_also_over_a_restart(tmp_path: Path) -> None:
    roots = [chain(1, seed=seed)[0] for seed in range(4)]
    disk = Disk(tmp_path, groups=3)
    for group in roots[:3]:
        disk.tier.put(group)
    assert disk.tier.get(roots[0].prefix) is not None
    disk = disk.again(groups=3)
    disk.tier.put(roots[3])
    assert [disk.tier.get(group.prefix) is not None for group in roots] == [True, False, True, True]


def test_a_group_with_a_tail_replaces_one_without(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    bare, whole = chain(1, tail=False)[0], chain(1)[0]
    for group in (bare, whole, bare):
        disk.tier.put(group)
    assert same(disk.tier.get(whole.prefix), whole)
    assert disk.count("stored") == 2
    assert len(disk.again().tier.ledger) == 1


def test_a_full_disk_is_told_once_and_counted_and_the_next_page_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel's own full device takes the place of the first two files."""
    groups = chain(3)
    disk = Disk(tmp_path)
    for group in groups[:2]:
        disk.file(group).with_suffix(".new").symlink_to("/dev/full")
    with caplog.at_level(logging.WARNING):
        for group in groups:
            disk.tier.put(group)
    assert disk.count("unsaved", "full") == 2
    assert disk.count("stored") == 1
    assert caplog.text.count("No space left on device; pages are not kept there while this lasts") == 1
    assert [disk.tier.get(group.prefix) is not None for group in groups] == [False, False, True]
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "index", disk.file(groups[2]).name}


def test_a_directory_that_goes_away_costs_pages_not_the_engine(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "tier")
    for path in (tmp_path / "tier").iterdir():
        path.unlink()
    (tmp_path / "tier").rmdir()
    disk.tier.put(chain(1)[0])
    assert disk.count("unsaved", "unwritable") == 1
    disk.tier.close()


def test_a_directory_that_it_makes_is_private(tmp_path: Path) -> None:
    Disk(tmp_path / "deep" / "tier")
    assert (tmp_path / "deep" / "tier").stat().st_mode & 0o077 == 0


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with pytest.raises(OptionError, match="another process uses it"):
        Disk(tmp_path)
    disk.again().tier.close()


def test_a_directory_that_cannot_be_made_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"disk_dir=.*file/tier: .*accepted is a writable directory"):
        Disk(tmp_path / "file" / "tier")


def test_a_ledger_without_room_names_the_oldest_leaf() -> None:
    ledger = Ledger(2)
    root, other = Entry(b"r" * 32, ROOT, 40, True), Entry(b"o" * 32, ROOT, 40, True)
    child = Entry(b"c" * 32, root.prefix, 40, True)
    ledger.add(root)
    assert ledger.victim() is None
    ledger.add(child)
    assert ledger.victim() == child
    ledger.touch([child.prefix])
    ledger.remove(child.prefix)
    ledger.add(other)
    assert ledger.victim() == root
    assert ledger.victim(0) is None
