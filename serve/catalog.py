"""The models that are served, by name and version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attnport.errors import UsageError
from attnport.serve.refusal import RefusedError
from attnport.serve.served_model import ServedModel


class Catalog:
    """Finds a model; without a version, its highest.

    Raises:
        UsageError: If one version of one name is given twice, or there are none.
    """

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._by_name: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            versions = self._by_name.setdefault(model.name, {})
            if model.version in versions:
                raise UsageError(
                    f"two bundles are to be version {model.version} of {model.name!r}: write "
                    "NAME=BUNDLE or NAME:VERSION=BUNDLE"
                )
            versions[model.version] = model
        if not self._by_name:
            raise UsageError("no bundle was named: give one at least")

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._by_name.values():
            yield from versions.values()

    def find(self, name: str, version: str | None) -> ServedModel:
        """The model of a URL.

        Raises:
            RefusedError: With status 404, if there is none.
        """
        versions = self._by_name.get(name)
        if versions is None:
            known = ", ".join(self._by_name)
            raise RefusedError(404, f"there is no model {name[:80]!r}: there are {known}")
        if version is None:
            return versions[max(versions, key=int)]
        if version not in versions:
            known = ", ".join(self.versions(name))
            raise RefusedError(
                404, f"there is no version {version[:20]!r} of model {name!r}: there are {known}"
            )
        return versions[version]

    def versions(self, name: str) -> list[str]:
        """In ascending order."""
        return sorted(self._by_name[name], key=int)
