"""An order and the job that confirms it commit together: the outbox pattern, without an outbox table to poll.

rota up examples/outbox.py         # in one terminal
python examples/outbox.py A1 A2    # in another: places two orders

The orders are in Rota's own database: `.rota/rota.db`, or what DATABASE_URL and ROTA_DATABASE_URL name.
Tasks do not see the latter: a worker removes it from its environment.
"""

import os
import sys
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from rota import Rota

app = Rota()
file = Path(os.environ.get("ROTA_DATA_DIR", ".rota")).absolute() / "rota.db"
url = os.environ.get("DATABASE_URL", f"sqlite:///{file}")
engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "shop_orders"

    name: Mapped[str] = mapped_column(primary_key=True)
    confirmed: Mapped[bool] = mapped_column(default=False)


@app.task("shop.confirm")
def confirm(order: str) -> str:
    """Confirms an order. It may run again after a crash, so it does the same again."""
    with Session(engine) as session, session.begin():
        session.get_one(Order, order).confirmed = True
    return order


def place_order(name: str) -> str:
    """Place an order; returns the id of the job that confirms it. If anything here fails, neither exists."""
    with Session(engine) as session, session.begin():
        session.add(Order(name=name))
        job_id = app.enqueue(confirm, order=name, job_key=f"confirm {name}", connection=session)
        if name.startswith("bad"):
            raise ValueError(f"{name} is no order")
    return job_id


if __name__ == "__main__":
    Base.metadata.create_all(engine)
    for order in sys.argv[1:]:
        print(order, place_order(order))
