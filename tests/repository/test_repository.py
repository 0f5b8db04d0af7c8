"""The repository keeps its rules (`rules.py`). A failure lists every place, with what to do there."""

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from tests.repository.prose import word_faults
from tests.repository.rules import (
    LAYERS,
    danger_faults,
    effect_faults,
    layer_faults,
    length_faults,
    linked_files,
    mentioned_documents,
    remarks,
    sleep_faults,
    suppression_faults,
    swallowing_faults,
    two_way_faults,
)
from tests.support.documents import REPOSITORY

ROOT_BY_PACKAGE = {
    "dieselfs": REPOSITORY / "dieselfs",
    "dieselfs_server": REPOSITORY / "server" / "dieselfs_server",
    "dieselfs_client": REPOSITORY / "client" / "dieselfs_client",
    "dieselfs_tools": REPOSITORY / "tools" / "dieselfs_tools",
    "lab": REPOSITORY / "tools" / "lab",
    "bench": REPOSITORY / "tools" / "bench",
    "fuzz": REPOSITORY / "tools" / "fuzz",
}
TESTS_BY_PACKAGE = {
    "dieselfs": "dieselfs",
    "dieselfs_server": "server",
    "dieselfs_client": "client",
    "dieselfs_tools": "tools",
    "lab": "cluster",
    "bench": "tools/bench",
    "fuzz": "tools/fuzz",
}

