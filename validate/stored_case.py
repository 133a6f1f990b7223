"""Where a case is: in the bundle, or in a folder of its own; read when its turn comes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnport.export.arrays import load_arrays
from attnport.export.bundle import Bundle, Case
from attnport.export.case_file import INPUT, REFERENCE
from attnport.export.records import CaseRecord


@dataclass(frozen=True)
class StoredCase:
    """A case on disk.

    Attributes:
        record: What is known of it.
        folder: What its file is relative to.
    """

    record: CaseRecord
    folder: Path

    @property
    def name(self) -> str:
        return self.record.name

    def load(self) -> Case:
        """Reads it.

        Raises:
            BundleError: If the file is not whole.
        """
        arrays = load_arrays(self.folder / self.record.file)

        def of(prefix: str) -> dict[str, np.ndarray]:
            return {
                name.removeprefix(prefix): array
                for name, array in arrays.items()
                if name.startswith(prefix)
            }

        return Case(self.record, of(INPUT), of(REFERENCE))


def shipped_cases(bundle: Bundle) -> list[StoredCase]:
    """Those that the bundle carries."""
    return [StoredCase(record, bundle.path) for record in bundle.manifest.cases]
