"""A Docker Engine of our own, beside whatever runs on this machine: its own socket, data, and end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

NEEDED = ("dockerd", "containerd", "runc", "iptables", "mmdebstrap")
# Debian's client builds with BuildKit without a plugin; another one in front of it may not.
CLIENT = "/usr/bin/docker"
START_SECONDS = 60.0
STOP_SECONDS = 30.0


def unavailable() -> str | None:
    """Why no engine can be started here; None when one can."""
    if os.geteuid() != 0:
        return "an engine needs root"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or not Path(CLIENT).exists():
        return f"not installed: {', '.join(missing) or CLIENT} (`make deps`)"
    return None


class DockerEngine:
    """Runs while the block runs; everything in it is gone afterwards."""

    def __enter__(self) -> DockerEngine:
        # The path of a unix socket is short, and overlay2 wants a real file system.
        self.home = Path(tempfile.mkdtemp(prefix="dsv4-docker.", dir="/var/tmp"))
        plugins = self.home / "config" / "cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-compose").symlink_to(Path(sys.executable).with_name("docker-compose"))
        self.environment = os.environ | {
            "DOCKER_HOST": f"unix://{self.home}/docker.sock",
            "DOCKER_CONFIG": str(self.home / "config"),
            "DOCKER_BUILDKIT": "1",
        }
        self._bridge_was_there = Path("/sys/class/net/docker0").exists()
        with (self.home / "log").open("wb") as log:
            self._daemon = subprocess.Popen(self._command(), stdout=log, stderr=log, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def docker(self, *words: str, cwd: Path | None = None, seconds: float = 300.0) -> str:
        """The output of a docker command that must succeed."""
        done = subprocess.run(
            [CLIENT, *words],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"docker {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout.strip()

    def fails(self, *words: str) -> str:
        """What a docker command says that must fail."""
        done = subprocess.run([CLIENT, *words], env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode != 0, done.stdout
        return done.stderr + done.stdout

    def _command(self) -> list[str]:
        home = self.home
        paths = ["--data-root", f"{home}/data", "--exec-root", f"{home}/exec", "--pidfile", f"{home}/pid"]
        return ["dockerd", "--host", f"unix://{home}/docker.sock", "--storage-driver", "overlay2", *paths]

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._daemon.poll() is None:
            version = [CLIENT, "version", "--format", "{{.Server.Version}}"]
            if subprocess.run(version, env=self.environment, capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.25)
        raise AssertionError(f"the engine did not start:\n{(self.home / 'log').read_text()[-3000:]}")

    def _end(self) -> None:
        if self._daemon.poll() is None:
            ids = subprocess.run(
                [CLIENT, "ps", "-aq"], env=self.environment, capture_output=True, text=True, check=False
            )
            if ids.stdout.split():
                remove = [CLIENT, "rm", "--force", *ids.stdout.split()]
                subprocess.run(remove, env=self.environment, capture_output=True, check=False)
            subprocess.run(
                [CLIENT, "network", "prune", "--force"], env=self.environment, capture_output=True, check=False
            )
            self._daemon.terminate()
            try:
                self._daemon.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(f"{self.home}/")), reverse=True):
            subprocess.run(["umount", mount], check=False, capture_output=True)
        if not self._bridge_was_there:
            subprocess.run(["ip", "link", "delete", "docker0"], check=False, capture_output=True)
        shutil.rmtree(self.home, ignore_errors=True)
