"""Names of browsers and systems, from the User-Agent header that a browser sends."""

BROWSERS = (  # the first match counts: most name others, too
    ("Edg", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("HeadlessChrome/", "Chrome"), ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"), ("FxiOS/", "Firefox"), ("Safari/", "Safari"), ("curl/", "curl"), ("python-", "Python"),
)  # fmt: skip
SYSTEMS = (
    ("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows"), ("CrOS", "ChromeOS"),
    ("Macintosh", "macOS"), ("Linux", "Linux"),
)  # fmt: skip


def device_of(user_agent: str | None) -> str | None:
    """Return `Firefox on Linux`; None if neither is known. It is what the browser claims to be."""
    text = user_agent or ""
    browser = next((name for word, name in BROWSERS if word in text), None)
    system = next((name for word, name in SYSTEMS if word in text), None)
    return " on ".join(filter(None, (browser, system))) or None
