"""API keys: who must show one, what they see without, and that keys leak nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4_serve.api_keys import ApiKeys
from dsv4_serve.errors import PreflightError
from serve.harness import Launcher, wait_until

KEYS = "# operators\nalpha-key\n\n  beta-key  \n"


@pytest.fixture(scope="module")
def guarded(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS)
    with Launcher(model_dir, environment={"DSV4_API_KEYS_FILE": str(path)}) as running:
        yield running


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz", "/health", "/"])
def test_probes_and_the_pages_frame_need_no_key(guarded: Launcher, path: str) -> None:
    assert guarded.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/manifest", "/status.json", "/nowhere"])
def test_everything_else_does(guarded: Launcher, path: str) -> None:
    answer = guarded.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer alpha-key", 200),
        ("bearer beta-key", 200),
        ("Bearer alpha-key2", 401),
        ("Bearer alpha", 401),
        ("Bearer", 401),
        ("Basic alpha-key", 401),
        ("alpha-key", 401),
        ("Bearer # operators", 401),
        ("Bearer ümlaut", 401),
    ],
)
def test_only_a_whole_key_opens(guarded: Launcher, header: str, status: int) -> None:
    answer = guarded.get("/v1/models", headers={"Authorization": header.encode()})
    assert answer.status_code == status
    assert "alpha-key" not in answer.text


def test_keys_are_in_no_log_metric_or_manifest(guarded: Launcher) -> None:
    headers = {"Authorization": "Bearer alpha-key"}
    wait_until(guarded.ready, "ready")
    texts = [
        guarded.text,
        *(guarded.get(path, headers=headers).text for path in ("/manifest", "/metrics", "/status.json")),
    ]
    assert not any("alpha-key" in text or "beta-key" in text for text in texts)


def test_the_admin_port_serves_the_inner_network(guarded: Launcher) -> None:
    assert guarded.http.get(f"{guarded.admin}/metrics").status_code == 200
    assert guarded.http.get(f"{guarded.admin}/manifest").status_code == 200
    unknown = guarded.http.get(f"{guarded.admin}/v1/models")
    told = "GET /v1/models: no such route; there are /metrics, /manifest, /livez, /readyz, /startupz."
    assert (unknown.status_code, unknown.json()["error"]["message"]) == (404, told)


def test_beyond_loopback_metrics_are_on_the_admin_port_only(model_dir: Path) -> None:
    # Nothing but this machine's own interfaces: 0.0.0.0 is the address that an operator would give.
    with Launcher(model_dir, ["--host", "0.0.0.0"], wait=False) as launcher:
        launcher.url = launcher.url.replace("0.0.0.0", "127.0.0.1")
        launcher.admin = launcher.admin.replace("0.0.0.0", "127.0.0.1")
        wait_until(launcher.ready, "ready")
        assert launcher.get("/metrics").status_code == 404
        assert launcher.get("/manifest").status_code == 404
        assert launcher.http.get(f"{launcher.admin}/metrics").status_code == 200
    assert "without an API key" in launcher.text


def test_keys_are_read_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    keys = ApiKeys(str(path))
    assert keys.required
    assert [keys.accept(key) for key in (b"alpha-key", b"beta-key", b"", b"# operators", b"alpha-ke")] == [
        *(True, True),
        *(False, False, False),
    ]
    assert not ApiKeys().required
    assert "alpha-key" not in repr(vars(keys))


@pytest.mark.parametrize(("content", "problem"), [(b"# none\n\n", "holds no key"), (b"\xff\xfe\x00", "not text")])
def test_a_file_without_keys_is_refused_rather_than_serving_openly(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(PreflightError, match=problem):
        ApiKeys(str(path))


def test_keys_are_rotated_without_a_restart(model_dir: Path, tmp_path: Path) -> None:
    """As a mounted secret is: the name is a link, and the link moves to another file."""
    link = tmp_path / "keys"

    def publish(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        (tmp_path / "next").symlink_to(tmp_path / name)
        (tmp_path / "next").replace(link)

    publish("first", "old-key\n")
    with Launcher(model_dir, ["--api-keys-file", str(link)]) as launcher:

        def status(key: str) -> int:
            return launcher.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

        assert (status("old-key"), status("new-key")) == (200, 401)
        publish("second", "old-key\nnew-key\n")
        assert (status("old-key"), status("new-key")) == (200, 200)
        publish("third", "new-key\n")
        assert (status("old-key"), status("new-key")) == (401, 200)
        publish("fourth", "# nobody\n")
        assert (status("old-key"), status("new-key")) == (401, 200)
        link.unlink()
        assert (status("old-key"), status("new-key")) == (401, 200)
    assert "holds no key; accepted is one key a line; the keys of before stay" in launcher.text
    assert "old-key" not in launcher.text
    assert "new-key" not in launcher.text
