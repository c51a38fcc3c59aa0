"""The one check that a policy's bytes must pass: they are safetensors, which hold numbers and never code."""

from __future__ import annotations

from safetensors import SafetensorError, deserialize

from autoprec.errors import StoreError


def check_safetensors(weights: bytes, name: str) -> None:
    """Check header, dtypes, shapes and offsets of a safetensors file.

    Raises:
        StoreError: The bytes are not such a file.
    """
    try:
        deserialize(weights)  # type: ignore[no-untyped-call]
    except (SafetensorError, TypeError) as error:
        raise StoreError(
            f"weights of policy {name!r} are not a safetensors file ({error}); "
            "write them with safetensors.save"
        ) from error