WITHOUT_TWIN: dict[str, str] = {
    "tools/fuzz/imports.py": "targets, which tests/tools/fuzz/test_targets.py tries",
    "tools/fuzz/local.py": "targets, which tests/tools/fuzz/test_targets.py tries",
    "tools/fuzz/small_snapshot.py": "an input of tests/tools/fuzz/test_targets.py",
    "tools/lab/machine.py": "tests/cluster/test_systemd.py boots two",
    "tools/lab/ssh.py": "tests/cluster/test_cluster_from_nothing.py installs three machines by it",
    "tools/fuzz/target.py": "a record of tests/tools/fuzz/test_targets.py",
    "client/dieselfs_client/cluster/node_paths.py": "tests/client/cluster/test_role.py",
    "dieselfs/net/sockets.py": "tests/dieselfs/process/test_embedded_server.py and every test over a socket",
    "dieselfs/arrays.py": "names of types",
    "dieselfs/dataset/reader.py": "tests/dieselfs/dataset/test_dataset.py reads, refreshes and pickles through it",
    "dieselfs/errors.py": "a list of names; each is raised in the tests of what raises it",
    "dieselfs/limits.py": "numbers that assert how they relate when they are imported",
    "dieselfs/records.py": "records without behaviour",
    "dieselfs/rpc/records.py": "records without behaviour",
    "dieselfs/rpc/client.py": "tests/server/test_service.py calls all of it over a real socket",
    "dieselfs/rpc/server_connections.py": "tests/server/test_service.py and end_to_end/test_several_servers.py use it",
    "dieselfs/rpc/connection.py": "tests/server/test_listener.py, from both ends of a real socket",
    "client/dieselfs_client/mount/drivers/driver.py": "tests/client/mount/drivers/test_kernel_driver.py and test_pyfuse3_driver.py",
    "dieselfs/net/urls.py": "tests/server/test_urls.py: in all settings that take a URL",
    "dieselfs/transfer/report.py": "tests/dieselfs/transfer/test_upload.py and test_download.py",
    "dieselfs/transfer/sender.py": "tests/dieselfs/transfer/test_upload.py: servers that fail and die",
    "dieselfs/transfer/writer.py": "tests/dieselfs/dataset/test_dataset.py puts and deletes through it",
    "server/dieselfs_server/assemble.py": "every test over a running server",
    "server/dieselfs_server/datasets/catalog.py": "tests/server/test_service.py",
    "dieselfs/rpc/serving/*.py": "tests/server/test_listener.py: strangers, broken clients and false servers",
    "server/dieselfs_server/dispatcher.py": "tests/server/test_listener.py, over real sockets",
    "server/dieselfs_server/handlers/*.py": "tests/server/test_service.py and tests/server/test_maintenance.py",
    "server/dieselfs_server/maintenance/fsck.py": "tests/server/test_maintenance.py",
    "server/dieselfs_server/maintenance/purge.py": "tests/server/test_maintenance.py",
    "server/dieselfs_server/main.py": "tests/cluster and every other test with a server: tools/lab/server.py starts it",
    "server/dieselfs_server/web/events.py": "tests/server/web/test_app.py reads the events of a server",
    "server/dieselfs_server/web/guard.py": "tests/server/web/test_app.py: names, methods and headers of every answer",
    "server/dieselfs_server/web/page.py": "tests/tools/commands/test_dashboard.py and tests/server/web/test_app.py",
    "server/dieselfs_server/metadata/interface.py": "a contract; tests/conformance/metadata_suite.py holds it",
    "server/dieselfs_server/metadata/sqlite/*.py": "parts of one store: tests/server/metadata/sqlite/test_store.py",
    "server/dieselfs_server/store/interface.py": "a contract; each store is held to it",
    "server/dieselfs_server/store/posix_files.py": "a part of one store: tests/server/store/test_posix.py",
    "dieselfs/sources/interface.py": "a contract, and tests/dieselfs/sources/test_counted.py",
    "client/dieselfs_client/supervision/child.py": "tests/client/supervision/test_supervisor.py: they die, stop, hang",
    "client/dieselfs_client/supervision/startup_report.py": "tests/client/supervision/test_supervisor.py",
    "client/dieselfs_client/zygote.py": "tests/client/supervision/test_supervisor.py: daemons are forks",
    "tools/dieselfs_tools/observe/faults.py": "tests/tools/commands/test_chaos.py",
    "tools/dieselfs_tools/cli/json_fields.py": "a table; tests/tools/cli/test_json_schema.py",
    "tools/dieselfs_tools/commands/upgrade.py": "tests/tools/commands/test_mount.py replaces a daemon",
    "tools/dieselfs_tools/commands/completion.py": "tests/tools/cli/test_completion.py has bash source its script",
    "tools/dieselfs_tools/commands/mounts.py": "tests/tools/commands/test_mount.py goes there and back",
    "client/dieselfs_client/daemon/private_mount.py": "tests/tools/commands/test_run.py",
    "tools/dieselfs_tools/cli/mount_options.py": "tests/tools/commands/test_mount.py: options, environment, configuration",
    "tools/dieselfs_tools/commands/umount.py": "tests/tools/commands/test_mount.py goes there and back",
    "tools/dieselfs_tools/cli/limit_list.py": "tests/tools/commands/test_limit.py and test_quota.py",
    "tools/dieselfs_tools/transfers/folder_sync.py": "tests/tools/commands/test_sync_to_folder.py",
    "tools/dieselfs_tools/transfers/local_trees.py": "tests/tools/commands/test_check.py and test_sync_to_folder.py",
    "tools/dieselfs_tools/transfers/check_runner.py": "tests/tools/commands/test_check.py",
    "tools/dieselfs_tools/cli/config_probe.py": "tests/tools/commands/test_config.py",
    "tools/dieselfs_tools/cli/confirmation.py": "tests/tools/commands/test_rb.py types into a terminal",
    "tools/dieselfs_tools/transfers/copy_runner.py": "tests/tools/commands/test_cp.py and test_mv.py",
    "tools/dieselfs_tools/archives/import_runner.py": "tests/tools/commands/test_import_.py",
    "tools/dieselfs_tools/archives/attach_runner.py": "tests/tools/commands/test_attach.py",
    "tools/dieselfs_tools/archives/attached_runner.py": "tests/tools/commands/test_attach.py and test_detach.py",
    "dieselfs/attached/interface.py": "a contract; tests/dieselfs/attached/test_local_file.py",
    "dieselfs/attached/opening.py": "tests/dieselfs/attached/test_local_file.py",
    "tools/dieselfs_tools/archives/importing/packages.py": "one import; the readers use it",
    "tools/dieselfs_tools/archives/importing/record.py": "tests/tools/commands/test_import_.py: small, large, cut off",
    "tools/dieselfs_tools/archives/importing/formats.py": "tests/tools/commands/test_import_.py, and the tests of each reader",
    "tools/dieselfs_tools/archives/export_runner.py": "tests/tools/commands/test_export.py",
    "tools/dieselfs_tools/archives/exporting/lmdb_writer.py": "tests/tools/commands/test_export.py: read back by lmdb",
    "tools/dieselfs_tools/archives/exporting/tar_writer.py": "tests/tools/commands/test_export.py: read back by tarfile",
    "tools/dieselfs_tools/transfers/put_runner.py": "tests/tools/commands/test_put.py",
    "tools/dieselfs_tools/transfers/upload_runner.py": "tests/tools/commands/test_put.py",
    "tools/dieselfs_tools/transfers/download_runner.py": "tests/tools/commands/test_get.py",
    "client/dieselfs_client/daemon/service.py": "tests/client/daemon/test_mount_daemon.py, tests/client/test_cache_daemon.py run it",
    "client/dieselfs_client/supervision/remains.py": "tests/tools/commands/test_run.py kills all that would unmount",
    "tools/dieselfs_tools/cli/session.py": "tests/tools/cli/test_command_line.py: options, environment, configuration file",
    "tools/lab/namespace.py": "tests/cluster/test_network.py: hosts are namespaces",
    "tools/lab/packet_filter.py": "tests/cluster/test_network.py: what is lost, and what is not",
    "tools/lab/cluster.py": "tests/cluster/test_failover.py and tests/cluster/test_registry.py run on it",
    "tools/lab/mount_processes.py": "tests/client/supervision/test_adoption.py kills all of them",
    "tools/lab/job.py": "tests/cluster/test_job_once.py mounts jobs of 1 to 8 nodes",
    "tools/lab/redis_process.py": "tests/server/metadata/redis/test_client.py kills and starts it again",
    "tools/lab/server.py": "every test over a running server",
    "tools/fuzz/__main__.py": "tests/tools/fuzz/test_targets.py tries inputs as it does",
    "tools/bench/*.py": "measurements; their arithmetic has tests in tests/tools/bench/test_figures.py",
}
"""Modules (or, with a `*`, all that match) that have no test file of their own name, and why."""


