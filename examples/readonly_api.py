"""Tasks declared in code: callers may read and execute them, but not change them.

Run it with: uvicorn --app-dir examples readonly_api:app
"""

from rota import CrudPermissions, Rota, ServiceBuilder, ServiceInfo

program = Rota()


@program.task
async def report(day: str, limit: int = 10) -> dict[str, object]:
    return {"day": day, "rows": list(range(limit))}


program.shell("uptime", "uptime")

app = (
    ServiceBuilder(info=ServiceInfo(display_name="Reports"), program=program)
    .with_health()
    .with_artifacts()
    .with_jobs()
    .with_tasks(permissions=CrudPermissions(create=False, read=True, update=False, delete=False))  # the others: 405
    .build()
)
