"""The store of measured runs, profiles, plans and jobs."""
