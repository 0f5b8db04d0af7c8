"""Other sites by name: `dl://site1:pets` is a dataset at the site `site1`. This module opens files.

    # ~/.config/dieselfs/config.toml
    [remotes.site1]
    server = "tcp://storage.site1.example.org:7070"
    key_file = "~/.config/dieselfs/site1.key"

A key is used for its own site alone: neither the key of the settings is used there, nor this one elsewhere.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.settings.table import (
    EMBEDDED,
    ON,
    REMOTES,
    SYSTEM_CONFIG,
    Place,
    Settings,
    checked_values,
    read_toml,
    user_config,
)

FIELDS = ("server", "key_file", "tls_ca", "tls")
"""The settings of a remote; a key file is needed, except over a Unix socket."""


def at_remote(settings: Settings, remote: str, environment: Mapping[str, str] = os.environ) -> Settings:
    """These settings with the server, key and TLS of a remote. Raises NotFound, and InvalidInput for a remote that is
    not configured as it must be.
    """
    own = user_config(environment)
    file = next((file for file in (own, SYSTEM_CONFIG) if file.exists()), own)
    tables = read_toml(file).get(REMOTES, {}) if file.exists() else {}
    where = f"configuration file {file}: [{REMOTES}.{remote}]"
    if not isinstance(tables, dict) or not isinstance(table := tables.get(remote, {}), dict):
        raise InvalidInput(f"{where} must be a table")
    if not table:
        raise NotFound(
            f"there is no remote {remote!r}: add [{REMOTES}.{remote}] with server and key_file to {file}"
        )
    if unknown := sorted(table.keys() - set(FIELDS)):
        raise InvalidInput(f"{where}: unknown setting {unknown[0]!r} (known: {', '.join(FIELDS)})")
    values: dict[str, Any] = checked_values(table, Place.CONFIG, where)
    server, key_file = values.get("server"), values.get("key_file")
    if server == EMBEDDED:
        raise InvalidInput(f"{where}: the embedded server is not another site")
    if not server or (key_file is None and not server.startswith("unix:")):
        raise InvalidInput(f"{where}: {'key_file' if server else 'server'} is missing")
    tls_ca, tls = values.get("tls_ca"), values.get("tls", ON)
    # A mirror has the dataset ID of its origin, and other servers sign it: what is kept of one is not of the other.
    cache = settings.cache / "sites" / remote
    return replace(settings, cache=cache, server=server, key_file=key_file, tls_ca=tls_ca, tls=tls)
