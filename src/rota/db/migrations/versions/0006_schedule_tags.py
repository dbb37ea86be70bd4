"""Tags of schedules in a table of their own, so that a list by tag reads no other schedules."""

import sqlalchemy as sa
from alembic import op

from rota.db import online

revision = "0006"
down_revision = "0005"

# the array of tags as rows; a text that is no array is left out
FILL = """
    INSERT {or_ignore} INTO schedule_tags (org_id, tag, name, schedule_id)
    SELECT DISTINCT schedules.org_id, tag.value, schedules.name, schedules.id
    FROM (SELECT * FROM schedules WHERE deleted_at IS NULL AND tags LIKE '["%"]' AND {batch}) AS schedules
    CROSS JOIN {tags}
    """
FILL_POSTGRESQL = (
    FILL.replace("{or_ignore}", "").replace(
        "{tags}", "LATERAL json_array_elements_text(CAST(schedules.tags AS json)) AS tag (value)"
    )
    + "ON CONFLICT DO NOTHING"
)
FILL_SQLITE = FILL.replace("{or_ignore}", "OR IGNORE").replace("{tags}", "json_each(schedules.tags) AS tag")


def upgrade() -> None:
    op.create_table(
        "schedule_tags",
        sa.Column("org_id", sa.String(26), nullable=False),
        sa.Column("tag", sa.String(200), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("schedule_id", sa.String(26), nullable=False),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name="fk_schedule_tags_schedule_id"),
        sa.PrimaryKeyConstraint("org_id", "tag", "name", name="pk_schedule_tags"),
        if_not_exists=True,
    )
    op.create_index("ix_schedule_tags_id", "schedule_tags", ["org_id", "tag", "schedule_id"], if_not_exists=True)
    online.execute_in_batches(
        FILL_SQLITE if op.get_context().dialect.name == "sqlite" else FILL_POSTGRESQL, "schedules"
    )


def downgrade() -> None:
    op.drop_table("schedule_tags")
