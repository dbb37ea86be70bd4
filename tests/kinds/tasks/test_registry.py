"""What may run: how functions are registered, found, listed and forgotten."""

from datetime import timedelta

import pytest

from rota import Retry, Rota, TaskRegistry
from rota.core.errors import Conflict, Invalid, InvalidMany
from rota.kinds.tasks.registry import task_rows
from rota.user_code.injection import Injector


def double(x: int) -> int:
    return x * 2


def test_a_decorator_registers_and_leaves_the_function_as_it_is() -> None:
    @TaskRegistry.register("twice")
    def twice(x: int) -> int:
        return x * 2

    assert twice(5) == 10
    assert TaskRegistry.get("twice") is twice
    assert TaskRegistry.list_all() == ["twice"]


def test_a_function_is_registered_by_a_call() -> None:
    TaskRegistry.register_function("double", double)
    assert TaskRegistry.get("double")(4) == 8


def test_a_second_function_of_a_name_is_refused_and_the_first_stays() -> None:
    TaskRegistry.register_function("double", double)
    with pytest.raises(ValueError, match="task 'double' is already registered"):
        TaskRegistry.register_function("double", print)
    with pytest.raises(Conflict):
        TaskRegistry.register("double")(print)
    assert TaskRegistry.get("double") is double


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="unknown"):
        TaskRegistry.get("unknown")


def test_a_command_is_no_function() -> None:
    app = Rota()
    app.shell("greet", "echo hello")
    with pytest.raises(KeyError, match="is a command, not a function"):
        app.registry.get("greet")


def test_names_are_listed_in_order() -> None:
    for name in ("b", "c", "a"):
        TaskRegistry.register_function(name, double)
    assert TaskRegistry.list_all() == ["a", "b", "c"]


def test_clearing_forgets_everything() -> None:
    TaskRegistry.register_function("double", double)
    TaskRegistry.clear()
    assert TaskRegistry.list_all() == []
    TaskRegistry.register_function("double", double)


def test_a_namespace_prefixes_names() -> None:
    billing, stock = TaskRegistry("billing"), TaskRegistry("stock")
    billing.register("sum")(double)
    stock.register("sum")(print)
    assert TaskRegistry.list_all() == ["billing.sum", "stock.sum"]
    assert billing.list_all() == ["billing.sum"]
    assert billing.get("sum") is double
    assert TaskRegistry.get("stock.sum") is print


def test_a_cleared_namespace_leaves_the_others_alone() -> None:
    TaskRegistry("billing").register_function("sum", double)
    TaskRegistry("bill").register_function("sum", double)
    TaskRegistry("bill").clear()
    assert TaskRegistry.list_all() == ["billing.sum"]


def test_a_program_knows_what_everybody_shares_and_keeps_its_own() -> None:
    TaskRegistry.register_function("shared", double)
    first, second = Rota(), Rota()
    first.task("mine")(double)
    TaskRegistry.register_function("later", double)
    assert first.registry.list_all() == ["later", "mine", "shared"]
    assert second.registry.list_all() == ["later", "shared"]
    assert TaskRegistry.list_all() == ["later", "shared"]


def test_a_program_cannot_stand_in_for_what_everybody_shares() -> None:
    TaskRegistry.register_function("shared", double)
    with pytest.raises(Conflict):
        Rota().task("shared")(print)


def test_a_program_that_forgets_leaves_what_is_shared() -> None:
    TaskRegistry.register_function("shared", double)
    app = Rota()
    app.task(double)
    app.registry.clear()
    assert app.registry.list_all() == ["shared"]


def test_the_version_is_what_was_said_or_follows_the_code() -> None:
    app = Rota()
    app.task("said", version="2.1")(double)
    app.task("first")(double)
    app.task("second")(lambda x: x + 1)
    app.shell("greet", "echo hello")
    app.shell("greet-again", "echo hello again")
    versions = {row["name"]: row["version"] for row in task_rows(app.registry, Injector(), None)}
    assert versions["said"] == "2.1"
    assert len({*versions.values()}) == 5
    again = Rota()
    again.task("first")(double)
    assert task_rows(again.registry, Injector(), None)[0]["version"] == versions["first"]


def test_wrong_options_and_names_are_refused_all_at_once() -> None:
    with pytest.raises(InvalidMany, match=r"timeout.*isolation|isolation.*timeout"):
        TaskRegistry.register_function("x", double, timeout=-1, isolation="moon")
    with pytest.raises(Invalid, match="speed"):
        TaskRegistry.register_function("x", double, speed=3)
    with pytest.raises(Invalid, match="name"):
        TaskRegistry.register_function(" x", double)
    assert TaskRegistry.list_all() == []


def test_options_come_back_from_the_database_as_they_were_declared() -> None:
    app = Rota()
    retry = Retry(max_retries=2)
    app.task("job", retry=retry, timeout=timedelta(seconds=5), cache_ttl="1h", memory_mb=64)(double)
    app.shell("env", "env", env=["SECRET_*"])
    rows = {row["name"]: row["options"] for row in task_rows(app.registry, Injector(), None)}
    assert rows["env"] == {"env": ["SECRET_*"]}  # as in JSON: otherwise each start would see a change
    assert rows["job"] == {"retry": retry.dump(), "timeout": 5.0, "cache_ttl": 3600.0, "memory_mb": 64}
