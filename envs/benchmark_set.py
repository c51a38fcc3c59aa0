"""What searchers are compared on: landscape files, and synthetic ones that are seeded and never trained on.

Seed `s` draws: 8 to 96 units (log-uniform); fp32 and two to seven other formats; quality that is quadratic
in errors (two thirds) or a relative error; layers of one to six kinds, or none; coupling of neighbours with a
mean strength of 0, 0.3 or 1; noise of 0.5% to 1.5% on times and up to a tenth of the limit on drops; and in
one of five a choice that makes every plan fail. `autoprec.envs.synthetic` says what they mean. Sensitivities
spread over three decades, as measured on MiniLM, whose feed-forward layers lose 100 times what its attention
projections lose.
"""

from __future__ import annotations

import numpy as np

from autoprec.envs.landscape import Landscape
from autoprec.envs.replay import Replay
from autoprec.envs.space import FORMAT_NAMES
from autoprec.envs.synthetic import SyntheticLandscape, synthetic_landscape
from autoprec.errors import SettingError

SYNTHETIC = "synthetic:"
SEEDS = 1_000_000
"""Seeds below this are for comparing; policies are trained on others."""


def open_landscape(place: str) -> Landscape | Replay | SyntheticLandscape:
    """Return the landscape of a file, with a law where it is not complete; or that of `synthetic:SEED`.

    Raises:
        LandscapeError: The file cannot be read, or holds too few runs for a law.
        SettingError: The seed is none.
    """
    if not place.startswith(SYNTHETIC):
        found = Landscape.load(place)
        return found if found.complete else Replay(found)
    number = place.removeprefix(SYNTHETIC)
    if not number.isdecimal():
        raise SettingError(f"landscape is {place!r}; write {SYNTHETIC}SEED with a whole number")
    return benchmark_landscape(int(number))


def benchmark_landscape(seed: int) -> SyntheticLandscape:
    """Return the synthetic landscape of a seed.

    Raises:
        SettingError: The seed is not from 0 to `SEEDS` - 1.
    """
    if not 0 <= seed < SEEDS:
        raise SettingError(f"seed is {seed}; benchmark landscapes have seeds from 0 to {SEEDS - 1}")
    rng = np.random.default_rng([seed, 20_261_130])
    names = [name for name in FORMAT_NAMES if name != "fp32"]
    chosen = rng.choice(names, size=int(rng.integers(2, 8)), replace=False)
    return synthetic_landscape(
        seed,
        round(float(np.exp(rng.uniform(np.log(8), np.log(96))))),
        formats=("fp32", *(str(name) for name in chosen)),
        time_noise=float(rng.uniform(0.005, 0.015)),
        drop_noise=float(rng.choice([0.0, 0.03, 0.1])),
        coupling=float(rng.choice([0.0, 0.3, 1.0])),
        root=float(rng.choice([1.0, 1.0, 0.5])),
        kinds=int(rng.integers(0, 7)),
        failing=int(rng.uniform() < 0.2),
    )
