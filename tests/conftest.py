"""What every test shares."""

from __future__ import annotations

import pytest

# Before any test module imports them: several folders do, and later it is too late.
pytest.register_assert_rewrite("tests.export.evaluation", "tests.export.exported")
