"""Alembic migrations of the store.

To change the schema: change `autoprec.store.models`, add `versions/vNNNN_what.py` after the pattern of the
last one, and run `tests/store/test_schema.py`, which says what still differs. A released migration is
never edited.
"""
