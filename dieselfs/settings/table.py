"""The table of all settings. Options, environment, files, messages and documentation are derived from it. This module
opens files.

    # ~/.config/dieselfs/config.toml, or /etc/dieselfs/config.toml
    server = "tcp://storage-1:7070"
    key_file = "~/.config/dieselfs/key"
    job = "auto"

A setting `job_nodes` is `--job-nodes` on a command line, `job_nodes=` in `-o`, DIESELFS_JOB_NODES in the environment
and `job_nodes` in a file, if its row has these places. Options override the environment, which overrides the file.
Without a server, an embedded server keeps all data in the home. `python -m dieselfs.settings` prints
docs/reference/settings.md.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Flag, auto
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, TypeVar

from dieselfs.errors import InvalidInput
from dieselfs.etcd.client import EtcdAccess
from dieselfs.limits import MOUNT_MEMORY_BYTES, READ_PATIENCE_S, READ_TIMEOUT_S, WRITE_EVERY_S
from dieselfs.settings.kinds import (
    ADDRESS,
    ADDRESSES,
    DISK_SIZE,
    EXPRESSION,
    FILE,
    FOLDER,
    HOST,
    HOST_NAMES,
    MEMORY,
    NAME,
    NAMES,
    NUMBER,
    PAIRS,
    RATE,
    ROOTS,
    SIZE,
    SWITCH,
    TIME_LIMIT,
    URL,
    YES,
    YES_OR_NO,
    Kind,
    choice,
)
from dieselfs.units import format_size

REMOTES = "remotes"
"""The table of a client's file with its other sites (`dieselfs.settings.remotes`)."""
EMBEDDED = "embedded"
"""The value of `server` for the embedded server of the home, even if the configuration names another."""
AUTO = "auto"
"""The value of `job` for the name from the launcher, and of `view` for the view that the mount chooses."""
DEFAULT_LISTEN = "tcp://127.0.0.1:7070"
TLS_CHOICES = ON, OFF = "on", "off"
LOG_LEVELS = DEBUG, INFO, WARNING = "debug", "info", "warning"
POLICIES = ON_DEMAND, ONESHOT = "on-demand", "oneshot"
DRIVERS = KERNEL, PYFUSE3 = "kernel", "pyfuse3"
IMAGE, OVERLAY, FUSE = "image", "overlay", "fuse"
VIEWS = AUTO, IMAGE, OVERLAY, FUSE

SYSTEM_CONFIG = Path("/etc/dieselfs/config.toml")

POLICY, DRIVER, VIEW, TLS, LOG_LEVEL = map(choice, (POLICIES, DRIVERS, VIEWS, TLS_CHOICES, LOG_LEVELS))


