"""The options of a task that control its flow: parsers, and checks of how they fit together."""

import inspect
from collections.abc import Callable, Mapping

from rota.core import parse
from rota.core.errors import Invalid, together
from rota.core.flow import MAX_BURST, MAX_PLACES, Rate, parse_rate

NEEDS = {  # an option, and the one without which it means nothing
    "rate_key": "rate",
    "burst": "rate",
    "max_running_key": "max_running",
    "debounce_key": "debounce",
    "debounce_max": "debounce",
    "throttle_key": "throttle",
}
KEYS = ("rate_key", "max_running_key", "debounce_key", "throttle_key")  # they name a parameter
FLOW_OPTIONS: dict[str, Callable[[object, str], object]] = {
    "rate": lambda value, field: value if isinstance(value, Rate) else parse_rate(value, field),
    "burst": lambda value, field: parse.whole(value, field, 1, MAX_BURST),
    "rate_key": parse.label,
    "max_running": lambda value, field: parse.whole(value, field, 1, MAX_PLACES),
    "max_running_key": parse.label,
    "throttle_key": parse.label,
    "debounce_key": parse.label,
    "priority": lambda value, field: parse.whole(value, field, -100, 100),
    "queue": parse.name,
}


def check_flow_options(options: Mapping[str, object], function: Callable[..., object] | None, is_command: bool) -> None:
    """Raise Invalid, with all errors, for options that do not fit together, and for keys that are no parameter of the
    function, if that is known here. The keys of a command are names in its parameters."""
    wrong = [
        Invalid(name, options[name], f"needs `{needed}`: set that too, or leave `{name}` out")
        for name, needed in NEEDS.items()
        if options.get(name) is not None and options.get(needed) is None
    ]
    if options.get("debounce") is not None and options.get("throttle") is not None:
        wrong.append(Invalid("throttle", options["throttle"], "cannot be combined with `debounce`: choose one of both"))
    debounce, longest = options.get("debounce"), options.get("debounce_max")
    if debounce is not None and longest is not None and longest < debounce:  # type: ignore[operator]
        wrong.append(Invalid("debounce_max", str(longest), "is shorter than `debounce`; set a longer span"))
    if options.get("heartbeat") is not None and is_command:
        wrong.append(Invalid("heartbeat", str(options["heartbeat"]), "needs a function; for a command set `timeout`"))
    if function is not None:
        parameters = inspect.signature(function).parameters
        any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        listed = ", ".join(parameters) or "none"
        wrong += [
            Invalid(name, options[name], f"is not a parameter of {function.__name__}; its parameters are {listed}")
            for name in KEYS
            if options.get(name) is not None and options[name] not in parameters and not any_name
        ]
    if wrong:
        raise together(wrong)
