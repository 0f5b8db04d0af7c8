"""Every public name of the library is explained in the guide, and stands on the page of the API."""

import re

import dieselfs
from dieselfs.errors import DieselfsError
from tests.support.documents import DOCUMENTS

GUIDE = (DOCUMENTS / "guide/python.md").read_text(encoding="utf-8")
API = (DOCUMENTS / "reference/api.md").read_text(encoding="utf-8")


def test_the_guide_explains_every_public_method_of_a_dataset() -> None:
    explained = set(re.findall(r"`(?:data\.)?(\w+)(?:\([^`]*\))?`", GUIDE)) | {"connect"}
    methods = {name for name in vars(dieselfs.Dataset) if not name.startswith("_")}
    assert methods <= explained, methods - explained


def test_the_guide_names_every_public_error() -> None:
    errors = {
        name
        for name in dieselfs.__all__
        if isinstance(kind := getattr(dieselfs, name), type) and issubclass(kind, DieselfsError)
    }
    assert all(f"`{name}`" in GUIDE or f"dieselfs.{name}`" in GUIDE for name in errors)


def test_the_page_of_the_api_has_every_public_name() -> None:
    named = set(re.findall(r"^::: dieselfs\.(\w+)$", API, re.MULTILINE))
    assert "errors" in named, "all errors are there with their module"
    others = {
        name
        for name in dieselfs.__all__
        if name != "__version__"
        and not (isinstance(kind := getattr(dieselfs, name), type) and issubclass(kind, DieselfsError))
    }
    assert others <= named, others - named
