"""The packs that are served: which versions, from where, and what was left out and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs

from spinf_core.errors import Rejected
from spinf_core.packs.evaluate import Evaluator
from spinf_core.packs.file import Pack
from spinf_core.protocol.text import quoted


@attrs.frozen(kw_only=True, eq=False)
class Enabled:
    """A version of a pack that may be asked for.

    Attributes:
        pack, evaluator: of this version.
        status: `available` or `deprecated`.
        name, description, tags, note: for people.
        source: where it came from.
    """

    pack: Pack
    evaluator: Evaluator
    status: str
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""
    source: str


@attrs.frozen(kw_only=True)
class Skipped:
    """A version that a source has and that is not served."""

    id: str
    version: str
    source: str
    why: str

    def __str__(self) -> str:
        return f"pack {self.id} {self.version} of {self.source} is not enabled: {self.why}"


@attrs.frozen(eq=False)
class Catalog:
    """The enabled packs, each with its versions in ascending order, and the skipped ones."""

    enabled: Mapping[str, tuple[Enabled, ...]] = attrs.field(factory=dict)
    skipped: tuple[Skipped, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        """Of the enabled packs."""
        return frozenset(self.enabled)

    @property
    def known(self) -> frozenset[str]:
        """Ids of the enabled packs and of those that were skipped."""
        return self.ids | {skipped.id for skipped in self.skipped}

    def packs(self) -> Iterator[Pack]:
        """Every enabled version."""
        return (version.pack for versions in self.enabled.values() for version in versions)

    def latest(self, id_: str) -> Enabled:
        """The version that a call without one gets: the newest that is not deprecated, or the newest."""
        versions = self.enabled[id_]
        available = [version for version in versions if version.status == "available"]
        return (available or versions)[-1]

    def find(self, id_: str, version: str | None, param: str | None = None) -> Enabled:
        """The version asked for, or the latest.

        Args:
            id_: of the pack. version: or None.
            param: path of the call's entry; None where the pack is asked for by its path, which makes errors 404.

        Raises:
            Rejected: `unknown_pack`, `unknown_pack_version`, or `pack_not_available` for one that was skipped.
        """

        def fault(code: str, field: str, message: str) -> Rejected:
            if param is None:
                code = "unknown_pack" if field == "id" else "unknown_pack_version"
                return Rejected(code, message, status=404)
            return Rejected(code, f"{param}.{field}: {message}", f"{param}.{field}")

        versions = self.enabled.get(id_, ())
        skipped = [each for each in self.skipped if each.id == id_]
        if not versions:
            if not skipped:
                message = f"this server has no pack {quoted(id_)}; GET /v1/packs lists those it has"
                raise fault("unknown_pack", "id", message)
            if version is None:
                raise fault("pack_not_available", "id", str(skipped[-1]))
        if version is None:
            return self.latest(id_)
        for each in versions:
            if each.pack.version == version:
                return each
        for left_out in skipped:
            if left_out.version == version:
                raise fault("pack_not_available", "version", str(left_out))
        has = f"there is {', '.join(each.pack.version for each in versions)}" if versions else "none is enabled here"
        raise fault("unknown_pack_version", "version", f"pack {id_} has no version {quoted(version)}; {has}")


NO_PACKS = Catalog()
"""What a service without packs serves."""


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts versions by their numbers; `0.2.0-rc1` comes before `0.2.0`."""
    parts = re.findall(r"\d+|[A-Za-z]+", version)
    return (*((1, int(part), "") if part.isdigit() else (-1, 0, part) for part in parts), (0, 0, ""))
