"""Old import paths work for one release, with a warning that names the new one."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from mama_spark.moved_names import MODULES, NAMES


def gone() -> list[str]:
    """Old modules that are not packages of the same name now."""
    return sorted(MODULES)


@pytest.mark.parametrize("old", gone())
def test_an_old_module_warns_and_has_the_names_of_the_new_one(old: str) -> None:
    sys.modules.pop(f"mama_spark.{old}", None)
    new = import_module(f"mama_spark.{MODULES[old]}")
    with pytest.warns(DeprecationWarning, match="the old name goes with the next release") as seen:
        module = import_module(f"mama_spark.{old}")
    assert any(f"mama_spark.{MODULES[old]};" in str(w.message) for w in seen)
    for name in (n for n, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__):
        assert getattr(module, name) is getattr(new, name)
    sys.modules.pop(f"mama_spark.{old}", None)


@pytest.mark.parametrize("module", sorted(NAMES))
def test_every_renamed_name_leads_to_one_that_is_there(module: str) -> None:
    found = import_module(f"mama_spark.{module}")
    assert [new for new in NAMES[module].values() if not hasattr(found, new)] == []


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
