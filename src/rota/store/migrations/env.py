"""Alembic's way in: runs on the connection that `rota.store.migrate` hands over."""

from alembic import context

from rota.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=False)
context.run_migrations()
