"""What `prove` says where torch, the module or a sensible argument is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.validate.small_bundle import inspection

from attnport.engines import libraries
from attnport.errors import UsageError
from attnport.export.bundle import Bundle
from attnport.validate import prove as proving
from attnport.validate.extent import Extent
from attnport.validate.prove import prove


def test_further_cases_without_torch_name_the_extra(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "why_missing", lambda library: f"{library} is not installed")
    with pytest.raises(
        UsageError, match=r"torch is not installed: `pip install 'attnport\[export"
    ):
        prove(bundle, ["ort-cpu"], extent=Extent(further=True))


def test_further_cases_without_a_source_say_where_a_module_comes_from(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=r"does not say what it was made from: pass module="):
        prove(bundle, ["ort-cpu"], extent=Extent(further=True))


def test_torch_engines_without_torch_name_the_extra(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "why_missing", lambda library: f"{library} is not installed")
    report = prove(bundle, ["torch-eager"], inspection=inspection())
    (found,) = [f for f in report.findings if (f.check, f.engine) == ("parity", "torch-eager")]
    assert found.message == "torch is not installed: `pip install 'attnport[export]'`"


PARITY_WITHOUT_TORCH = """\
import sys
sys.modules["torch"] = None
from attnport.validate import prove as proving
assert "onnxruntime" not in sys.modules and "onnx" not in sys.modules
from attnport.export.bundle import Bundle
from attnport.export.records import Inspection
bundle = Bundle.load(sys.argv[1])
held = Inspection(
    attentions=bundle.manifest.attentions, projection_groups=bundle.manifest.projection_groups
)
sys.exit(proving.prove(bundle, ["ort-cpu", "torch-eager"], inspection=held).exit_code)
"""


def test_a_machine_without_torch_proves_parity_from_the_shipped_cases(bundle: Bundle) -> None:
    command = [sys.executable, "-c", PARITY_WITHOUT_TORCH, str(bundle.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_no_list_of_engines_and_no_module_is_refused(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=r"give a list of kinds, \['ort-cpu'\]"):
        prove(bundle, "ort-cpu")
    with pytest.raises(UsageError, match=r"module is 3: give a torch\.nn\.Module"):
        prove(bundle, ["ort-cpu"], module=3)  # type: ignore[arg-type]  # wrong on purpose
