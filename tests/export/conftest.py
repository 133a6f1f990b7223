"""What the tests of this room share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.export.evaluation")
