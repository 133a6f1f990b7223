"""The public names: what they are, and that each is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import attnport

NAMES = [
    "AttnportError",
    "Axis",
    "Bundle",
    "Engine",
    "EnginePlan",
    "Report",
    "__version__",
    "build_engine",
    "export_module",
    "open_decoding",
    "open_engine",
    "prove",
]
ROOMS = {"models", "export", "engines", "validate", "serve"}


def test_public_names_are_these() -> None:
    assert attnport.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_name_resolves(name: str) -> None:
    assert getattr(attnport, name) is not None
    assert name in dir(attnport)


def test_no_name_hides_a_room() -> None:
    assert not ROOMS & set(attnport.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'exportt'"):
        attnport.exportt  # noqa: B018


@pytest.mark.parametrize("name", ["build_engine", "open_engine", "prove", "Bundle", "Report"])
def test_verifying_needs_no_torch(name: str) -> None:
    code = f"import sys, attnport; attnport.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_errors_of_ours_have_one_base() -> None:
    from attnport import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = [kind for kind in kinds if issubclass(kind, attnport.AttnportError)]
    assert ours == kinds
    assert {kind.exit_code for kind in ours} == {2, 4}
