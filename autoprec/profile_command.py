"""What `autoprec profile` does: import, list."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from autoprec.device_profile import DeviceProfile
from autoprec.store.store import Store
from autoprec.terminal import make_console


def run_import(file: Path, store: str | None) -> int:
    """Put a device profile in the store; return the exit code.

    Raises:
        DeviceProfileError: The file cannot be read, or is no profile.
    """
    console = make_console()
    profile = DeviceProfile.load(file)
    with Store.open(store) as opened:
        number, new = opened.save_device_profile(profile)
        holds = f": {len(profile.layers)} layers, {len(profile.formats)} formats"
        said = f"Profile {number} of {profile.device.name}{holds if new else ' was there already'}"
        console.print(f"{said}; in {opened.location}", soft_wrap=True)
    return 0


def run_list(store: str | None) -> int:
    """List the device profiles of the store; return the exit code."""
    console = make_console()
    table = Table("id", "device", "measured", "layers", "torch", "formats")
    with Store.open(store) as opened:
        for found in opened.device_profiles():
            profile = found.profile
            table.add_row(
                str(found.id),
                f"{profile.device.name} ({profile.device.capability})",
                f"{profile.measured_at:%Y-%m-%d %H:%M}",
                str(len(profile.layers)),
                profile.device.versions.get("torch", ""),
                ", ".join(profile.formats),
            )
        console.print(table if table.rows else "No device profiles; autoprec profile import puts one in")
    return 0
