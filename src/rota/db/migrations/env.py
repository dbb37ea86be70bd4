"""Alembic's way in: runs on the connection that `rota.db.migrate` hands over."""

from alembic import context

from rota.db.tables import metadata

given = context.config.attributes
context.configure(connection=given["connection"], target_metadata=metadata, on_version_apply=given["step"])
context.run_migrations()