class Place(Flag):
    """Where a setting can be given."""

    ENVIRONMENT = auto()
    CONFIG = auto()  # config.toml of a client
    OPTION = auto()  # -o of mounts, and fstab
    VERB = auto()  # the command lines of all verbs of dlcmd, and of dieselfs-mount
    MOUNT = auto()  # the command lines of dlcmd mount and dieselfs-mount
    CACHE = auto()  # the command line of dlcmd cache
    DAEMON = auto()  # the command lines of processes that only dieselfs starts
    SERVER = auto()  # the command line of dieselfs-server, and its TOML file
    ETCD = auto()  # the configuration for all servers
    CLIENT = ENVIRONMENT | CONFIG
    NODE = OPTION | MOUNT | CACHE
    FLAG = VERB | MOUNT | CACHE | DAEMON | SERVER


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table."""

    name: str
    kind: Kind
    places: Place
    help: str
    default: str = ""

    @property
    def field(self) -> str:
        """The name of the field in the dataclasses, with its unit."""
        return self.name + self.kind.unit

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return f"DIESELFS_{self.name.upper()}"

    def ways(self) -> str:
        """The places for users: `--job NAME, -o job=NAME or DIESELFS_JOB=NAME`."""
        value = self.kind.metavar
        ways = [
            text
            for place, text in (
                (Place.FLAG, f"{self.flag} {value}"),
                (Place.OPTION, f"-o {self.name}={value}"),
                (Place.ENVIRONMENT, f"{self.variable}={value}"),
            )
            if self.places & place
        ]
        return " or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))

    def read(self, text: str, where: str) -> Any:
        """The value. Raises InvalidInput, which names the place `where` the text is given."""
        try:
            return self.kind.parse(text)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from None


_P = Place
_MEMORY_DEFAULT = f"{format_size(MOUNT_MEMORY_BYTES)}, or what the system allows"

SETTINGS = (
    # -- servers and keys, for clients
    Setting("server", ADDRESS, _P.CLIENT | _P.OPTION | _P.VERB,
            "tcp://HOST:PORT[,...], etcd://HOST:PORT[,...], unix:PATH, or 'embedded'.", "embedded"),
    Setting("key_file", FILE, _P.CLIENT | _P.OPTION | _P.VERB, "Your key; readable by you alone."),
    Setting("tls", TLS, _P.CLIENT | _P.SERVER | _P.ETCD,
            "off: TCP without TLS, for isolated networks; clients and servers must agree.", ON),
    Setting("tls_ca", FILE, _P.CLIENT,
            "PEM certificates of authorities that certify the servers.", "the pin in the key file"),
    Setting("home", FOLDER, _P.ENVIRONMENT | _P.OPTION | _P.DAEMON,
            "Folder for embedded data.", "~/.local/share/dieselfs"),
    Setting("allow_older", YES_OR_NO, _P.ENVIRONMENT,
            "yes: accept a snapshot that is older than the newest one on this machine.", "no"),
    Setting("max_age", TIME_LIMIT, _P.CLIENT,
            "Refuse a newest or saved snapshot without a statement of the servers, not older than this, that it is the "
            "newest.", "no limit"),
    Setting("identity", FILE, _P.CLIENT,
            "Your private key for encrypted datasets; made when it is first used.", "~/.config/dieselfs/identity"),
    Setting("passphrase_file", FILE, _P.CLIENT,
            "A passphrase that opens keys of encrypted datasets; mode 0600."),
    Setting("snapshots", FOLDER, _P.CLIENT,
            "Folder of saved snapshots, often shared: they are taken from there, not from the server."),
    Setting("config", FILE, _P.ENVIRONMENT,
            "The configuration file.", "~/.config/dieselfs/config.toml, else /etc/dieselfs/config.toml"),
    Setting("etcd_user", NAME, _P.CLIENT | _P.SERVER, "User name at etcd."),
    Setting("etcd_password_file", FILE, _P.CLIENT | _P.SERVER, "That user's password; mode 0600."),
    Setting("etcd_tls_ca", FILE, _P.CLIENT | _P.SERVER,
            "PEM certificates to trust; switches TLS on for etcd."),
    Setting("etcd_tls_certificate", FILE, _P.CLIENT | _P.SERVER, "PEM certificate to show to etcd."),
    Setting("etcd_tls_key", FILE, _P.CLIENT | _P.SERVER, "PEM key of that certificate."),
    Setting("oidc_issuer", URL, _P.CLIENT | _P.SERVER | _P.ETCD,
            "Identity provider (OpenID Connect), https://HOST[/PATH]: users log in there with `dlcmd login`.", "none"),
    Setting("oidc_client_id", NAME, _P.CLIENT | _P.SERVER | _P.ETCD,
            "The application at the provider as which `dlcmd login` asks, at a server the web page.", "dieselfs"),
    Setting("oidc_ca", FILE, _P.CLIENT | _P.SERVER | _P.ETCD,
            "PEM certificates to trust for the provider, besides those of the system."),
    # -- mounts and caches
    Setting("generation", NUMBER, _P.NODE, "The generation of the dataset.", "the newest"),
    Setting("where", EXPRESSION, _P.NODE,
            "Only files for which this is true of their columns; a comma is \\, in -o.", "all files"),
    Setting("memory", MEMORY, _P.NODE, "Memory limit for cached data and the page cache.", _MEMORY_DEFAULT),
    Setting("policy", POLICY, _P.NODE,
            "Fetch chunks that memory can pin when they are read, or at once.", ON_DEMAND),
    Setting("warm_rate", RATE, _P.NODE, "Limit background prefetch to this many bytes per second.", "no limit"),
    Setting("disk", FOLDER, _P.CLIENT | _P.NODE,
            "Keep chunks in this folder of a local disk, for later jobs, mounts and programs of yours.", "no disk"),
    Setting("disk_size", DISK_SIZE, _P.CLIENT | _P.NODE,
            "Limit of the chunks on the disk, of all datasets together.", "half of the file system"),
    Setting("driver", DRIVER, _P.OPTION | _P.MOUNT, "FUSE driver.", KERNEL),
    Setting("view", VIEW, _P.OPTION | _P.MOUNT,
            "How the kernel shows the files; auto: the first of image, overlay, fuse that is possible.", AUTO),
    Setting("allow_other", SWITCH, _P.OPTION | _P.MOUNT,
            "Allow other users to read the mount, as far as the modes of the files allow."),
    Setting("allow_plans", SWITCH, _P.OPTION | _P.MOUNT,
            "With allow_other: allow them to declare plans, to write losses and to start warming, too."),
    Setting("scores", SWITCH, _P.OPTION | _P.MOUNT,
            "In the view fuse: let programs write losses; files are then shown without write permission."),
    Setting("noexec", SWITCH, _P.OPTION | _P.MOUNT, "Programs on the mount cannot be run."),
    Setting("follow", TIME_LIMIT, _P.OPTION | _P.MOUNT,
            "Look for a new generation at this interval, and move to it between plans; as root, on Linux 6.5.",
            "stay at one generation"),
    Setting("write", SWITCH, _P.OPTION | _P.MOUNT,
            "Let programs write: on this node at once, and into the dataset at each interval, 'sync' and 'umount'."),
    Setting("write_every", TIME_LIMIT, _P.OPTION | _P.MOUNT, "With write: store what was written at this interval.",
            f"{WRITE_EVERY_S:g}s"),
    Setting("write_folder", FOLDER, _P.OPTION | _P.MOUNT,
            "With write: the folder of a local disk, or in memory, that holds what was written until it is stored.",
            "~/.local/state/dieselfs/writes/*"),
    Setting("uid", NUMBER, _P.OPTION | _P.MOUNT, "User ID that owns the files.", "the user who mounts"),
    Setting("gid", NUMBER, _P.OPTION | _P.MOUNT, "Group ID that owns the files.", "the group of that user"),
    Setting("timeout", TIME_LIMIT, _P.OPTION | _P.MOUNT,
            "A read fails (EIO) after this time.", f"{READ_TIMEOUT_S:g}s"),
    Setting("log_file", FILE, _P.OPTION | _P.MOUNT, "Log of the daemon.", "~/.local/state/dieselfs/mount-*.log"),
    # -- jobs
    Setting("job", NAME, _P.CLIENT | _P.NODE,
            "Pool the memory of the nodes of this job; auto: the job that Slurm, torchrun or Open MPI started.",
            "no job"),
    Setting("job_nodes", NUMBER, _P.CLIENT | _P.NODE,
            "Number of nodes of the job; the first fetch waits for them.", "from the launcher"),
    Setting("job_node", NAME, _P.CLIENT | _P.NODE,
            "Name of this node, the same for all its processes.", "from the launcher, else the host name"),
    Setting("job_rank", NUMBER, _P.NODE,
            "Rank of this daemon; the smallest on a node becomes its master.", "from the launcher, else 0"),
    Setting("job_host", HOST, _P.CLIENT | _P.NODE,
            "Address other nodes use to connect here.", "the address that reaches the server"),
    Setting("job_secret", FILE, _P.CLIENT | _P.NODE,
            "File with the job's shared secret, at least 32 bytes, mode 0600.", "derived from your key"),
    Setting("job_memory", MEMORY, _P.CLIENT,
            "Memory that this node offers to the job, if `memory` is not set.", _MEMORY_DEFAULT),
    # -- servers
    Setting("listen", ADDRESSES, _P.SERVER, "tcp://HOST:PORT or unix:PATH; may be repeated.", DEFAULT_LISTEN),
    Setting("store", URL, _P.SERVER | _P.ETCD,
            "Object store: posix:///PATH, rados://POOL, s3://BUCKET, gs://BUCKET, az://CONTAINER, "
            "tiered:fast=URL,slow=URL,size=200GiB, or memory: for trials."),
    Setting("metadata", URL, _P.SERVER | _P.ETCD,
            "Metadata store: sqlite:///FILE, redis://HOST:PORT/DATABASE, redis+cluster://HOST:PORT,..., "
            "redis+unix:///SOCKET, or memory: for trials."),
    Setting("state", FOLDER, _P.SERVER | _P.ETCD, "Folder for snapshots; it can be rebuilt.", "beside the SQLite file"),
    Setting("server_identity", Kind("FILE|pkcs11:URI"), _P.SERVER | _P.ETCD,
            "Where the private key of the servers is: a file with mode 0600, the same on each server, or a token.",
            "in the object store"),
    Setting("admin_key", FILE, _P.SERVER | _P.ETCD,
            "On first start, make user 'admin' and write the key here."),
    Setting("log_level", LOG_LEVEL, _P.SERVER | _P.ETCD, "What is logged; debug: each call of a client too.", INFO),
    Setting("audit_log", FILE, _P.SERVER | _P.ETCD,
            "Log of logins, refusals, and changes of users, rights, datasets and tags.", "audit.log in `state`"),
    Setting("audit_to", Kind("URL"), _P.SERVER | _P.ETCD,
            "Send a copy of the audit log there: syslog:///dev/log, syslog+udp://, syslog+tcp://, syslog+tls://, "
            "otlp+http:// or otlp+https://HOST:PORT.", "not sent"),
    Setting("metrics", Kind("HOST:PORT"), _P.SERVER | _P.ETCD,
            "Serve metrics over HTTP there, for Prometheus; everybody who can connect reads them.", "not served"),
    Setting("metrics_token", FILE, _P.SERVER | _P.ETCD,
            "Private file with a token that requests for metrics need (`Authorization: Bearer`).", "none"),
    Setting("metrics_users", TLS, _P.SERVER | _P.ETCD,
            "Metrics name users (`on`, `off`): their bytes, and their quotas.", OFF),
    Setting("web", Kind("HOST:PORT"), _P.SERVER | _P.ETCD,
            "Serve the web page there, over TLS; users log in with their keys.", "not served"),
    Setting("web_names", HOST_NAMES, _P.SERVER | _P.ETCD,
            "Names of the page in browsers, besides those of the machine and of `listen` and `advertise`.", "none"),
    Setting("attach_roots", ROOTS, _P.SERVER | _P.ETCD,
            "Folders, also s3://BUCKET/FOLDER and https://HOST/FOLDER, whose files `dlcmd attach` may make part of "
            "datasets.", "none"),
    Setting("oidc_audience", NAMES, _P.SERVER | _P.ETCD,
            "Applications at the provider whose tokens count.", "dieselfs"),
    Setting("oidc_user_claim", NAME, _P.SERVER | _P.ETCD,
            "The claim of a token that names the user, who is called oidc:NAME.", "preferred_username"),
    Setting("oidc_groups_claim", NAME, _P.SERVER | _P.ETCD,
            "The claim that lists the user's groups at the provider.", "groups"),
    Setting("oidc_groups", PAIRS, _P.SERVER | _P.ETCD,
            "Groups of the provider, and the group here whose rights their users have; others do not count.", "none"),
    Setting("oidc_secret_file", FILE, _P.SERVER | _P.ETCD,
            "Private file with the secret of that application, for the web page.", "none: a public client"),
    Setting("oidc_lifetime", TIME_LIMIT, _P.SERVER | _P.ETCD,
            "How long a login counts without the provider, 1min to 7d.", "8h"),
    Setting("tls_certificate", FILE, _P.SERVER | _P.ETCD,
            "PEM chain of an authority, for clients with tls_ca.", "made from the identity of the store"),
    Setting("tls_key", FILE, _P.SERVER | _P.ETCD, "PEM key of the certificate."),
    Setting("shared_memory", SIZE, _P.ENVIRONMENT | _P.SERVER,
            "Memory of a server (in the environment: of the embedded one) for chunks that it shares with processes of "
            "its own user on its machine; 0: none.", "a quarter of what the system allows"),
    Setting("large_reads", NUMBER, _P.SERVER | _P.ETCD,
            "Reads of 1 MiB and more that the store gets at a time, 1 to 16; 1 for a single hard disk. Servers with "
            "one Redis share it, if the store is a folder that is not on a parallel file system.", "8"),
    Setting("workers", NUMBER, _P.SERVER | _P.ETCD | _P.OPTION | _P.MOUNT,
            "Processes of a server behind one address, 1 to 64; of a mount, that fetch chunks, 1 to 16, and as many "
            "that push them.", "half of the processors, at most 8; for a mount a quarter, at most 16"),
    Setting("etcd", Kind("HOST:PORT,..."), _P.SERVER,
            "Register there, and read settings from there that are not set here."),
    Setting("advertise", ADDRESSES, _P.SERVER,
            "tcp://HOST:PORT under which clients reach this server.", "the addresses of listen"),
)  # fmt: skip
BY_NAME = {row.name: row for row in SETTINGS}
_BY_FIELD = {row.field: row for row in SETTINGS}


def given_at(places: Place) -> Iterator[Setting]:
    """The settings of these places."""
    return (row for row in SETTINGS if row.places & places)


def stable_path(path: str) -> str:
    """An absolute path of the same file; a leading `~` stays until the file is opened. An empty path stays empty."""
    return path if not path or path.startswith("~") else os.path.abspath(path)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of a job. None or 0: detect the value (`dieselfs.cluster.job`).

    An empty `job` means no job, even if one is configured.
    """

    job: str | None = None
    job_nodes: int = 0
    job_node: str | None = None
    job_rank: int | None = None
    job_host: str | None = None
    job_secret: str | None = None

    def stated(self) -> Iterator[tuple[Setting, Any]]:
        """Rows and values of the fields that differ from the default."""
        for each in fields(self):
            if (value := getattr(self, each.name)) != each.default:
                yield _BY_FIELD[each.name], value

    def arguments(self) -> list[str]:
        """The command line for these settings."""
        words: list[str] = []
        for row, value in self.stated():
            words += [row.flag] if row.kind is SWITCH else [row.flag, str(value)]
        return words

    def absolute(self) -> Self:
        """The same settings with absolute paths, for a process in another folder."""
        paths: dict[str, Any] = {
            row.field: stable_path(v) for row, v in self.stated() if row.kind in (FILE, FOLDER)
        }
        return replace(self, **paths)

    def check(self) -> None:
        """Raises InvalidInput for a setting of a job without a job."""
        if self.job is None:
            for row, _ in self.stated():
                if row.field in JOB_FIELDS:
                    raise InvalidInput(
                        f"{row.flag} belongs to a job: give --job NAME as well (with -o: job=NAME)"
                    )


