"""Shell commands as tasks of a web service. Run it with: uvicorn --app-dir examples shell_tasks:app

    curl -s -X POST localhost:8000/api/v1/tasks/greet/\\$execute -H 'content-type: application/json' \\
         -d '{"parameters": {"name": "Ada"}}'

Every caller who may store a command may run anything: keep a service without `.with_auth()` on your own machine.
"""

from fastapi import FastAPI

from rota import ServiceBuilder, ServiceInfo, TaskIn

TASKS = (
    TaskIn(name="disk", command="df -h /"),
    # a command reads its parameters as JSON from stdin
    TaskIn(name="greet", command='python3 -c \'import json, sys; print("hello", json.load(sys.stdin)["name"])\''),
    # its environment has a few standard variables and those in `env`; after five seconds its process group is killed
    TaskIn(name="where", command='echo "$PLACE"; pwd', options={"env": {"PLACE": "here"}, "cwd": "/", "timeout": "5s"}),
    # an exit code other than 0 is a failed run; its output is stored
    TaskIn(name="failing", command="echo 'no such report' >&2; exit 3", options={"retry": {"max_retries": 0}}),
)


async def seed(app: FastAPI) -> None:
    known = {task["name"] for task in await app.state.tasks.find_all()}
    for task in TASKS:
        if task.name not in known:
            await app.state.tasks.save(task)


app = (
    ServiceBuilder(info=ServiceInfo(display_name="Shell tasks"))
    .with_health()
    .with_artifacts()
    .with_jobs(max_concurrency=3)
    .with_tasks()
    .on_startup(seed)
    .build()
)
