"""What each family of devices can do: a file a family, found by listing this folder.

`docs/devices.md` tells what the files say and how to add one.
"""

from autoprec.kernels.families.compiled import Compiled, load_compiled, native, read_compiled
from autoprec.kernels.families.description import (
    OPERANDS,
    Chip,
    Family,
    Match,
    Native,
    SharedMemory,
    TritonTarget,
    roofline,
)
from autoprec.kernels.families.detection import Machine, detect, examine, recognise, usable_flags
from autoprec.kernels.families.reading import load_families, read_families

__all__ = [
    "OPERANDS",
    "Chip",
    "Compiled",
    "Family",
    "Machine",
    "Match",
    "Native",
    "SharedMemory",
    "TritonTarget",
    "detect",
    "examine",
    "load_compiled",
    "load_families",
    "native",
    "read_compiled",
    "read_families",
    "recognise",
    "roofline",
    "usable_flags",
]