JOB_FIELDS = frozenset(each.name for each in fields(JobSettings))


@dataclass(frozen=True, slots=True)
class CacheOptions(JobSettings):
    """The settings of the daemon of a node. None, "" and 0 are the defaults."""

    server: str | None = None
    key_file: str | None = None
    home: str | None = None
    generation: int = 0
    where: str = ""
    memory_bytes: int = 0
    policy: str = ON_DEMAND
    warm_rate_bytes: int = 0
    disk: str | None = None
    disk_size_bytes: int = 0

    def check(self) -> None:
        """Raises InvalidInput for a setting that needs another one."""
        JobSettings.check(self)
        if self.disk_size_bytes and self.disk is None:
            raise InvalidInput(
                "--disk-size belongs to a disk: give --disk FOLDER as well (with -o: disk=FOLDER)"
            )


_CacheOptions = TypeVar("_CacheOptions", bound=CacheOptions)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client. `server` None means embedded."""

    home: Path
    cache: Path
    server: str | None = None
    key_file: str | None = None
    tls_ca: str | None = None
    tls: str = ON
    oidc_issuer: str = ""
    oidc_client_id: str = "dieselfs"
    oidc_ca: str | None = None
    etcd: EtcdAccess = field(default_factory=EtcdAccess)
    job: JobSettings = field(default_factory=JobSettings)
    job_memory_bytes: int = 0
    disk: str | None = None
    disk_size_bytes: int = 0
    is_older_allowed: bool = False
    max_age_s: float = 0.0
    """0: no limit."""
    snapshots: str | None = None
    identity: str = ""
    passphrase_file: str = ""
    patience_s: float = READ_PATIENCE_S
    """How long a read that failed on all servers is retried, and a connection may take; not a setting of users."""

    @classmethod
    def load(
        cls,
        server: str | None = None,
        key_file: str | None = None,
        tls_ca: str | None = None,
        home: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> "Settings":
        """The settings in force; arguments override others unless they are None. Raises InvalidInput for a malformed
        value or file.
        """
        user_home = Path(environment.get("HOME") or Path.home())
        data = Path(environment.get("XDG_DATA_HOME") or user_home / ".local/share")
        cache = Path(environment.get("XDG_CACHE_HOME") or user_home / ".cache")
        values = {field: one.value for field, one in given_values(environment).items()}
        own_home, server = home or values.get("home"), server or values.get("server")
        config = Path(environment.get("XDG_CONFIG_HOME") or user_home / ".config")
        made = {
            "home": Path(own_home or data / "dieselfs").expanduser().absolute(),
            "cache": Path(own_home).expanduser().absolute() / "cache" if own_home else cache / "dieselfs",
            "server": server,
            "key_file": key_file or values.get("key_file") or own_login(server, environment),
            "tls_ca": tls_ca or values.get("tls_ca"),
            "etcd": EtcdAccess.of(values),
            "job": JobSettings(**{name: values[name] for name in JOB_FIELDS & values.keys()}).absolute(),
            "disk": stable_path(values["disk"]) if "disk" in values else None,
            "is_older_allowed": values.get("allow_older") == YES,
            "identity": values.get("identity") or str(config / "dieselfs/identity"),
        }
        as_given = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        settings = cls(**(as_given | made))
        return replace(settings, server=None) if settings.server == EMBEDDED else settings

    def with_disk(self, options: _CacheOptions) -> _CacheOptions:
        """The options of a daemon; without a disk, with the configured one. An empty folder means no disk."""
        if options.disk is not None or not self.disk:
            return options
        size_bytes = options.disk_size_bytes or self.disk_size_bytes
        return replace(options, disk=self.disk, disk_size_bytes=size_bytes)

    def in_job(
        self, name: str | None, secret: str | os.PathLike[str] | None, memory_bytes: int | None
    ) -> "Settings":
        """The same settings; arguments that are not None replace the configured values of the job."""
        job = replace(
            self.job,
            job=self.job.job if name is None else name,
            job_secret=self.job.job_secret if secret is None else os.fspath(secret),
        )
        memory_bytes = self.job_memory_bytes if memory_bytes is None else memory_bytes
        return replace(self, job=job.absolute(), job_memory_bytes=memory_bytes)


@dataclass(frozen=True, slots=True)
class Given:
    """The value of a setting, its text, and where it stands: the name of a variable, or a file."""

    value: Any
    text: str
    where: str | Path


def login_file(server: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The key file of `dlcmd login` at a server, which need not exist."""
    home = Path(environment.get("HOME") or Path.home())
    state = Path(environment.get("XDG_STATE_HOME") or home / ".local/state")
    return state / f"dieselfs/logins/{sha256(server.encode()).hexdigest()[:16]}.key"


