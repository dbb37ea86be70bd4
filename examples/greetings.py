"""A workflow as a script: `rota workflow deploy examples/greetings.py`, then

rota workflow publish greetings names ada --payload '{"name": "Ada"}'
"""

from rota import Prepare, Workflow

greetings = Workflow("greetings", topics=["names"])


@greetings.consumer(subscribe=["names"])
class Greet:
    async def prepare(self, ctx, state):
        waiting = await ctx.peek("names")
        for one in waiting:
            ctx.log.info("Hello %s", one.payload["name"])
        return Prepare(
            reservations={"names": [one.id for one in waiting]},
            title=f"greeted {len(waiting)}" if waiting else None,
        )