def modules(*roots: Path) -> Iterator[Path]:
    for root in roots:
        yield from sorted(root.rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def holds(faults_of: Callable[[str], Iterable[str]], paths: Iterable[Path]) -> None:
    """Fail with all faults of all these files at once."""
    faults = [
        f"{shown(path)}:{fault}" for path in paths for fault in faults_of(path.read_text(encoding="utf-8"))
    ]
    assert not faults, "\n" + "\n".join(faults)


PRODUCT = list(ROOT_BY_PACKAGE.values())
TESTS = REPOSITORY / "tests"


def test_packages_import_only_what_lies_below_them() -> None:
    assert set(ROOT_BY_PACKAGE) == set(LAYERS)
    for package, root in ROOT_BY_PACKAGE.items():
        holds(partial(layer_faults, package=package), modules(root))


def test_packages_do_not_import_each_other() -> None:
    sources = {
        ".".join((package, *module.relative_to(root).with_suffix("").parts)): module.read_text(
            encoding="utf-8"
        )
        for package, root in ROOT_BY_PACKAGE.items()
        for module in modules(root)
    }
    faults = list(two_way_faults({name.removesuffix(".__init__"): text for name, text in sources.items()}))
    assert not faults, "\n" + "\n".join(faults)


def test_modules_of_dieselfs_say_when_they_touch_the_world() -> None:
    holds(effect_faults, modules(REPOSITORY / "dieselfs"))


def test_functions_and_modules_are_short() -> None:
    holds(length_faults, modules(*PRODUCT, TESTS))


def test_nothing_runs_code_from_outside() -> None:
    holds(danger_faults, modules(*PRODUCT))


def test_nobody_is_told_to_install_from_an_index() -> None:
    """dieselfs is on no index. A stranger who registers the name there could run code on its users' machines."""
    pages = (
        page for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.*") for page in REPOSITORY.glob(pattern)
    )
    told = re.compile(r"pip3? install (?:-\S+ )*['\"]?dieselfs\b")
    found = [shown(page) for page in (*pages, *modules(*PRODUCT)) if told.search(page.read_text("utf-8"))]
    assert not found, f"write pip install '.[...]', in a checkout: {found}"


def test_catching_every_error_has_a_reason() -> None:
    holds(swallowing_faults, modules(*PRODUCT))


def test_docstrings_and_comments_use_established_words() -> None:
    holds(lambda source: word_faults(remarks(source)), modules(*PRODUCT))


def test_tests_do_not_sleep_and_hope() -> None:
    holds(sleep_faults, modules(TESTS))


def test_suppressions_have_a_reason() -> None:
    holds(suppression_faults, modules(*PRODUCT, TESTS))


def test_modules_say_what_they_are() -> None:
    def faults(source: str) -> Iterator[str]:
        if source.strip() and not source.startswith('"""'):
            yield "1: say in a docstring what the module is"

    holds(faults, modules(*PRODUCT, TESTS / "support", TESTS / "conformance"))


def test_every_module_has_a_test_twin() -> None:
    faults = []
    unused = set(WITHOUT_TWIN)
    for package, root in ROOT_BY_PACKAGE.items():
        for module in modules(root):
            place = module.relative_to(root)
            twin = TESTS / TESTS_BY_PACKAGE[package] / place.parent / f"test_{place.name}"
            excused = {pattern for pattern in WITHOUT_TWIN if fnmatchcase(shown(module), pattern)}
            if module.name != "__init__.py" and not excused and not twin.exists():
                faults.append(f"{shown(module)}: write {shown(twin)}, or give the reason in WITHOUT_TWIN")
            unused -= excused
    faults += [
        f"{pattern}: there is no {name}"
        for pattern, reason in WITHOUT_TWIN.items()
        for name in re.findall(r"tests/[\w/]+\.py", reason)
        if not (REPOSITORY / name).exists()
    ]
    faults += [
        f"{pattern}: matches nothing any more: take it out of WITHOUT_TWIN" for pattern in sorted(unused)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_documents_that_are_named_exist() -> None:
    texts = [
        *modules(*PRODUCT, TESTS),
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
        REPOSITORY / "Makefile",
    ]
    own_examples = TESTS / "repository" / "test_rules.py"
    gone = [
        f"{shown(path)}:{line}: there is no {name}"
        for path in texts
        if path != own_examples
        for line, name in mentioned_documents(path.read_text(encoding="utf-8"))
        if not (REPOSITORY / name).exists()
    ]
    assert not gone, "\n" + "\n".join(gone)


def test_links_lead_somewhere() -> None:
    dead = [
        f"{shown(path)}:{line}: there is no {name}"
        for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
        for line, name in linked_files(path.read_text(encoding="utf-8"))
        if not (path.parent / name).exists()
    ]
    assert not dead, "\n" + "\n".join(dead)


def test_tests_that_documents_name_exist() -> None:
    """Those of attacks, above all: a row whose test was renamed says nothing any more."""
    gone = []
    for page in REPOSITORY.glob("docs/**/*.md"):
        for path, function in re.findall(
            r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", page.read_text("utf-8")
        ):
            source = (TESTS / path).read_text("utf-8") if (TESTS / path).exists() else ""
            if not source or (
                function and not re.search(rf"^ *(async )?def {function}\(", source, re.MULTILINE)
            ):
                gone.append(f"{shown(page)}: there is no tests/{path}::{function}")
    assert not gone, "\n" + "\n".join(gone)


def test_modules_that_the_internals_name_exist() -> None:
    modules_there = [shown(path) for path in modules(*PRODUCT, TESTS)]
    gone = [
        f"{shown(page)}:{line}: there is no {name}"
        for page in REPOSITORY.glob("docs/internals/*.md")
        for line, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for name in re.findall(r"[\w/]*\w\.py\b", text)
        if not any(f"/{module}".endswith(f"/{name}") for module in modules_there)
    ]
    assert not gone, "\n" + "\n".join(gone)