def own_login(server: str | None, environment: Mapping[str, str]) -> str | None:
    """That file, if there is one."""
    path = login_file(server, environment) if server else None
    return str(path) if path is not None and path.exists() else None


def user_config(environment: Mapping[str, str] = os.environ) -> Path:
    """The configuration file of this user, which need not exist."""
    if named := environment.get(BY_NAME["config"].variable):
        return Path(named)
    home = Path(environment.get("HOME") or Path.home())
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "dieselfs/config.toml"


def given_values(environment: Mapping[str, str]) -> dict[str, Given]:
    """What the environment and the configuration file say, by field. Raises InvalidInput for a malformed value or
    file.
    """
    given = {
        row.field: Given(row.read(text, row.variable), text, row.variable)
        for row in given_at(Place.ENVIRONMENT)
        if (text := environment.get(row.variable))
    }
    own = user_config(environment)
    for file in [own] if "config" in given else filter(Path.exists, [own, SYSTEM_CONFIG]):
        values = read_config(file, Place.CONFIG)
        texts = {BY_NAME[name].field: str(text) for name, text in read_toml(file).items() if name in BY_NAME}
        return {field: Given(value, texts[field], file) for field, value in values.items()} | given
    return given


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a configuration file. Raises InvalidInput, which names the file."""
    import tomllib  # not imported without a configuration file

    where = f"configuration file {path}"
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"{where}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{where}: {error}") from None


def read_config(path: Path, places: Place) -> dict[str, Any]:
    """The settings of these places in a TOML file, by field. Raises InvalidInput, which names the file."""
    texts = read_toml(path)
    if places & Place.CONFIG:
        texts.pop(REMOTES, None)
    return checked_values(texts, places, f"configuration file {path}")


def checked_values(texts: Mapping[str, Any], places: Place, where: str) -> dict[str, Any]:
    """The values of a TOML table, by field. Raises InvalidInput, which begins with `where`."""
    check_known(texts, places, where)
    return {BY_NAME[name].field: _read_toml(BY_NAME[name], value, where) for name, value in texts.items()}


def check_known(names: Iterable[str], places: Place, where: str) -> None:
    """Raises InvalidInput unless all names are settings of these places."""
    known = sorted(row.name for row in given_at(places))
    for name in names:
        if name not in known:
            raise InvalidInput(f"{where}: unknown setting {name!r} (known: {', '.join(known)})")


def _read_toml(row: Setting, value: Any, where: str) -> Any:
    if row.kind is ADDRESSES:
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise InvalidInput(f"{where}: {row.name} must be a list of strings in quotes")
        return value
    if not isinstance(value, str):
        raise InvalidInput(f"{where}: {row.name} must be a string in quotes")
    return row.read(value, f"{where}: {row.name}")
