"""A Python function and a shell command on a schedule: `rota up examples/quickstart.py`."""

from datetime import UTC, datetime

from rota import Rota

app = Rota()


@app.task
async def heartbeat() -> dict[str, str]:
    """Say that we are alive."""
    slot = datetime.now(UTC).isoformat(timespec="seconds")
    print(f"heartbeat {slot}", flush=True)
    return {"slot": slot}


app.shell("disk", "df -h /")

app.schedule("heartbeat-every-5s", "heartbeat", every="5s")
app.schedule("disk-every-minute", "disk", cron="* * * * *")
