"""Rules for new passwords."""

from functools import cache
from pathlib import Path

from rota.core import parse
from rota.core.errors import Invalid

PASSWORD_CHARACTERS = (8, 1000)
DIFFERENT_CHARACTERS = 3  # at least
COMMON_PASSWORDS = Path(__file__).parent / "common_passwords.txt"


def read_password(value: object, field: str) -> str:
    """Raises Invalid for a password that is too short, too long, too simple or widely used, without naming it."""
    low, high = PASSWORD_CHARACTERS
    if not isinstance(value, str) or not low <= len(value) <= high:
        raise Invalid(field, "…", f"is not a text of {low} to {high} characters")
    if len(set(value.lower())) < DIFFERENT_CHARACTERS:
        raise Invalid(field, "…", f"has fewer than {DIFFERENT_CHARACTERS} different characters; choose another")
    if value.lower() in common_passwords():
        raise Invalid(field, "…", "is a common password; choose another")
    return parse.text(value, field, high)


def check_not_address(password: str, email: str, field: str = "password") -> None:
    """Raises Invalid for a password that is the user's e-mail address, or the part of it before the @."""
    if email and password.lower() in (email.lower(), email.lower().partition("@")[0]):
        raise Invalid(field, "…", "is the e-mail address of the user; choose another")


@cache
def common_passwords() -> frozenset[str]:
    lines = COMMON_PASSWORDS.read_text().splitlines()
    return frozenset(line for line in lines if not line.startswith("# "))
