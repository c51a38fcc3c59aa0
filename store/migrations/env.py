"""Run by Alembic: takes part in the transaction that `autoprec.store.schema` has begun."""

from alembic import context

from autoprec.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=context.config.attributes["version_table"],
    render_as_batch=True,  # SQLite changes a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
