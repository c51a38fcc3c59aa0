"""The report of a tuning job: one HTML file that needs no other file and no internet."""

from autoprec.report.page import write_report

__all__ = ["write_report"]
