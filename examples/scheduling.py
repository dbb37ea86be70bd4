"""Schedules of a task over the API: once, at an interval, by cron.

Run it with: uvicorn --app-dir examples scheduling:app

    plan() {
        curl -s -X POST localhost:8000/api/v1/tasks/check/\\$schedule -H 'content-type: application/json' -d "$1"
    }
    plan '{"schedule_type": "once", "run_at": "2030-01-01T09:00:00+01:00"}'
    plan '{"schedule_type": "interval", "interval_seconds": 300, "overlap": "skip"}'
    plan '{"schedule_type": "cron", "cron_expression": "0 6 * * 1-5", "timezone": "Europe/Oslo"}'
    curl -s localhost:8000/api/v1/tasks/check/\\$schedules

Schedules are stored: they go on after a restart, and every slot is accounted for.
"""

from rota import Rota, RunContext, ServiceBuilder, ServiceInfo

program = Rota()


@program.task
async def check(ctx: RunContext, what: str = "everything") -> str:
    return f"{what} is well, said the slot of {ctx.slot}"


program.schedule("hourly", check, every="1h", params={"what": "the hour"})  # the same from code

app = (
    ServiceBuilder(info=ServiceInfo(display_name="Scheduling"), program=program)
    .with_health()
    .with_artifacts()
    .with_jobs()
    .with_tasks()
    .with_schedules()
    .build()
)
