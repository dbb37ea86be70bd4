"""A function and two commands, each on a schedule. Run it with: rota up examples/quickstart.py"""

from rota import Rota, RunContext

app = Rota()


@app.task
async def heartbeat(ctx: RunContext) -> dict[str, str]:
    """Log that the process is alive."""
    print(f"alive, for the slot of {ctx.slot}")
    return {"slot": str(ctx.slot)}


app.shell("disk", "df -h /")
app.shell("slow", "sleep 20")

app.schedule("heartbeat-every-5s", "heartbeat", every="5s")
app.schedule("disk-every-minute", "disk", cron="* * * * *")
app.schedule("slow-every-minute", "slow", every="1m")
