import json
import math

from autoprec.kernels.jit import tiles
from autoprec.kernels.jit.scaled_mm import TILES, largest_area
from autoprec.kernels.jit.tiles import TIMED, Tile, cache_file, estimate, promising

H200 = {"processors": 132, "intensity": 412.0}


def test_few_rows_take_low_tiles_and_many_take_large_ones():
    few = promising(TILES, (16, 4096, 4096), 1, 132, 412.0, 227 * 1024)
    many = promising(TILES, (8192, 8192, 8192), 1, 132, 412.0, 227 * 1024)
    assert len(few) == len(many) == TIMED
    assert few[0].m == 16
    assert many[0].m * many[0].n == max(tile.m * tile.n for tile in TILES)


def test_tiles_that_do_not_fit_shared_memory_are_left_out():
    small = promising(TILES, (8192, 8192, 8192), 1, 132, 412.0, 100 * 1024)
    assert small
    assert all(tile.shared(1) <= 100 * 1024 for tile in small)
    assert not all(tile.shared(1) <= 100 * 1024 for tile in TILES)
    assert promising(TILES[-1:], (64, 64, 64), 2, 132, 412.0, 1024) == [TILES[-1]]


def test_the_model_is_monotonous():
    tile = Tile(128, 128, 128, 8, 3)
    shape = (4096, 4096, 4096)
    assert estimate(tile, shape, 1, **H200) < estimate(tile, (8192, 4096, 4096), 1, **H200)
    assert estimate(tile, shape, 1, **H200) <= estimate(tile, shape, 2, **H200)
    assert estimate(tile, shape, 1, 264, 412.0) < estimate(tile, shape, 1, 132, 412.0)


def test_what_was_kept_is_read_and_nonsense_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOPREC_CACHE_DIR", str(tmp_path))
    name = "NVIDIA Test/1"
    tiles._keep(name, "scaled_mm 16 4096 4096", Tile(16, 64, 256, 4, 4))
    tiles._keep(name, "scaled_mm 32 4096 4096", Tile(32, 64, 128, 4, 4))
    file = cache_file(name)
    assert list(tmp_path.iterdir()) == [file]
    assert tiles._read(name) == {
        "scaled_mm 16 4096 4096": [16, 64, 256, 4, 4],
        "scaled_mm 32 4096 4096": [32, 64, 128, 4, 4],
    }
    for wrong in (
        "{",
        "[1]",
        json.dumps({"a": [1, 2], "b": "c", "d": [1, 2, 3, 4, True], "e": [0, 1, 1, 1, 1]}),
    ):
        file.write_text(wrong)
        assert tiles._read(name) == {}
    monkeypatch.setenv("AUTOPREC_CACHE_DIR", str(file / "below a file"))
    tiles._keep(name, "x", TILES[0])  # cannot be written, and is no error
    assert tiles._read(name) == {}


def test_a_tile_that_does_not_fit_loses():
    assert math.isfinite(estimate(TILES[0], (1, 1, 1), 1, **H200))
    assert (
        largest_area(True, False, False)
        < largest_area(False, False, False)
        < largest_area(False, True, False)
    )
    assert largest_area(False, False, True) < largest_area(False, True, True)
