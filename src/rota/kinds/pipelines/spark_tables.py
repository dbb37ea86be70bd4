"""Tables of pipelines in Spark. Each run writes a version of its own; a pointer, replaced in one step, says which one
is the table. The previous version stays for queries that still read it; older ones and those of dead runs are deleted.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from rota.core.errors import LeaseLost
from rota.core.ids import new_id
from rota.db.private_files import make_private_dir
from rota.kinds.pipelines.fences import Fence, still_newest, take_over
from rota.kinds.pipelines.files import fsync
from rota.kinds.pipelines.ibis_executor import Place

CURRENT = "current"
VERSIONS = "_versions"  # ends the name of a schema of versions; no schema of pipelines ends so
VERSION = re.compile(r"[0-9a-z]{26}")
FENCE = "rota.fence"  # property of a view


class FileTables:
    """Directories of Parquet files, `SCHEMA/NAME/VERSION`; the link `SCHEMA/NAME/current` names the version."""

    def __init__(self, session: Any, place: Path) -> None:
        self.session, self.place = session, place
        self.views: list[str] = []  # temporary ones, of this session

    def begin(self, place: Place, fence: Fence) -> None:
        make_private_dir(self.place / place.schema / place.name)
        take_over(self.fence_file(place), fence)

    def locate(self, place: Place) -> Place | None:
        directory = self.place / place.schema / place.name
        try:
            version = os.readlink(directory / CURRENT)
        except FileNotFoundError:
            return None
        return self.view(directory / version)

    def write(self, place: Place, rows: Any) -> tuple[str, Place]:
        """Write rows as a version; returns its name, and how queries of this session read it."""
        version = new_id().lower()
        directory = self.place / place.schema / place.name / version
        rows.write.parquet(directory.as_uri())
        return version, self.view(directory)

    def publish(self, place: Place, version: str, fence: Fence) -> None:
        """Make a version the table."""
        directory = self.place / place.schema / place.name
        for file in (directory / version).iterdir():
            fsync(file)
        fsync(directory / version)
        with still_newest(self.fence_file(place), fence):
            previous = os.readlink(directory / CURRENT) if (directory / CURRENT).is_symlink() else None
            draft = directory / f".{version}"
            draft.symlink_to(version)
            draft.replace(directory / CURRENT)
            fsync(directory)
            for entry in directory.iterdir():
                if entry.name.startswith("."):
                    entry.unlink(missing_ok=True)
                elif entry.name not in (CURRENT, version, previous):
                    shutil.rmtree(entry, ignore_errors=True)

    def view(self, directory: Path) -> Place:
        name = f"rota_table_{len(self.views)}"
        self.session.read.parquet(directory.as_uri()).createOrReplaceTempView(name)
        self.views.append(name)
        return Place("", name)

    def fence_file(self, place: Place) -> Path:
        return self.place / place.schema / f".{place.name}.fence"

    def close(self) -> None:
        for name in self.views:
            self.session.catalog.dropTempView(name)


class CatalogTables:
    """Views of a catalog, `SCHEMA.NAME`, of tables `SCHEMA_versions.NAME_VERSION`."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def begin(self, place: Place, fence: Fence) -> None:
        self.create_schemas(place)
        self.check_fence(place, fence)

    def locate(self, place: Place) -> Place | None:
        return place if self.session.catalog.tableExists(text(place)) else None

    def write(self, place: Place, rows: Any) -> tuple[str, Place]:
        """Write rows as a version; returns its name, and how queries read it."""
        version = new_id().lower()
        table = Place(place.schema + VERSIONS, f"{place.name}_{version}")
        self.create_schemas(place)
        rows.write.saveAsTable(text(table))
        return version, table

    def publish(self, place: Place, version: str, fence: Fence) -> None:
        """Make a version the table."""
        self.check_fence(place, fence)
        previous = self.current_version(place)
        query = f"SELECT * FROM {text(Place(place.schema + VERSIONS, f'{place.name}_{version}'))}"
        properties = f"TBLPROPERTIES ('{FENCE}' = '{fence.org_id} {fence.number}')"
        if previous is None:
            self.session.sql(f"CREATE VIEW {text(place)} {properties} AS {query}")
        else:
            self.session.sql(f"ALTER VIEW {text(place)} AS {query}")  # one change; CREATE OR REPLACE is two
            self.session.sql(f"ALTER VIEW {text(place)} SET {properties}")
        for table in self.versions(place):
            if table not in (version, previous):
                name = Place(place.schema + VERSIONS, f"{place.name}_{table}")
                self.session.sql(f"DROP TABLE IF EXISTS {text(name)}")

    def versions(self, place: Place) -> list[str]:
        """Return the versions of a table, also those that dead runs left."""
        rows = self.session.sql(f"SHOW TABLES IN {quoted(place.schema + VERSIONS)}").collect()
        names = [row.tableName for row in rows if row.tableName.startswith(f"{place.name}_")]
        return [name for row in names if VERSION.fullmatch(name := row[len(place.name) + 1 :])]

    def current_version(self, place: Place) -> str | None:
        """Return the version that the view of a table reads; None without a view."""
        if not self.session.catalog.tableExists(text(place)):
            return None
        (row,) = self.session.sql(f"SHOW CREATE TABLE {text(place)}").collect()
        versions = re.findall(rf"{re.escape(place.name)}_([0-9a-z]{{26}})\b", row[0])
        return str(versions[-1]) if versions else ""

    def create_schemas(self, place: Place) -> None:
        for schema in (place.schema, place.schema + VERSIONS):
            self.session.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")

    def check_fence(self, place: Place, fence: Fence) -> None:
        """Raises LeaseLost if a later run has written the table."""
        if not self.session.catalog.tableExists(text(place)):
            return
        rows = self.session.sql(f"SHOW TBLPROPERTIES {text(place)}").collect()
        stored = {row[0]: row[1] for row in rows}.get(FENCE, "")
        if fence.is_before(stored):
            raise LeaseLost(f"the table {text(place)} was written by a later run: this one lost its lease")

    def close(self) -> None:
        """The session ends with its run."""


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def text(place: Place) -> str:
    return f"{quoted(place.schema)}.{quoted(place.name)}" if place.schema else quoted(place.name)
