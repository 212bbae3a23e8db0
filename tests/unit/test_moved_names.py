"""Old import paths work for one release, with a warning that names the new one."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

import mama_spark
import pytest
from mama_spark import moved_names
from mama_spark.moved_names import MODULES, NAMES


@pytest.mark.parametrize("old", sorted(MODULES))
def test_an_old_module_warns_and_has_the_names_of_the_new_one(old: str) -> None:
    sys.modules.pop(f"mama_spark.{old}", None)
    new = import_module(f"mama_spark.{MODULES[old]}")
    with pytest.warns(DeprecationWarning, match="the old name goes with the next release") as seen:
        module = import_module(f"mama_spark.{old}")
    assert any(f"mama_spark.{MODULES[old]};" in str(w.message) for w in seen)
    for name in (n for n, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__):
        assert getattr(module, name) is getattr(new, name)
    sys.modules.pop(f"mama_spark.{old}", None)


@pytest.mark.parametrize("module", ["errors", "bridge"])
def test_an_old_class_of_a_module_that_stayed_warns(module: str) -> None:
    found = import_module(f"mama_spark.{module}")
    for old, new in NAMES[module].items():
        with pytest.warns(DeprecationWarning, match=f"{module}.{new}"):
            assert getattr(found, old) is getattr(found, new)
    with pytest.raises(AttributeError, match="never_there"):
        _ = found.never_there


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_module("mama_spark.never_there")


def test_importing_the_package_imports_no_successor() -> None:
    code = "import sys, mama_spark; print([m for m in sys.modules if m.startswith('mama_spark.')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "['mama_spark.moved_names']"


def renamed() -> list[tuple[str, str, str]]:
    """Every path under which a renamed name could be imported, the old name, and what it is now."""
    found = []
    for module, names in NAMES.items():
        paths = [old for old, new in MODULES.items() if new == module] or [module]
        found += [(path, name, f"{module}.{new}") for path in paths for name, new in names.items()]
    return sorted(found)


@pytest.mark.parametrize(("path", "name", "now"), renamed(), ids=lambda text: text)
def test_an_old_name_warns_at_its_old_path_and_is_the_new_one(path: str, name: str, now: str) -> None:
    module, _, new = now.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the path, which has a test of its own
        found = import_module(f"mama_spark.{path}")
        if path == module and name not in vars(found) and "__getattr__" not in vars(found):
            found = import_module(f"mama_spark.{path.rpartition('.')[0]}")  # a module that became a package
    with pytest.warns(DeprecationWarning, match=rf"{re.escape(now)}; the old name goes"):
        value = getattr(found, name)
    assert value is getattr(import_module(f"mama_spark.{module}"), new)


@pytest.mark.parametrize("old", sorted(MODULES))
def test_an_old_module_has_no_name_that_never_was(old: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = import_module(f"mama_spark.{old}")
    with pytest.raises(AttributeError, match="never_there"):
        _ = module.never_there


def test_a_folder_that_is_gone_has_only_modules() -> None:
    gone = [name for name in moved_names._PACKAGES - MODULES.keys() if name and find(name) is None]
    for name in gone:
        with pytest.raises(AttributeError, match="never_there"):
            _ = import_module(f"mama_spark.{name}").never_there


def find(name: str) -> object:
    """The file of a package, None where only :mod:`mama_spark.moved_names` knows it."""
    *folders, _ = name.split(".")
    spec = PathFinder.find_spec(f"mama_spark.{name}", [str(Path(mama_spark.__file__).parent.joinpath(*folders))])
    return None if spec is None else spec.origin


def test_a_package_whose_names_are_lazy_has_no_others() -> None:
    find = moved_names.lazy("mama_spark.bridges.nats", {"NatsBridge": "publish.bridge", "NatsSettings": "settings"})
    assert find("NatsSettings").__name__ == "NatsSettings"
    with pytest.raises(AttributeError, match=r"bridges\.nats' has no attribute 'never_there'"):
        find("never_there")


def test_the_finder_is_installed_once_and_knows_only_old_modules() -> None:
    moved_names.install()
    assert sys.meta_path.count(moved_names._Finder) == 1
    assert moved_names._Finder.find_spec("json") is None
    assert moved_names._Finder.find_spec("mama_spark.never_there") is None
    spec = moved_names._Finder.find_spec("mama_spark.log")
    assert spec is not None
    assert spec.submodule_search_locations is None


def test_old_modules_are_looked_up_once_however_often_it_is_installed() -> None:
    before = list(sys.meta_path)
    moved_names.install()
    assert sys.meta_path == before
