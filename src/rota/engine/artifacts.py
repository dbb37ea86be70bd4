"""Artifacts of runs. Where its kind says so, a run is the root of its artifacts: what it ran and its result, read from
`runs`; the artifacts that it saved are below it."""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from sqlalchemy import func, select

from rota.core.errors import Invalid, NotFound
from rota.core.kinds import traits_of
from rota.db.dialect import Query, ResultRow, Tx
from rota.db.paging import PAGE_ROWS, Page, Record, dict_of, matching, page_by
from rota.db.statement import BoundStatement, Statement
from rota.db.tables import artifacts, runs

a, r = artifacts.c, runs.c

JSON = "application/json"
TREE_LIMIT = 1000  # artifacts in a tree
BRIEF = (
    a.id, a.run_id, a.parent_id, a.level, a.label, a.content_type,
    func.coalesce(a.size, func.length(a.content)).label("size"), a.sha256, a.created_at,
)  # fmt: skip


SAVE = Statement(
    """Insert an artifact.""",
    """
    INSERT INTO artifacts (
        id, org_id, run_id, parent_id, level, label, content_type, content, created_at, object_key, size, sha256)
    VALUES (
        :id, :org_id, :run_id, :parent_id, :level, :label, :content_type, :content, :created_at, :object_key, :size,
        :sha256)
    """,
)


def insert(tx: Tx, row: Record, labels: Mapping[int, str]) -> None:
    """Store an artifact below its parent, which may be another artifact."""
    insert_statement(row, level_of(tx, row["org_id"], row["parent_id"], row["run_id"]) + 1, labels)(tx)


def insert_statement(row: Record, level: int, labels: Mapping[int, str]) -> BoundStatement[None]:
    """Return the statement that stores an artifact at a level: 0 without a parent, 1 below its run."""
    label = row["label"] or labels.get(level, f"level_{level}")
    values = {"object_key": None, "size": None, "sha256": None, **row, "level": level, "label": label}
    return SAVE.bound(lambda _: None, **values)


def level_of(tx: Tx, org_id: str, parent_id: str, run_id: str | None) -> int:
    """Return the level of an artifact; that of a run is 0, also before its start is recorded. Raises Invalid."""
    if parent_id == run_id:
        return 0
    level = tx.execute(select(a.level).where(a.org_id == org_id, a.id == parent_id)).scalar()
    if level is not None:
        return int(level)
    if tx.execute(select(r.id).where(r.org_id == org_id, r.id == parent_id)).first():
        return 0
    raise Invalid("parent_id", parent_id, "is no artifact")


def get(tx: Tx, org_id: str, artifact_id: str, public: bool = False) -> Record:
    """An artifact with its data, where that is JSON or text in the database. With `public`, secrets in what a run ran,
    and in its result, are hidden; what the run saved itself is as it was saved."""
    columns = (*BRIEF, a.content, a.object_key)
    row = tx.execute(select(*columns).where(a.org_id == org_id, a.id == artifact_id)).one_or_none()
    if row is not None:
        data = None if row.object_key is not None else readable(row.content_type, row.content)
        return {**brief(row), "data": data}
    started = r.started_at.is_not(None)
    run = tx.execute(select(runs).where(r.org_id == org_id, r.id == artifact_id, started)).one_or_none()
    content_of = None if run is None else traits_of(run.kind).run_artifact
    if run is None or content_of is None:
        raise NotFound(f"artifact {artifact_id!r} not found")
    data = content_of(tx, run, public)
    return {**run_brief(run), "size": len(orjson.dumps(data)), "data": data}


@dataclass(frozen=True, slots=True)
class StoredContent:
    """The content of an artifact as it is stored: in the database, or under the key of an object."""

    content_type: str
    content: bytes
    object_key: str | None = None
    size: int = 0  # of the object
    sha256: str | None = None


def content(tx: Tx, org_id: str, artifact_id: str, public: bool = False) -> StoredContent:
    """An artifact as it was saved. `public` as in `get`."""
    columns = (a.content_type, a.content, a.object_key, a.size, a.sha256)
    row = tx.execute(select(*columns).where(a.org_id == org_id, a.id == artifact_id)).one_or_none()
    if row is not None:
        return StoredContent(row.content_type, row.content, row.object_key, row.size or 0, row.sha256)
    return StoredContent(JSON, orjson.dumps(get(tx, org_id, artifact_id, public)["data"]))


def list_all(
    tx: Tx, org_id: str, *, limit: int = PAGE_ROWS, cursor: str | None = None, run_id: str | None = None,
    parent_id: str | None = None, label: str | None = None,
) -> Page:  # fmt: skip
    """Return a page of the artifacts that runs saved, newest first."""
    stmt: Query = select(*BRIEF).where(a.org_id == org_id)
    stmt = matching(stmt, (a.run_id, run_id), (a.parent_id, parent_id), (a.label, label))
    return page_by(tx, stmt, a.id, limit, cursor, brief, descending=True)


def tree(tx: Tx, org_id: str, artifact_id: str, public: bool = False) -> Record:
    """Return an artifact with all artifacts below it, nested as `children`, up to TREE_LIMIT. `public` as in `get`."""
    root = get(tx, org_id, artifact_id, public)
    level = {artifact_id: root}
    left = TREE_LIMIT
    root["children"] = []
    while level and left > 0:
        below = select(*BRIEF).where(a.org_id == org_id, a.parent_id.in_(level)).order_by(a.id).limit(left)
        children = [{**brief(row), "children": []} for row in tx.execute(below)]
        for child in children:
            level[child["parent_id"]]["children"].append(child)
        level, left = {child["id"]: child for child in children}, left - len(children)
    return root


def brief(row: ResultRow) -> Record:
    record = dict_of(row)
    record.pop("content", None)
    record.pop("object_key", None)
    return {**record, "updated_at": row.created_at}


def run_brief(run: ResultRow) -> Record:
    return {
        "id": run.id, "run_id": run.id, "parent_id": None, "level": 0, "label": "execution", "content_type": JSON,
        "sha256": None, "created_at": run.started_at, "updated_at": run.finished_at,
    }  # fmt: skip


def readable(content_type: str, data: bytes) -> object:
    """Return JSON parsed and text decoded; None for other content, which can be downloaded, and for content that does
    not match its content type."""
    try:
        if content_type == JSON:
            return orjson.loads(data)
        return data.decode() if is_text(content_type) else None
    except ValueError:
        return None


def is_text(content_type: str) -> bool:
    """Return whether the data of an artifact is part of its record."""
    return content_type == JSON or content_type.startswith("text/")
