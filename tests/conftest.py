"""What holds for every process that a test starts."""

import os
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (HERE / "without_compiler", HERE.parent)))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes import the same files

settings.register_profile("untimed", deadline=None)  # a busy machine breaks no law
settings.load_profile("untimed")
