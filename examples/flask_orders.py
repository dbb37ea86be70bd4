"""A Flask application that enqueues in its own transactions. Tasks run inside Flask's application context.

rota up examples/flask_orders.py                   # in one terminal
flask --app examples/flask_orders.py:web run       # in another
curl -X POST http://127.0.0.1:5000/orders/A1

The orders are in Rota's own database: `.rota/rota.db`, or what DATABASE_URL and ROTA_DATABASE_URL name.
Tasks do not see the latter: a worker removes it from its environment.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from flask import Flask, current_app
from sqlalchemy import create_engine, text
from sqlalchemy.orm import scoped_session, sessionmaker

from rota import Rota

P = ParamSpec("P")
R = TypeVar("R")

app = Rota()
web = Flask(__name__)
web.config["GREETING"] = "thank you for"
file = Path(os.environ.get("ROTA_DATA_DIR", ".rota")).absolute() / "rota.db"
url = os.environ.get("DATABASE_URL", f"sqlite:///{file}")
session = scoped_session(sessionmaker(create_engine(url.replace("postgresql://", "postgresql+psycopg://"))))


@web.teardown_appcontext
def close_session(error: BaseException | None) -> None:
    session.remove()  # rolls back what was not committed


def in_app_context(function: Callable[P, R]) -> Callable[P, R]:
    """Run a task as a request runs: with `current_app`, and with the teardown functions at its end."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with web.app_context():
            return function(*args, **kwargs)

    return call


@app.task("orders.thank")
@in_app_context
def thank(order: str) -> str:
    session.execute(text("UPDATE flask_orders SET thanked = 1 WHERE name = :name"), {"name": order})
    session.commit()
    return f"{current_app.config['GREETING']} {order}"


@web.post("/orders/<name>")
def place_order(name: str) -> tuple[dict[str, str], int]:
    session.execute(text("INSERT INTO flask_orders VALUES (:name, 0)"), {"name": name})
    job_id = app.enqueue(thank, order=name, connection=session)
    if name.startswith("bad"):
        return {"error": f"{name} is no order"}, 422  # neither the order nor the job exists
    session.commit()
    return {"job_id": job_id}, 201


@web.cli.command("create-tables")
def create_tables() -> None:
    session.execute(text("CREATE TABLE IF NOT EXISTS flask_orders (name varchar(50) PRIMARY KEY, thanked integer)"))
    session.commit()
