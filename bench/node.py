"""A worker process, as `rota worker bench/jobs.py` starts it; settings come from the environment."""

from pathlib import Path

from rota.app.main import worker
from rota.app.settings import Settings

if __name__ == "__main__":
    worker(Settings.load(), str(Path(__file__).with_name("jobs.py")))
