"""`rota graph …`"""

from typing import Annotated

import typer

from rota.frame.cli.completion import complete
from rota.frame.cli.connection import item_path
from rota.frame.cli.options import Cursor, Limit, command_group, read_input
from rota.frame.cli.output import print_list
from rota.frame.cli.run_results import show_job_or_result

app = command_group("List and run graphs (AI work that programs declare).")


@app.command("list", reads=True)
def list_all(ctx: typer.Context, limit: Limit = None, cursor: Cursor = None) -> None:
    """List graphs that the server's program declares, or a live worker announces."""
    page = ctx.obj.get("/graphs", limit=limit, cursor=cursor)
    rows = (
        [graph["id"], graph["version"] or "-", "yes" if graph["live"] else "no", graph["description"] or ""]
        for graph in page["items"]
    )
    print_list(ctx.obj, page, ("graph", "version", "live", "description"), rows)


@app.command()
def run(
    ctx: typer.Context,
    graph: Annotated[
        str, typer.Argument(help="id of the graph, such as langgraph:poet", autocompletion=complete("graphs", "id"))
    ],
    input_text: Annotated[str | None, typer.Option("--input", help="a JSON object, or @file")] = None,
    grant: Annotated[str | None, typer.Option(help="id of the grant; default: a new one that expires in a day")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="wait for its content; exit code 7 if the run failed")] = False,
    timeout: Annotated[float, typer.Option(help="seconds to wait at most; exit code 6 after that")] = 3600.0,
) -> None:
    """Run a graph now, under a grant."""
    body = {"input": read_input(input_text), "grant_id": grant}
    show_job_or_result(ctx.obj, ctx.obj.post(item_path("graphs", graph, "$run"), body), wait, timeout)
