"""The tiles of matrix kernels: their order over the output, and the choice of one for a shape.

A roofline model leaves the few tiles that can win, the GPU times those once, and the winner is kept on disk.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from autoprec.files import write_in_one_step
from autoprec.kernels.families import detect
from autoprec.kernels.jit.launch import INTERPRETED

TIMED = 4
"""Tiles that are timed for a shape, best first by the model."""
UNKNOWN_INTENSITY = 400.0
"""Operations a byte of a GPU that no file describes: about those of an H200."""
MOST_STAGES_AMD = 2
"""Steps in flight on AMD, which holds them in registers: a third one spills (Triton 3.7, gfx942)."""


@triton.jit
def tile_order(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the place of a program's tile: down 8 rows of tiles, then across.

    The operands that neighbours share so stay in the cache.
    """
    GROUP_M: tl.constexpr = 8
    program = tl.program_id(0)
    down = tl.cdiv(m, BLOCK_M)
    across = tl.cdiv(n, BLOCK_N)
    first = program // (GROUP_M * across) * GROUP_M
    height = tl.minimum(down - first, GROUP_M)
    within = program % (GROUP_M * across)
    return first + within % height, within // height


@dataclass(frozen=True)
class Tile:
    """A tile of the output and how it is computed.

    Attributes:
        m: Rows.
        n: Columns.
        k: Elements along the sum in one step.
        warps: Warps a program.
        stages: Steps that are in flight.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def count(self, m: int, n: int) -> int:
        """Return how many tiles cover an output."""
        return -(-m // self.m) * -(-n // self.n)

    def sizes(self) -> dict[str, int]:
        """Return what the kernels call its sizes."""
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k}

    def options(self) -> dict[str, int]:
        """Return the keywords of a launch."""
        return self.sizes() | {"num_warps": self.warps, "num_stages": self.depth()}

    def depth(self) -> int:
        """Return the steps that are in flight here."""
        return self.stages if torch.version.hip is None else min(self.stages, MOST_STAGES_AMD)

    def shared(self, width: int) -> int:
        """Return the bytes of shared memory that operands of `width` bytes take."""
        return (self.m + self.n) * self.k * width * self.depth()


def estimate(tile: Tile, shape: tuple[int, int, int], width: int, processors: int, intensity: float) -> float:
    """Return the model's time of a tile for a shape, in operations of one multiprocessor.

    A multiprocessor either computes or waits for operands; the last wave is as long as the others.

    Args:
        tile: The tile.
        shape: m, n, k.
        width: Bytes of an element of the operands.
        processors: Multiprocessors of the GPU.
        intensity: Operations that a multiprocessor does while a byte arrives.
    """
    m, n, k = shape
    waves = math.ceil(tile.count(m, n) / processors)
    # Matrix units multiply 64 rows at once; narrower tiles leave them idle in part.
    computing = 2 * max(tile.m, 64) * tile.n * k
    loading = (tile.m + tile.n) * k * width * intensity
    # Filling the pipeline takes its depth in steps.
    filling = 1 + tile.depth() * tile.k / max(k, 1)
    return waves * max(computing, loading) * filling


def promising(
    tiles: Sequence[Tile],
    shape: tuple[int, int, int],
    width: int,
    processors: int,
    intensity: float,
    shared: int,
) -> list[Tile]:
    """Return the `TIMED` tiles that the model likes best of those that fit shared memory, best first."""
    fitting = [tile for tile in tiles if tile.shared(width) <= shared]
    fitting = fitting or [min(tiles, key=lambda tile: tile.shared(width))]
    return sorted(fitting, key=lambda tile: estimate(tile, shape, width, processors, intensity))[:TIMED]


def choose(
    key: tuple[Any, ...],
    tiles: Sequence[Tile],
    shape: tuple[int, int, int],
    width: int,
    device: torch.device,
    run: Callable[[Tile], None],
) -> Tile:
    """Return the tile to compute `shape` with: timed at its first use on a GPU, remembered ever after.

    Args:
        key: What else the choice depends on.
        tiles: Candidates.
        shape: m, n, k; m is rounded up to a power of two, since it changes from call to call.
        width: Bytes of an element of the operands.
        device: Where `run` computes.
        run: Computes with a tile.
    """
    m, n, k = shape
    rounded = (triton.next_power_of_2(m), n, k)
    if INTERPRETED:
        # The smallest, whatever the shape: the interpreter's time is what it computes.
        return min(tiles, key=lambda tile: tile.m * tile.n)
    place = (device, key, rounded)
    if place in _CHOSEN:
        return _CHOSEN[place]
    gpu = torch.cuda.get_device_name(device)
    name = " ".join(map(str, (*key, *rounded)))
    kept = _read(gpu).get(name)
    # A file of another release may name a tile that the kernel no longer takes.
    if kept is not None and Tile(*kept) in tiles:
        return _CHOSEN.setdefault(place, Tile(*kept))
    found = torch.cuda.get_device_properties(device)
    few = promising(tiles, rounded, width, found.multi_processor_count, _intensity(device), _shared(found))
    if torch.cuda.is_current_stream_capturing():
        return few[0]  # nothing can be timed while a graph is recorded
    times = {tile: _time(run, tile) for tile in few}
    best = min(times, key=lambda tile: times[tile])
    if math.isfinite(times[best]):
        _keep(gpu, name, best)
    return _CHOSEN.setdefault(place, best)


_CHOSEN: dict[tuple[Any, ...], Tile] = {}
"""What this process computes with, by device, key and shape."""


def _time(run: Callable[[Tile], None], tile: Tile) -> float:
    """Return milliseconds; infinite for a tile that the GPU or its compiler does not take."""
    try:
        return float(triton.testing.do_bench(lambda: run(tile), warmup=5, rep=20, return_mode="median"))
    except (triton.runtime.errors.OutOfResources, triton.CompilationError, RuntimeError):
        return math.inf


def _shared(properties: Any) -> int:
    return int(getattr(properties, "shared_memory_per_block_optin", 65536))


def _intensity(device: torch.device) -> float:
    """Return how many 8-bit operations a chip does while a byte arrives, by its family's file.

    Caches give operands faster than memory does, so that this overrates waiting: it orders tiles, of which
    the best few are timed.
    """
    family = detect(device)
    chip = None if family is None else family.chip(torch.cuda.get_device_name(device))
    rate = None if chip is None else chip.rates.get("int8")
    if chip is None or rate is None or not chip.memory_gb_per_s:
        return UNKNOWN_INTENSITY
    return rate * 1e12 / (chip.memory_gb_per_s * 1e9)


def cache_file(device: str) -> Path:
    """Return the file that keeps the choices for a GPU, by the releases that made them."""
    base = Path(os.environ.get("AUTOPREC_CACHE_DIR") or Path.home() / ".cache" / "autoprec")
    name = "".join(letter if letter.isalnum() else "-" for letter in device)
    return base / f"tiles-{name}-triton-{triton.__version__}.json"


def _read(device: str) -> dict[str, list[int]]:
    """Read what was kept; a file that is no such thing counts as empty, and is written anew."""
    try:
        found = json.loads(cache_file(device).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        str(name): numbers
        for name, numbers in found.items()
        if isinstance(numbers, list)
        and len(numbers) == 5
        and all(type(item) is int and item > 0 for item in numbers)
    }


def _keep(device: str, name: str, tile: Tile) -> None:
    """Add a choice to what later processes read; a cache that cannot be written is no error.

    Of two processes that write at once, one loses its choice and times again another day.
    """
    path = cache_file(device)
    known = _read(device) | {name: [tile.m, tile.n, tile.k, tile.warps, tile.stages]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_in_one_step(path, json.dumps(known, indent=1).encode())
    except OSError:
        return
