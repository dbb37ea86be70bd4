"""A workflow as a script: `rota workflow deploy examples/greetings.py`, then

rota workflow publish greetings names ada --payload '{"name": "Ada"}'
"""

from typing import Any

from rota import Prepare, Workflow

greetings = Workflow("greetings", topics=["names"])


@greetings.consumer(subscribe=["names"])
class Greet:
    async def prepare(self, ctx: Any, state: Any) -> Prepare:
        waiting = await ctx.peek("names")
        for event in waiting:
            ctx.log.info("Hello %s", event.payload["name"])
        return Prepare(
            reservations={"names": [event.id for event in waiting]},
            title=f"greeted {len(waiting)}" if waiting else None,
        )
