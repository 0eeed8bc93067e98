"""The example of the README runs as it stands."""

import re
import runpy
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs(tmp_path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "example.py"
    file.write_text(code, encoding="utf-8")
    names = runpy.run_path(str(file), run_name="__main__")
    assert set(names["posterior"].marginal("label")) <= {"positive", "negative"}
    assert "score" in capsys.readouterr().out
