"""`rota calendar …`"""

from pathlib import Path
from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import Answer, fail, item_path, print_stderr
from rota.frame.cli.options import Cursor, Limit, command_group, set_fields, with_fields
from rota.frame.cli.output import print_data, print_details, print_list, print_table

app = command_group("Add, show and edit calendars: named sets of holidays that schedules follow.")

CALENDAR = (
    "name", "id", "description", "type", "holidays", "exchange", "weekend", "weekend_is_holiday", "date_count",
    "known_until", "revision", "schedule_count", "schedules", "created_at", "updated_at",
)  # fmt: skip
Name = Annotated[str, typer.Argument(help="name of the calendar", autocompletion=complete("calendars"))]


def source_fields(
    holidays: Annotated[
        str | None, typer.Option(help="country, with a subdivision if wanted: NO, DE-BY, US-CA")
    ] = None,
    exchange: Annotated[str | None, typer.Option(help="exchange by its code, such as XOSL or XNYS")] = None,
    ical: Annotated[Path | None, typer.Option(help="iCal file with the holidays as events")] = None,
    dates: Annotated[str | None, typer.Option(help="dates, separated by commas: 2026-12-24,2026-12-31")] = None,
    weekend: Annotated[
        str | None, typer.Option(help="days that are not working days: sat,sun; none for no weekend")
    ] = None,
    weekend_is_holiday: Annotated[
        bool | None,
        typer.Option("--weekend-is-holiday/--weekend-is-not-holiday", help="treat the weekend as holidays too"),
    ] = None,
    description: Annotated[str | None, typer.Option(help="description")] = None,
) -> Answer:
    """Return the fields of a calendar."""
    return set_fields(
        holidays=holidays,
        exchange=exchange,
        ical=None if ical is None else read_text(ical),
        dates=None if dates is None else names_in(dates),
        weekend=None if weekend is None else [] if weekend == "none" else names_in(weekend),
        weekend_is_holiday=weekend_is_holiday,
        description=description,
    )


@app.command("list", reads=True)
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List calendars by name."""
    page = ctx.obj.get("/calendars", limit=limit, cursor=cursor)
    rows = (
        [
            item["name"],
            item["holidays"] or item["exchange"] or item["type"],
            str(item["date_count"]),
            item["known_until"] or "",
            str(item["schedule_count"]),
            item["description"],
        ]
        for item in page["items"]
    )
    print_list(ctx.obj, page, ("name", "source", "dates", "known until", "schedules", "description"), rows)


@app.command(reads=True)
def show(ctx: typer.Context, name: Name) -> None:
    """Show a calendar with its dates."""
    calendar = ctx.obj.get(item_path("calendars", name))
    print_calendar(ctx, calendar)


@app.command()
@with_fields(source_fields)
def add(ctx: typer.Context, fields: Answer, name: Annotated[str, typer.Argument(help="name of the calendar")]) -> None:
    """Add a calendar from one source: --holidays, --exchange, --ical or --dates."""
    print_calendar(ctx, ctx.obj.post("/calendars", {**fields, "name": name}))


@app.command()
@with_fields(source_fields)
def edit(ctx: typer.Context, fields: Answer, name: Name) -> None:
    """Change a calendar and resolve its dates again; its schedules are planned anew."""
    print_calendar(ctx, ctx.obj.patch(item_path("calendars", name), fields))


@app.command()
def rm(ctx: typer.Context, name: Name) -> None:
    """Delete a calendar that no schedule follows."""
    ctx.obj.delete(item_path("calendars", name))
    print_stderr(f"calendar {name} deleted")


def print_calendar(ctx: typer.Context, calendar: Answer) -> None:
    if print_data(ctx.obj, calendar):
        return
    print_details(ctx.obj, calendar, CALENDAR)
    print_table(("date", "name"), ([day["date"], day["name"]] for day in calendar["dates"]))


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {path}: {error}")
