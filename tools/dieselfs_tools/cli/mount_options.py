"""The options of the verbs that mount: what the command line, the environment and the configuration say. No I/O but of
the session.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dieselfs_client.mount.points.options import MountOptions, parse_options
from dieselfs_tools.cli.session import Session


def mount_options(session: Session, given: Mapping[str, Any], others: Iterable[str]) -> MountOptions:
    """`given`: options of the command line, by field; `others`: texts of `-o`. Raises InvalidInput."""
    from dieselfs.cluster.job import with_configured

    # The daemon reads environment and configuration itself, except for the job.
    chosen = MountOptions(server=session.server, key_file=session.key_file, **given)
    for text in others:
        chosen = parse_options(text, chosen)
    settings = session.settings()
    chosen = with_configured(settings.with_disk(chosen), settings.job, os.environ)
    if chosen.job is not None and not chosen.memory_bytes:
        chosen = replace(chosen, memory_bytes=settings.job_memory_bytes)
    return chosen
