"""A repair command: `ROTA_REPAIR_COMMAND="python examples/repair.py" rota up`.

It reads the failure as JSON and prints the new file. This example has a single remedy: if a key is missing and the
payload has exactly one unknown field, it also accepts that field. A coding tool can do more: pass it `failure`.
"""

import json
import re
import sys

failure = json.load(sys.stdin)
source, error = failure["source"], failure["error"]
missing = re.search(r"'(\w+)'", error["message"])
if error["type"] != "KeyError" or missing is None or failure["proposals"]:
    sys.exit("I only know what to do about a field that was renamed")
payloads = [event["payload"] for events in failure["inputs"]["events"].values() for event in events]
known = set(re.findall(r'payload\["(\w+)"\]', source))
new = {field for payload in payloads if isinstance(payload, dict) for field in payload} - known
if len(new) != 1:
    sys.exit(f"{missing[1]} may have become any of {sorted(new)}")
print("it seems that", missing[1], "is called", *new, "now", file=sys.stderr)
old = f'payload["{missing[1]}"]'
sys.stdout.write(source.replace(old, f'payload.get("{missing[1]}", event.payload.get("{new.pop()}"))'))
