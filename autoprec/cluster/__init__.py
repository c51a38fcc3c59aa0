"""Tuning on a Ray cluster: jobs that are submitted, devices that measure, and a driver that survives."""
