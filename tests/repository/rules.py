"""The rules that this repository keeps, as plain functions: a module's source in, what breaks the rule out.

Each finding begins with the line, and says what to do instead. `test_rules.py` shows each rule at work,
`test_repository.py` holds the repository to all of them.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

FUNCTION_LINES_MAX = 70
"""Of a function's body, without its docstring."""
MODULE_LINES_WARNED = 500
MODULE_LINES_MAX = 700

LAYERS: dict[str, frozenset[str]] = {
    "dieselfs": frozenset(),
    "dieselfs_server": frozenset({"dieselfs"}),
    "dieselfs_client": frozenset({"dieselfs"}),
    "dieselfs_tools": frozenset({"dieselfs", "dieselfs_client"}),
    "lab": frozenset({"dieselfs", "dieselfs_client", "dieselfs_server", "dieselfs_tools"}),
    "bench": frozenset({"dieselfs", "dieselfs_client", "dieselfs_server", "dieselfs_tools", "lab"}),
    "fuzz": frozenset({"dieselfs", "dieselfs_client", "dieselfs_server", "dieselfs_tools"}),
}
"""Which of our packages each one may import: tools -> client -> dieselfs <- server, and never the other way."""

EFFECT_MODULES = frozenset(
    (
        "asyncio",
        "ctypes",
        "fcntl",
        "http",
        "mmap",
        "multiprocessing",
        "pathlib",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "trio",
        "urllib",
    )
)
"""What a module of `dieselfs` cannot import without touching the world."""

PURE_OS_NAMES = frozenset(
    (
        "PathLike",
        "cpu_count",
        "environ",
        "fsdecode",
        "fsencode",
        "fspath",
        "getpid",
        "path",
        "sep",
        "stat_result",
    )
)
WORLDLY_OS_PATH_NAMES = frozenset(
    ("exists", "expanduser", "getmtime", "getsize", "isdir", "isfile", "islink", "lexists", "realpath")
)

_SAYS_SO = re.compile(r"\bThis module\s+\w+")
_CATCHES_ALL = re.compile(r"^\s*except Exception\b")
_REASON = re.compile(r"\s*#\s*\S.{7,}")
_SUPPRESSION = re.compile(
    r"#\s*(?P<kind>type:\s*ignore|noqa)(?P<codes>\[[\w ,-]+\]|:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?(?P<rest>.*)"
)
_DOCUMENT = re.compile(r"\bdocs/(?:[\w-]+/)*[\w-]+\.md\b")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def layer_faults(source: str, package: str) -> Iterator[str]:
    """Imports of a package that this one may not know."""
    for line, name in imports(ast.parse(source)):
        imported = name.partition(".")[0]
        if imported == "tests" or (imported in LAYERS and imported not in LAYERS[package] | {package}):
            yield (
                f"{line}: {package} imports {name}; the layers are tools -> client -> dieselfs <- server: "
                "move what both need to dieselfs/"
            )


def two_way_faults(source_by_module: Mapping[str, str]) -> Iterator[str]:
    """Pairs of packages that import each other. The root of a tree is not counted: what lies there is for all of it."""
    pairs: dict[tuple[str, str], str] = {}
    for module, source in source_by_module.items():
        package = module.rpartition(".")[0]
        for _, name in imports(ast.parse(source)):
            name = _module_of(name, source_by_module)
            imported = name.rpartition(".")[0]
            if package != imported and "." in package and "." in imported:
                pairs.setdefault((package, imported), f"{module} imports {name}")
    for (package, imported), example in sorted(pairs.items()):
        if package < imported and (imported, package) in pairs:
            yield (
                f"{package} and {imported} import each other ({example}; {pairs[imported, package]}): "
                "move what both need below them"
            )


def circle_fault(source_by_module: Mapping[str, str]) -> str | None:
    """Modules that import each other in a circle, also where a function does it later."""
    imported = {
        module: {_module_of(name, source_by_module) for _, name in imports(ast.parse(source))} - {module, ""}
        for module, source in source_by_module.items()
    }
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return f"{' <- '.join(error.args[1])}: modules import each other; move what both need below them"
    return None


