"""The Lee corpora of news text (inside `gensim`'s test data), split by document.

The background corpus (300 short news documents) judges quality; the fifty documents of the other one
carry human similarity ratings. Lee, Pincombe and Welsh (2005), "An empirical evaluation of models of text
document similarity".
"""

from __future__ import annotations

import re
from typing import Literal

from autoprec.workloads.packages import EXAMPLES, package_file

Part = Literal["calibration", "search", "final"]
PARTS: tuple[Part, ...] = ("search", "final", "calibration", "final")
"""Which part the documents go to in turn: a quarter, a half and a quarter."""


def news_documents(part: Part) -> list[str]:
    """Return the documents of one part of the background corpus; no document is in two parts."""
    # The corpus repeats seven documents word for word: kept once, or parts would share them.
    documents = list(dict.fromkeys(_lines("lee_background.cor")))
    return [text for index, text in enumerate(documents) if PARTS[index % len(PARTS)] == part]


def news_sentences(part: Part) -> list[str]:
    """Return the sentences of one part, in order, each once."""
    ends = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])")
    return list(dict.fromkeys(s for text in news_documents(part) for s in ends.split(text)))


def rated_documents() -> tuple[list[str], list[tuple[int, int, float]]]:
    """Return the 50 rated documents, and `(i, j, mean human similarity in 0..1)` for each pair i < j."""
    ratings = [[float(value) for value in line.split()] for line in _lines("similarities0-1.txt")]
    pairs = [(i, j, row[j]) for i, row in enumerate(ratings) for j in range(i + 1, len(row))]
    return _lines("lee.cor"), pairs


def _lines(name: str) -> list[str]:
    path = package_file("gensim", f"test/test_data/{name}", EXAMPLES)
    # The files are Latin-1 (a pound sign in lee.cor) and one document a line.
    return [line for line in path.read_text(encoding="latin-1").splitlines() if line.strip()]
