"""`rota graph …`"""

from typing import Annotated

import typer

from rota.frame.cli.connection import item_path
from rota.frame.cli.options import read_input
from rota.frame.cli.output import print_list
from rota.frame.cli.run_results import show_job_or_result

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List and run graphs (AI work that programs declare)."
)


@app.command("list")
def list_all(ctx: typer.Context) -> None:
    """List graphs that the server's program declares, or a live worker announces."""
    page = ctx.obj.get("/graphs")
    rows = (
        [graph["id"], graph["version"] or "-", "yes" if graph["live"] else "no", graph["description"] or ""]
        for graph in page["items"]
    )
    print_list(ctx.obj, page, ("graph", "version", "live", "description"), rows)


@app.command()
def run(
    ctx: typer.Context,
    graph: Annotated[str, typer.Argument(help="id of the graph, such as langgraph:poet")],
    input_text: Annotated[str | None, typer.Option("--input", help="a JSON object, or @file")] = None,
    grant: Annotated[str | None, typer.Option(help="id of the grant; default: a new one that expires in a day")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait for its content; exit code 7 if the run failed")] = False,
    timeout: Annotated[float, typer.Option(help="seconds to wait at most; exit code 6 after that")] = 3600.0,
) -> None:
    """Run a graph now, under a grant."""
    body = {"input": read_input(input_text), "grant_id": grant}
    show_job_or_result(ctx.obj, ctx.obj.post(item_path("graphs", graph, "$run"), body), wait, timeout)