def _module_of(name: str, modules: Mapping[str, str]) -> str:
    """The module that an import of `name` loads; "" if it is not among them."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def effect_faults(source: str) -> Iterator[str]:
    """The first effect in a module of `dieselfs` whose docstring does not begin with "... This module opens ..."."""
    tree = ast.parse(source)
    first_paragraph = (ast.get_docstring(tree) or "").partition("\n\n")[0]
    if not _SAYS_SO.search(first_paragraph):
        for line, what in sorted(_effects(tree))[:1]:
            yield (
                f"{line}: {what}; say so in the first paragraph of the module's docstring "
                '("This module opens files."), or move it to where effects are'
            )


def _effects(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for line, name in imports(tree):
        if name.partition(".")[0] in EFFECT_MODULES and not name.startswith("urllib.parse"):
            yield line, f"imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield node.lineno, "opens a file"
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            owner, _, attribute = name.rpartition(".")
            if (owner == "os" and attribute not in PURE_OS_NAMES) or (
                owner == "os.path" and attribute in WORLDLY_OS_PATH_NAMES
            ):
                yield node.lineno, f"uses {name}"


def module_length(source: str, limit: int) -> str | None:
    """The finding for a module of more than `limit` lines."""
    lines = source.count("\n")
    return (
        f"1: the module has {lines} lines, limit {limit}: is there a second idea inside?"
        if lines > limit
        else None
    )


def length_faults(source: str) -> Iterator[str]:
    """Functions and modules that are too long."""
    if (lines := module_length(source, MODULE_LINES_MAX)) is not None:
        yield lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body and body[-1].end_lineno else 0
            if length > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: the body of {node.name} has {length} lines, limit {FUNCTION_LINES_MAX}: split it"


def danger_faults(source: str) -> Iterator[str]:
    """What runs code that comes from outside."""
    for line, name in imports(ast.parse(source)):
        if name.partition(".")[0] in ("pickle", "marshal", "shelve"):
            yield f"{line}: imports {name}; reading stored or received bytes with it runs code: use msgpack or columns"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = _called(node, "eval", "exec", "load")
        if called in ("eval", "exec", "yaml.load", "torch.load"):
            yield f"{node.lineno}: calls {called}, which runs code: parse the text instead"
        for keyword in node.keywords:
            if keyword.arg in ("shell", "allow_pickle") and ast.unparse(keyword.value) != "False":
                yield f"{node.lineno}: {keyword.arg}=True runs code: give a list of arguments, or another format"


def _called(call: ast.Call, *names: str) -> str:
    """What is called, if the last part of its name is one of these: to make text of each call takes seconds."""
    last = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return ast.unparse(call.func) if last in names else ""


def sleep_faults(source: str) -> Iterator[str]:
    """Tests that sleep and hope. Asking again and again, in a `while` with a condition, is waiting and may sleep."""
    tree = ast.parse(source)
    names = {name for _, name in imports(tree)}
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant)
    ]
    waiting = {inner for loop in loops for inner in ast.walk(loop)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in waiting:
            called = _called(node, "sleep")
            if called == "time.sleep" or (called == "sleep" and "time.sleep" in names):
                yield f"{node.lineno}: a test sleeps; wait for what must happen, or give the code a clock"


_UNDONE = re.compile(r"\b(TODO|FIXME|XXX)\b")


def suppression_faults(source: str) -> Iterator[str]:
    """`# type: ignore` and `# noqa` without a code or without a reason, and marks that something is not done."""
    if not _SUPPRESSION.search(source) and not _UNDONE.search(source):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        match = _SUPPRESSION.search(token.string)
        if match and not match["codes"]:
            yield f"{line}: {match['kind']!r} silences everything: name the code"
        elif match and not _REASON.fullmatch(match["rest"]):
            yield f"{line}: {match['kind']!r} without a reason: write it behind, as a second comment"
        if _UNDONE.search(token.string):
            yield f"{line}: {token.string[:60]!r}: do it, or write an issue"


def swallowing_faults(source: str) -> Iterator[str]:
    """`except Exception` without a comment that says why. Blocks that raise the error again write BaseException."""
    for number, line in enumerate(source.splitlines(), 1):
        if _CATCHES_ALL.search(line) and "#" not in line:
            yield f"{number}: catches every error: say why, in a comment on this line"


def mentioned_documents(text: str) -> Iterator[tuple[int, str]]:
    """Line and path of each `docs/*.md` that a text names."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, match) for match in _DOCUMENT.findall(line))


def linked_files(text: str) -> Iterator[tuple[int, str]]:
    """Line and path of each file of this repository that a Markdown text links to."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, match) for match in _LINK.findall(line))
