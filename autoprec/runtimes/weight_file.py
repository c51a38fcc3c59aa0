"""The weights of a workload's graphs, in one file beside them: what candidates and forms share is there once.

A graph of a candidate then holds little more than its nodes, so writing it takes no time, and the runtimes
map the file instead of reading it: several sessions share its pages.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx import ModelProto, TensorProto, external_data_helper, save_model

from autoprec.runtimes.available import DATA_FILE

SMALLEST = 1024
"""Bytes below which a tensor stays in its graph: shapes and scales, which runtimes want to see."""
LARGEST_ALONE = 1 << 30
"""Bytes of weights up to which a graph that stands alone is one file; a file holds at most 2 GB."""
_PAGE = 4096
_FILE = "weights.bin"


class WeightFile:
    """Weights, each content once; only ever appended to, since sessions map it.

    Attributes:
        folder: Where graphs that use the file have to be; it goes with this object.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="autoprec-")
        self.folder = Path(self._directory.name)
        self._places: dict[bytes, int] = {}
        self._count = itertools.count(1)

    def new_file(self) -> Path:
        """Return a path for one more graph."""
        return self.folder / f"{next(self._count)}.onnx"

    def take(self, graph: Any) -> None:
        """Move the larger initialisers of an `onnx_ir` graph into the file."""
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor.nbytes >= SMALLEST:
                value.const_value = ir.ExternalTensor(
                    _FILE, self._put(tensor.tobytes()), tensor.nbytes, tensor.dtype, shape=tensor.shape,
                    name=name, base_dir=self.folder,
                )  # fmt: skip

    def keep(self, tensor: TensorProto) -> TensorProto:
        """Return a tensor whose bytes are in the file, or the tensor itself where it is small."""
        if len(tensor.raw_data) < SMALLEST:
            return tensor
        kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        _refer(kept, _FILE, self._put(tensor.raw_data), len(tensor.raw_data))
        return kept

    def write(
        self, graphs: Mapping[str, ModelProto], folder: Path, facts: Mapping[str, str] | None = None
    ) -> list[Path]:
        """Write graphs so that they are complete without this file.

        One graph is one file, unless its weights are more than a gigabyte; several share `model.onnx.data`.

        Args:
            graphs: File name to graph.
            folder: Where they go.
            facts: Entries of their metadata.

        Returns:
            The files.
        """
        total = sum(place[1] for graph in graphs.values() for place in _referred(graph))
        alone = len(graphs) == 1 and total <= LARGEST_ALONE
        data = folder / DATA_FILE
        moved: dict[int, int] = {}
        files = []
        for name, graph in graphs.items():
            complete = ModelProto()
            complete.CopyFrom(graph)
            for key, value in (facts or {}).items():
                complete.metadata_props.add(key=key, value=value)
            for tensor in complete.graph.initializer:
                if tensor.data_location != TensorProto.EXTERNAL:
                    continue
                offset, length = _place(tensor)
                if alone:
                    tensor.raw_data = self._read(offset, length)
                    tensor.ClearField("external_data")
                    tensor.data_location = TensorProto.DEFAULT
                    continue
                if offset not in moved:
                    moved[offset] = _append(data, self._read(offset, length))
                _refer(tensor, data.name, moved[offset], length)
            save_model(complete, str(folder / name))
            files.append(folder / name)
        return [*files, data] if moved else files

    def _put(self, content: bytes) -> int:
        """Return where a content is in the file, which it is written to where it is new."""
        key = hashlib.blake2b(content, digest_size=20).digest()
        if key not in self._places:
            self._places[key] = _append(self.folder / _FILE, content)
        return self._places[key]

    def _read(self, offset: int, length: int) -> bytes:
        with (self.folder / _FILE).open("rb") as file:
            file.seek(offset)
            return file.read(length)


def weight_bytes(graphs: list[ModelProto]) -> int:
    """Return the bytes of the weights of graphs; what several graphs share counts once."""
    places = {place for graph in graphs for place in _referred(graph)}
    inline = {
        (tensor.name, tensor.SerializeToString()): _size(tensor)
        for graph in graphs
        for tensor in graph.graph.initializer
        if tensor.data_location != TensorProto.EXTERNAL
    }
    return sum(length for _, length in places) + sum(inline.values())


def check_places(graph: ModelProto, data: Path) -> None:
    """Check that the weights of a graph that was written lie in it or in the one file beside it.

    Raises:
        ValueError: They lie elsewhere, or beyond its end; names the tensor.
    """
    end = data.stat().st_size if data.exists() else 0
    for tensor in graph.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        found = external_data_helper.ExternalDataInfo(tensor)
        offset, length = _place(tensor)
        if found.location != data.name or offset < 0 or length != _size(tensor) or offset + length > end:
            raise ValueError(
                f"tensor {tensor.name!r} lies at {offset} of {found.location!r}, {length} bytes long; "
                f"expected {_size(tensor)} bytes in {data.name}, which has {end}"
            )


def _size(tensor: TensorProto) -> int:
    """Return the bytes of a tensor by its shape and type."""
    count = math.prod(tensor.dims)
    return int(-(-count * ir.DataType(tensor.data_type).bitwidth // 8))


def _append(file: Path, content: bytes) -> int:
    """Write to the end of a file, at a page's beginning, and return where."""
    with file.open("ab") as writer:
        offset = -(-writer.tell() // _PAGE) * _PAGE
        writer.write(bytes(offset - writer.tell()))
        writer.write(content)
    return offset


def _referred(graph: ModelProto) -> list[tuple[int, int]]:
    return [_place(t) for t in graph.graph.initializer if t.data_location == TensorProto.EXTERNAL]


def _place(tensor: TensorProto) -> tuple[int, int]:
    found = external_data_helper.ExternalDataInfo(tensor)
    return found.offset or 0, found.length or 0


def _refer(tensor: TensorProto, file: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", file), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    tensor.data_location = TensorProto.EXTERNAL
