"""The errors that AutoPrec raises, one small tree.

A `UserError` is something the person who called can mend (a wrong path, a bad budget, a broken plan
file): the command line prints it as one line and exits with code 2. Each message names the argument, the
value seen and what to do.
"""

from __future__ import annotations


class AutoPrecError(Exception):
    """Base of every error that AutoPrec raises on purpose."""


class UserError(AutoPrecError):
    """A mistake in what the caller passed; the message says how to mend it."""


class SettingError(UserError):
    """An option has a value that cannot be used (budget, format, searcher, objective, ...)."""


class WorkloadError(UserError):
    """A workload cannot be found, imported or run, or breaks its contract."""


class PlanError(UserError):
    """A plan cannot be read, or does not fit the model it is applied to."""


class StoreError(UserError):
    """A store cannot be opened, or its schema is not the one this version writes."""


class MissingError(StoreError):
    """A store holds nothing under the key that was asked for."""


class CandidateError(AutoPrecError):
    """One candidate failed (exception, out of memory, NaN, not applied as asked).

    This is a measured result, recorded with its reason; it never ends a search.
    """


class RuntimeRefusedError(CandidateError):
    """A runtime cannot run this model at all, or is not installed; says why. Others may."""


class ConversionError(CandidateError):
    """A kernel cannot take this module: its shape, dtype or settings are refused."""


def one_line(error: BaseException) -> str:
    """Return an exception's type and message as one line of at most 300 characters and its type."""
    message = " ".join(str(error).split())
    shown = message if len(message) <= 300 else f"{message[:300]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__
