"""The store's part for profiles of devices that need not be here."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from autoprec.device_profile import DeviceProfile
from autoprec.store.database import Database
from autoprec.store.models import DeviceProfileRow
from autoprec.store.records import StoredDeviceProfile, utc_now


class DeviceProfileStore:
    """Device profiles. They are of a device and no job's, and `Store.prune` leaves them."""

    _db: Database

    def save_device_profile(self, profile: DeviceProfile) -> tuple[int, bool]:
        """Keep a device profile. Keeping the same one again changes nothing.

        Returns:
            The profile's id, and whether it is new.
        """
        digest = profile.digest
        values = {
            "digest": digest,
            "device_name": profile.device.name,
            "profile": profile.to_json(),
            "measured_at": profile.measured_at,
            "created_at": utc_now(),
        }
        query = select(DeviceProfileRow.id).where(DeviceProfileRow.digest == digest)

        def body(session: Session) -> tuple[int, bool]:
            known = session.scalar(query)
            if known is None:  # a refused insert would use up a number
                self._db.insert_new(session, DeviceProfileRow, values, "digest")
            return session.scalars(query).one(), known is None

        return self._db.write(body)

    def device_profiles(self, *, device_name: str | None = None) -> list[StoredDeviceProfile]:
        """Return device profiles, those that were measured last first.

        Args:
            device_name: Only those of the device that its driver calls so.
        """
        query = select(DeviceProfileRow).order_by(
            DeviceProfileRow.measured_at.desc(), DeviceProfileRow.id.desc()
        )
        if device_name is not None:
            query = query.where(DeviceProfileRow.device_name == device_name)
        return self._db.read(lambda session: [row.record() for row in session.scalars(query)])
