"""Alembic's way in: runs on the connection that `rota.db.migrate` hands over, or prints SQL for PostgreSQL."""

from alembic import context

from rota.db.tables import metadata

given = context.config.attributes
if context.is_offline_mode():
    context.configure(
        dialect_name="postgresql",
        dialect_opts={"paramstyle": "named"},  # else each % of a function is doubled
        literal_binds=True,
        output_buffer=given["output"],
        target_metadata=metadata,
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(connection=given["connection"], target_metadata=metadata, on_version_apply=given.get("step", ()))
    context.run_migrations()
