"""A user in front of a page: with script it follows by itself, without it the user reloads it."""

from dataclasses import dataclass

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect


@dataclass
class Reader:
    page: Page
    script: bool

    def sees(self, where: str, text: str) -> None:
        """Wait until a part of the page shows a text, live or after a reload."""
        if self.script:
            assert self.page.evaluate("window.kept = window.kept ?? true")
        for _ in range(0 if self.script else 100):
            if text in " ".join(self.page.locator(where).all_inner_texts()):
                break
            self.page.wait_for_timeout(200)
            self.page.reload()
        expect(self.page.locator(where).filter(has_text=text).first).to_be_visible()

    def act(self, words: str, button: str, **fields: str) -> None:
        """Open what can be done, fill in its form and send it."""
        act = self.page.locator("details.act").filter(has=self.page.get_by_role("button", name=words, exact=True)).first
        act.locator("summary").first.click()
        for name, value in fields.items():
            act.locator(f"[name={name}]").fill(value)
        act.get_by_role("button", name=button, exact=True).last.click()


def violations(page: Page) -> list[str]:
    """Serious and critical accessibility violations that axe reports for a page."""
    violated = Axe().run(page).response["violations"]
    return [
        f"{violation['id']} ({violation['impact']}): {violation['help']}; {len(violation['nodes'])} times: "
        f"{violation['nodes'][0]['html'][:200]} "
        f"{violation['nodes'][0].get('failureSummary', '')[:300]}"
        for violation in violated
        if violation["impact"] in ("serious", "critical")
    ]
