"""The hub: what a revision holds, and its files, resumed where a pull was cut."""

from __future__ import annotations

from pathlib import Path

from dsv4_serve.errors import CommandError
from dsv4_serve.weights.record import File, Record


def describe(repository: str, revision: str, endpoint: str | None) -> Record:
    """The commit that `revision` names now, and its files. CommandError: the hub cannot say."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        info = HfApi(endpoint=endpoint).model_info(repository, revision=revision, files_metadata=True)
    except (HfHubHTTPError, OfflineModeIsEnabled, HTTPError, OSError) as error:
        raise CommandError(f"{repository} at {revision}: {_first_line(error)}") from error
    if info.sha is None:
        raise CommandError(f"{repository} at {revision}: the hub names no commit")
    files = {}
    for sibling in info.siblings or ():
        if sibling.lfs is not None:
            files[sibling.rfilename] = File(int(sibling.lfs.size), "sha256", str(sibling.lfs.sha256))
        elif sibling.size is not None and sibling.blob_id is not None:
            files[sibling.rfilename] = File(int(sibling.size), "git", str(sibling.blob_id))
        else:
            raise CommandError(f"{repository} at {revision}: the hub gives no checksum of {sibling.rfilename}")
    return Record(repository, str(info.sha), files)


def download(record: Record, directory: Path, endpoint: str | None, workers: int) -> None:
    """All files of the record's commit. What is there and whole is not fetched again; CommandError: the hub failed."""
    from httpx2 import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        snapshot_download(
            record.repository,
            revision=record.revision,
            local_dir=directory,
            endpoint=endpoint,
            max_workers=workers,
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, HTTPError, OSError) as error:
        raise CommandError(
            f"{record.repository} at {record.revision}: {_first_line(error)}; the same command goes on where it stopped"
        ) from error


def offline() -> bool:
    """Whether the environment forbids asking the hub (HF_HUB_OFFLINE)."""
    from huggingface_hub.constants import is_offline_mode

    return bool(is_offline_mode())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
