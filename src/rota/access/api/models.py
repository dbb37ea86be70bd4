"""Bodies and answers of the routes of orgs, users, service accounts, keys, login links, sessions and the audit log."""

import re
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from rota.access.api.password_rules import PASSWORD_CHARACTERS, read_password
from rota.core import parse
from rota.core.errors import Invalid
from rota.core.wire import Answer, At, Id, Instant, Label, Name, NameText, RequestBody, StorableText, checked, example
from rota.frame.http.auth import Role

ROLES = [role.name.lower() for role in Role]
SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,58}[a-z0-9])?")
EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}")
MAX_RUNNING = 1_000_000


def read_slug(value: object, field: str) -> str:
    if not isinstance(value, str) or not SLUG.fullmatch(value):
        raise Invalid(field, value, "is not a slug: a-z, 0-9 and inner dashes, at most 60 characters")
    return value


def read_email(value: object, field: str) -> str:
    email = parse.text(value, field, 320)
    if not EMAIL.fullmatch(email) or not email.isprintable():
        raise Invalid(field, value, "is not an e-mail address")
    return email.lower()


def read_role(value: object, field: str) -> str:
    return parse.one_of(value, field, ROLES)


def read_current_password(value: object, field: str) -> str:
    """Return a password to compare, which may be older than the rules. Raises Invalid without naming it."""
    if not isinstance(value, str) or len(value) > PASSWORD_CHARACTERS[1]:
        raise Invalid(field, "…", f"is not a text of at most {PASSWORD_CHARACTERS[1]} characters")
    return value


PASSWORD_SCHEMA = {"type": "string", "minLength": PASSWORD_CHARACTERS[0], "maxLength": PASSWORD_CHARACTERS[1]}
ROLE_SCHEMA = {"type": "string", "enum": ROLES}

Slug = Annotated[str, PlainValidator(checked(read_slug)), WithJsonSchema({"type": "string", "maxLength": 60})]
Email = Annotated[
    str,
    PlainValidator(checked(read_email)),
    WithJsonSchema({"type": "string", "maxLength": 320, "examples": ["ada@example.org"]}),
]
Password = Annotated[str, PlainValidator(checked(read_password)), WithJsonSchema(PASSWORD_SCHEMA)]
CurrentPassword = Annotated[str, PlainValidator(checked(read_current_password)), WithJsonSchema(PASSWORD_SCHEMA)]
Scopes = Annotated[list[Label], Field(max_length=50)]
RoleName = Annotated[str, PlainValidator(checked(read_role)), WithJsonSchema(ROLE_SCHEMA)]


class OrgBody(RequestBody):
    model_config = example({"name": "Ops", "slug": "ops"})

    name: Name
    slug: Slug


class OrgChanges(RequestBody):
    """Changes of an org; a null `max_running` removes the limit."""

    model_config = example({"shell": True, "max_running": 20})

    shell: bool | None = None
    max_running: Annotated[int, Field(ge=1, le=MAX_RUNNING)] | None = None


class Org(Answer):
    id: Id
    slug: str
    name: NameText
    shell: bool
    max_running: int | None
    created_at: At


class NewOrg(Answer):
    id: Id
    slug: str
    name: NameText
    admin_key: str


class UserBody(RequestBody):
    model_config = example({"email": "ada@example.org", "name": "Ada", "password": "correct horse", "role": "operator"})

    email: Email
    name: Name | None = None
    password: Password
    role: RoleName


class UserChanges(RequestBody):
    model_config = example({"role": "admin"})

    email: Email | None = None
    name: Name | None = None
    password: Password | None = None
    role: RoleName | None = None
    disabled: bool | None = None
    oidc_subject: Annotated[str, Field(max_length=255), StorableText] | None = None


class PasswordBody(RequestBody):
    model_config = example({"current_password": "correct horse", "new_password": "battery staple"})

    current_password: CurrentPassword
    new_password: Password


class User(Answer):
    id: Id
    email: str | None
    name: NameText
    role: RoleName
    disabled: bool
    disabled_by: Literal["admin", "provider"] | None
    oidc_subject: str | None
    created_at: At
    updated_at: At


class ServiceAccountBody(RequestBody):
    model_config = example({"name": "deploy", "role": "operator", "scopes": ["schedules", "runs:read"]})

    name: Name
    role: RoleName
    scopes: Scopes | None = None


class ServiceAccountChanges(RequestBody):
    model_config = example({"role": "viewer"})

    name: Name | None = None
    role: RoleName | None = None
    scopes: Scopes | None = None
    disabled: bool | None = None


class ServiceAccount(Answer):
    id: Id
    name: NameText
    role: RoleName
    scopes: list[str]
    disabled: bool
    created_at: At
    updated_at: At


class KeyBody(RequestBody):
    model_config = example({"name": "deploy", "role": "operator", "scopes": ["schedules", "runs:read"]})

    name: Name
    role: RoleName
    user_id: Annotated[str, Field(max_length=26), StorableText] | None = None
    scopes: Scopes | None = None
    expires_at: Instant | None = None


class Key(Answer):
    id: Id
    name: NameText
    user_id: Id
    user_name: str
    role: RoleName
    scopes: list[str]
    prefix: str
    created_at: At
    expires_at: At | None
    last_used_at: At | None
    revoked_at: At | None


class NewKey(Key):
    key: str


class Session(Answer):
    id: Id
    user_id: Id
    user_name: str
    key_id: Id | None
    key_name: str | None
    address: str | None
    user_agent: str | None
    device: str | None = Field(examples=["Firefox on Linux"])
    method: Literal["password", "link", "oidc"] | None
    current: bool
    created_at: At
    last_used_at: At
    expires_at: At


class SessionsEnd(RequestBody):
    model_config = example({})

    user_id: Annotated[str, Field(max_length=26), StorableText] | None = None


class EndedSessions(Answer):
    ended: int


class LoginLink(Answer):
    url: str = Field(json_schema_extra={"format": "uri"})
    expires_at: At


class Act(Answer):
    """An entry of the audit log."""

    id: Id
    at: At
    user_id: Id
    user_name: str | None
    key_id: Id | None
    key_name: str | None
    action: str
    resource: str
    resource_id: str | None
    resource_name: str | None
    before: object
    after: object
    address: str | None
    request_id: str | None
