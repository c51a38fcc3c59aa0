"""Reads the files that describe device families, and refuses what they should not say."""

from __future__ import annotations

import functools
import importlib.resources
import math
import re
import sys
import tomllib
from importlib.resources.abc import Traversable
from typing import Any

from autoprec.kernels.families.description import (
    OPERANDS,
    Chip,
    Family,
    Match,
    Native,
    SharedMemory,
    TritonTarget,
)

_MATCHED_BY = {"cuda": "archs", "hip": "archs", "cpu": "flags", "xpu": None, "npu": None}
"""What must be told of a device of each kind to recognise its family."""
_ARCH = {"cuda": re.compile(r"\d+\.\d"), "hip": re.compile(r"gfx[0-9a-f]+")}


class Section:
    """A table of a file that is read key by key, and whose keys must all be known.

    Args:
        place: Where it stands: the file's name, then the keys down to it.
        values: What it holds.
    """

    def __init__(self, place: str, values: Any) -> None:
        self.place = place
        if not isinstance(values, dict):
            raise ValueError(f"{place} is {values!r}; give a table")
        self._left: dict[str, Any] = dict(values)

    def wrong(self, key: str, value: object, advice: str) -> ValueError:
        """Return the error that names the place, the key, the value and what to do."""
        return ValueError(f"{self.place}: {key} is {value!r}; {advice}")

    def required(self, key: str) -> Any:
        """Take a value that must be there."""
        if key not in self._left:
            raise ValueError(f"{self.place}: {key} is missing")
        return self._left.pop(key)

    def text(self, key: str) -> str:
        """Take a text that must be there and not be empty."""
        value = self.required(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, value, "give a text")
        return value

    def optional_text(self, key: str) -> str | None:
        """Take a text that may be absent but not empty."""
        return self.text(key) if key in self._left else None

    def flag(self, key: str) -> bool:
        """Take true or false."""
        value = self.required(key)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "give true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of texts, none of them empty; the list may be absent."""
        value = self._left.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, value, "give a list of texts")
        return tuple(value)

    def number(self, key: str) -> float:
        """Take a positive number that must be there."""
        value = self.required(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, value, "give a number")
        # Compared first: `isfinite` raises for whole numbers that no float holds.
        if not (0 < value < sys.float_info.max and math.isfinite(value)):
            raise self.wrong(key, value, "give a number greater than zero, or leave it out")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Take a positive number that may be absent."""
        return self.number(key) if key in self._left else None

    def whole(self, key: str) -> int:
        """Take a positive whole number that must be there."""
        value = self.required(key)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.wrong(key, value, "give a whole number greater than zero")
        return value

    def optional_whole(self, key: str) -> int | None:
        """Take a positive whole number that may be absent."""
        return self.whole(key) if key in self._left else None

    def section(self, key: str) -> Section:
        """Take a table that must be there."""
        return Section(f"{self.place}: {key}", self.required(key))

    def optional_section(self, key: str) -> Section | None:
        """Take a table that may be absent."""
        return self.section(key) if key in self._left else None

    def sections(self, key: str) -> list[Section]:
        """Take a list of tables that may be absent."""
        value = self._left.pop(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, value, "give a list of tables")
        return [Section(f"{self.place}: {key}[{index}]", item) for index, item in enumerate(value)]

    def left(self) -> tuple[str, ...]:
        """Return the keys that were not taken yet."""
        return tuple(self._left)

    def end(self) -> None:
        """Refuse what is left over."""
        for key, value in self._left.items():
            raise self.wrong(key, value, "no such key is known here")


def _operands(section: Section) -> tuple[str, ...]:
    for key in section.left():
        if key not in OPERANDS:
            raise ValueError(f"{section.place}: {key} is no number type; known: {', '.join(OPERANDS)}")
    return section.left()


def _match(section: Section) -> Match:
    device = section.text("device")
    if device not in _MATCHED_BY:
        raise section.wrong("device", device, f"give one of {', '.join(_MATCHED_BY)}")
    archs, flags = section.texts("archs"), section.texts("flags")
    for key, value in (("archs", archs), ("flags", flags)):
        if value and _MATCHED_BY[device] != key:
            raise section.wrong(key, list(value), f"leave it out for {device}")
        if not value and _MATCHED_BY[device] == key:
            raise ValueError(f"{section.place}: {key} is missing")
    for arch in archs:
        if not _ARCH[device].fullmatch(arch):
            raise section.wrong("archs", arch, f"name it as {'9.0' if device == 'cuda' else 'gfx942'}")
    match = Match(device, archs, flags, section.optional_whole("priority") or 0)
    section.end()
    return match


def _triton(section: Section) -> TritonTarget:
    backend = section.text("backend")
    if backend not in ("cuda", "hip"):
        raise section.wrong("backend", backend, "give cuda or hip")
    arch = section.whole("arch") if backend == "cuda" else section.text("arch")
    target = TritonTarget(backend, arch, section.whole("warp_size"))
    section.end()
    return target


def _shared_memory(section: Section) -> SharedMemory:
    memory = SharedMemory(section.whole("bytes"), section.text("source"))
    section.end()
    return memory


def _native(section: Section, device: str) -> Native:
    needs, operations = section.texts("needs"), section.optional_whole("operations_per_cycle")
    for key, value in (("needs", needs), ("operations_per_cycle", operations)):
        if value and device != "cpu":
            raise section.wrong(key, value, f"leave it out for {device}")
    native = Native(section.text("by"), section.text("source"), needs, operations)
    section.end()
    return native


def _claims(section: Section, device: str) -> dict[str, Native]:
    claims = {}
    for operand in _operands(section):
        claims[operand] = _native(section.section(operand), device)
    return claims


def _chip(section: Section, claims: dict[str, Native]) -> Chip:
    name = section.text("name")
    rates: dict[str, float] = {}
    if rated := section.optional_section("rates"):
        for operand in _operands(rated):
            rates[operand] = rated.number(operand)
            if operand not in claims:
                raise rated.wrong(operand, rates[operand], f"the family does not multiply {operand} natively")
    chip = Chip(
        name,
        section.text("source"),
        section.optional_text("driver_name"),
        section.optional_number("memory_gb"),
        section.optional_number("memory_gb_per_s"),
        rates,
    )
    section.end()
    return chip


def _family(name: str, values: dict[str, Any]) -> Family:
    top = Section(f"{name}.toml", values)
    title, vendor = top.text("title"), top.text("vendor")
    verified, verified_how = top.flag("verified"), top.text("verified_how")
    match = _match(top.section("match"))
    triton, memory = top.optional_section("triton"), top.optional_section("shared_memory")
    claims = _claims(top.section("native"), match.device)
    preferred = top.optional_text("preferred_fp8")
    if preferred is not None and not (preferred.startswith("float8_") and preferred in claims):
        raise top.wrong("preferred_fp8", preferred, "give an 8-bit float that is native, or leave it out")
    family = Family(
        name,
        title,
        vendor,
        verified,
        verified_how,
        match,
        _triton(triton) if triton else None,
        _shared_memory(memory) if memory else None,
        preferred,
        claims,
        tuple(_chip(section, claims) for section in top.sections("chips")),
    )
    top.end()
    return family


def read_families(folder: Traversable) -> dict[str, Family]:
    """Return the families that the `*.toml` files of a folder describe, by name, in order of name.

    Raises:
        ValueError: A file is no TOML, lacks a key, has one too many, or a value that cannot be; or two
            families could not be told apart. The message names the file, the key and the value.
    """
    families: dict[str, Family] = {}
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        if not file.name.endswith(".toml"):
            continue
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{file.name} is no TOML: {error}") from None
        name = file.name.removesuffix(".toml")
        family = _family(name, values)
        for other in families.values():
            if _same(family.match, other.match):
                raise ValueError(
                    f"{file.name}: match is {values['match']!r}; {other.name}.toml fits the same devices, "
                    "so give another priority"
                )
        families[name] = family
    return families


def _same(one: Match, other: Match) -> bool:
    """Whether a machine can be both, with nothing to choose by."""
    if one.device != other.device or one.priority != other.priority:
        return False
    return _MATCHED_BY[one.device] != "archs" or bool(set(one.archs) & set(other.archs))


@functools.cache
def load_families() -> dict[str, Family]:
    """Return the families that the package describes, by name."""
    return read_families(importlib.resources.files("autoprec.kernels.families"))
