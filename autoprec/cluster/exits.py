"""What driver and supervisor agree on."""

from __future__ import annotations

LEASE_SECONDS = 30.0
"""A job whose driver was not heard of for so long is taken to be dead."""
AGAIN = 75
"""Exit code of a driver that lost its store or its cluster: another may go on (EX_TEMPFAIL of sysexits.h)."""
