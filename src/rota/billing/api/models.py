"""Bodies and answers of the routes of billing and grants."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from rota.core.errors import Invalid, together
from rota.core.wire import (
    EXAMPLE_ID,
    Answer,
    At,
    Id,
    Instant,
    Label,
    NameText,
    NotBlank,
    RequestBody,
    StorableText,
    Ulid,
    checked,
    domain_error,
    example,
)
from rota.engine import grants
from rota.engine.billing_accounts import MAX_CREDITS

Usd = Annotated[
    str,
    WithJsonSchema({"type": "string", "description": "a decimal number of US dollars", "examples": ["0.0041"]}),
]
Scopes = Annotated[
    list[str],
    WithJsonSchema(
        {"type": "array", "items": {"type": "string", "maxLength": grants.SCOPE_LIMIT}, "minItems": 1, "maxItems": 100}
    ),
]
Credits = Annotated[int, Field(ge=0, le=MAX_CREDITS)]


# grants


class Budget(RequestBody):
    """Limits of what the runs under a grant may cost, in credits."""

    per_day: Credits | None = None
    total: Credits | None = None


def check_limits(value: object, field: str) -> object:
    if not isinstance(value, dict) or not value:
        raise Invalid(field, value, "is not an object like {per_day, total}, in credits")
    right = "is an unknown field; the fields are per_day, total"
    wrong = [Invalid(name, value[name], right) for name in value if name not in Budget.model_fields]
    if wrong:
        raise together(wrong)
    return value


class GrantBody(RequestBody):
    model_config = example({"scopes": ["graph:execute:langgraph:poet"], "expires_at": "2027-01-01T00:00:00Z"})

    consent: bool | None = None
    scopes: Scopes
    expires_at: Instant | None = None
    billing_account_id: Ulid | None = None
    budget: Annotated[Budget, BeforeValidator(checked(check_limits))] | None = None

    @field_validator("scopes", mode="plain")
    @classmethod
    def check_scopes(cls, scopes: object, info: ValidationInfo) -> list[str]:
        try:
            return grants.parse_scopes(scopes, consent=info.data.get("consent") is True)
        except Invalid as error:
            raise domain_error(error.all) from None


class RevokeBody(RequestBody):
    model_config = example({"cancel_running": False})

    cancel_running: bool | None = None


class BudgetLimits(Answer):
    per_day: int | None
    total: int | None


class Grant(Answer):
    id: Id
    owner_id: Id
    billing_account_id: Id
    scopes: list[str]
    schedule_id: Id | None
    expires_at: At | None
    revoked_at: At | None
    budget: BudgetLimits | None
    spent: int
    created_at: At


class GrantUse(Grant):
    schedules: list[NameText]


class LapsingSchedule(Answer):
    """A schedule whose grant has lapsed or lapses soon."""

    schedule_id: Id
    schedule_name: NameText
    kind: str
    target: str
    grant_id: Id
    lapses_at: At | None
    reason: Literal["grant_revoked", "grant_expired", "grant_not_found"]


# billing


class Account(Answer):
    id: Id
    owner_id: Id
    owner_name: NameText
    balance_credits: int
    default_virtual_key_id: Id | None
    created_at: At
    closed_at: At | None


class CreditBody(RequestBody):
    model_config = example({"amount_credits": 50_000_000, "reason": "top_up", "reference": "invoice 7"})

    amount_credits: Annotated[int, Field(ge=1, le=MAX_CREDITS, description="10,000,000 are one US dollar")]
    reason: Annotated[str, Field(min_length=1, max_length=40), StorableText, NotBlank] | None = None
    reference: Label
    account_id: Ulid | None = None


class Entry(Answer):
    """An entry of the ledger of an account."""

    id: Id
    billing_account_id: Id
    virtual_key_id: Id | None
    amount: int
    balance_after: int
    reason: str
    reference: str
    created_at: At


class Receipt(Answer):
    """A charge for a unit of work."""

    id: Id
    billing_account_id: Id
    virtual_key_id: Id
    grant_id: Id | None
    schedule_id: Id | None
    target: str = Field(examples=["langgraph:poet"])
    run_id: Id
    attempt: int
    unit: str
    model: str | None
    input_tokens: int
    output_tokens: int
    charged_credits: int
    cost_usd: Usd | None
    source_system: str
    source_reference: str
    created_at: At


class Usage(Answer):
    """Sums of charges."""

    model_config = example(
        {
            "name": "poems", "key": EXAMPLE_ID, "runs": 5, "units": 12, "input_tokens": 900, "output_tokens": 4000,
            "charged_credits": 820_000, "cost_usd": "0.0410000000",
        }
    )  # fmt: skip

    name: NameText | None
    key: Annotated[str, Field(description="an id, a graph or a day")] | None
    runs: int
    units: int
    input_tokens: int
    output_tokens: int
    charged_credits: int
    cost_usd: Usd


class VirtualKeyBody(RequestBody):
    model_config = example({"label": "Research"})

    label: Label
    account_id: Ulid | None = None


class VirtualKey(Answer):
    id: Id
    billing_account_id: Id
    label: NameText
    is_default: bool
    active: bool
    created_at: At
