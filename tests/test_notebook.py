"""What a posterior and a plan show in Jupyter: markup, warnings, plots."""

import builtins
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from smcprog import Posterior, condition, factor, gen, lm, regex, reward, smc_program, sync
from smcprog.inference.population import Death, RoundRecord
from smcprog.inference.posterior import Stats
from smcprog.notebook.html import FOLD, MOST
from smcprog.notebook.posterior import ROWS
from tests.inference import tables

STATS = Stats(1, 0, 0, 0, 0, 0, 0, 0, 0, 2.0)
PLOTS = ("plot_genealogy", "plot_ess", "plot_weights", "plot_marginal", "plot_timing")


def posterior(values, weights=None, **changes):
    n = len(values)
    with np.errstate(divide="ignore"):
        log_weights = np.log(np.ones(n) if weights is None else np.array(weights, dtype=float))
    plain = Posterior(
        values=values,
        texts=[""] * n,
        tokens=[[]] * n,
        log_weights=log_weights,
        roots=list(range(n)),
        truncated=[False] * n,
        traces=[[]] * n,
        rounds=[],
        deaths=[],
        stats=STATS,
        seed=3,
    )
    return replace(plain, **changes)


def record(number, ancestors=None, drawn=(1, 1), **changes):
    plain = RoundRecord(
        round=number,
        ess=1.0 + number,
        resampled=ancestors is not None,
        ancestors=ancestors or tuple(range(len(drawn))),
        tokens=tuple((0,) * times for times in drawn),
        live=len(drawn),
        seconds={"host": 0.5, "score": 1.0},
    )
    return replace(plain, **changes)


DEAD = posterior(
    [],
    rounds=[record(0, drawn=(2, 1, 2), ess=0.0)],
    deaths=[Death(0, "condition at die:3", 2, "a<b"), Death(0, "factor at die:4", 1, "")],
)


@smc_program
def words(times):
    out = ""
    for _ in range(times):
        out += gen(lm**1.5, max_tokens=2)
        factor(0.8 * out.count("ab"))
        condition(not out.endswith("aa"))
        sync()
    return out


@smc_program
def impossible():
    gen(max_tokens=3)
    condition(False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Posteriors of 1, 16 and 256 particles and one of none, as they were read from a file."""
    engine = tables.engine()
    shown = {
        "1": engine.run(words(2), particles=1, seed=1, ess_threshold=0),
        "16": engine.run(words(12), particles=16, seed=1),
        "256": engine.run(words(3), particles=256, seed=1),
        "dead": engine.run(impossible(), particles=8, seed=0, on_dead="return"),
    }
    path = tmp_path_factory.mktemp("posteriors") / "one.json"
    for name, made in shown.items():
        made.save(path)
        shown[name] = Posterior.load(path)
    return shown


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


class Page(HTMLParser):
    """Rows of cells and items of lists; fails on what is not closed, and on what may not stand."""

    VOID = {"br", "hr", "img"}

    def __init__(self, source):
        super().__init__()
        self.open, self.rows, self.warnings, self.attributes = [], [], [], []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag not in {"script", "link", "iframe", "object"} | self.VOID
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        self.open.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "li" and self.open.count("li") == 1:
            self.warnings.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        elif "li" in self.open:
            self.warnings[-1] += data


def page(shown):
    return Page(shown._repr_html_())


# Values


def test_equal_values_are_pooled_the_largest_first():
    rows = page(posterior(["x", "y", "y", "z"], [0.4, 0.35, 0.25, 0.0])).rows
    assert rows == [["probability", "value"], ["60.0%", "y"], ["40.0%", "x"]]


def test_bars_are_as_long_as_the_probabilities():
    shown = page(posterior(["x", "y"], [1, 3]))
    styles = [attrs["style"] for _, attrs in shown.attributes if attrs.get("class") == "bar"]
    assert styles == ["width: 75.0%", "width: 25.0%"]


def test_of_many_values_the_first_are_shown():
    n = ROWS + 5
    html = posterior([f"v{i}" for i in range(n)], np.arange(n, 0, -1.0))._repr_html_()
    assert len(Page(html).rows) == 1 + ROWS
    assert f"… and 5 more, {15 / (n * (n + 1) / 2):.1%} together" in html
    assert "more" not in posterior(["v"] * n)._repr_html_()


def test_dicts_of_the_same_keys_have_columns():
    values = [{"a": 1, "<k>": "x"}, {"<k>": "y", "a": [2]}]
    rows = page(posterior(values, [3, 1])).rows
    assert rows == [["probability", "a", "<k>"], ["75.0%", "1", "x"], ["25.0%", "[2]", "y"]]
    rows = page(posterior([{"a": 1}, {"b": 1}], [3, 1])).rows
    assert rows == [["probability", "value"], ["75.0%", "{'a': 1}"], ["25.0%", "{'b': 1}"]]
    assert page(posterior([{"a": 1}, "text"])).rows[0] == ["probability", "value"]
    assert page(posterior([{}])).rows[1] == ["100%", "{}"]


def test_the_keys_of_values_that_died_do_not_count():
    assert page(posterior([{"a": 1}, None], [1, 0])).rows[0] == ["probability", "a"]


HOSTILE = [
    "<script>alert(1)</script>",
    "\" onload='x' &amp;",
    "שלום \u202e<b>",
    "日本語\n\tआ",
    "nul\x00 bell\x07",
    "half \ud83d",
    "</style></div>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_wrote_is_escaped(text):
    seen = text.replace("\x00", "\\x00").replace("\x07", "\\x07").replace("\ud83d", "\\ud83d")
    shown = page(posterior([{text: text}], deaths=[Death(0, text, 1, text)]))
    assert shown.rows == [["probability", seen], ["100%", seen]]
    assert seen in shown.warnings[-1]
    assert page(posterior([text])).rows[1][1] == seen
    posterior([text])._repr_html_().encode("utf-8")


def test_the_direction_of_a_text_is_its_own():
    shown = page(posterior(["שלום"]))
    cells = [attrs for tag, attrs in shown.attributes if tag == "td" and "class" not in attrs]
    assert cells == [{"dir": "auto"}]


def test_long_texts_are_folded():
    assert "<details>" not in posterior(["x" * FOLD])._repr_html_()
    assert "<details>" in posterior(["x" * (FOLD + 1)])._repr_html_()
    assert "<details>" in posterior(["a\nb\nc\nd\ne"])._repr_html_()
    text = "<i>" * MOST
    html = posterior([text])._repr_html_()
    assert Page(html).rows[1][1].count("<i>") > MOST // 3
    assert f"… and {len(text) - MOST:,} more characters" in html


def test_an_empty_text_can_be_seen():
    assert page(posterior(["", "  "], [2, 1])).rows[1:] == [["66.7%", "''"], ["33.3%", "'  '"]]


def test_small_and_large_probabilities():
    rows = page(posterior(["x", "y"], [1, 1e-6])).rows
    assert [row[0] for row in rows[1:]] == [">99.9%", "<0.1%"]


# Facts and warnings


def test_facts():
    rounds = [record(0, (0, 0)), record(1)]
    html = posterior(["x", "y"], [1, 3], rounds=rounds)._repr_html_()
    for name, value in [
        ("log evidence", "0.693"),
        ("ESS", "1.6 of 2"),
        ("unique roots", "2 of 2"),
        ("rounds", "1"),
        ("resamplings", "0"),
        ("tokens/s", "2"),
    ]:
        assert f'<span class="muted">{name}</span> <b>{value}</b>' in html
    assert "tokens/s" not in posterior(["x"])._repr_html_()


def test_a_sound_posterior_has_no_warnings():
    assert page(posterior(["x", "y"])).warnings == []
    assert page(posterior(["x"])).warnings == []


def test_one_root():
    assert page(posterior(["x", "y"], roots=[1, 1])).warnings == ["one root holds all particles"]
    assert page(posterior(["x", "y"], roots=[1, 0])).warnings == []
    lost = page(posterior(["x", None], [1, 0], roots=[1, 0])).warnings
    assert lost == ["one root holds all particles"]


def test_a_low_ess():
    weights = [1.0] + [1e-9] * 19
    assert page(posterior(["x"] * 20, weights)).warnings == [
        "the ESS is 1.0, below 10% of 20 particles"
    ]
    assert page(posterior(["x"] * 10, weights[:10])).warnings == []


def test_cut_texts():
    cut = posterior(["x"] * 4, [1, 2, 3, 2], truncated=[True, False, False, True])
    assert page(cut).warnings == ["37.5% of the weight was cut at max_tokens (2 of 4 particles)"]
    dead = posterior(["x", "y", None], [1, 1, 0], truncated=[False, False, True])
    assert page(dead).warnings == []


def test_deaths():
    deaths = [Death(i, f"cause {i % 5}", 1 + i % 5, f"text {i}") for i in range(10)]
    (warning,) = page(posterior(["x", "y"], deaths=deaths)).warnings
    assert warning == (
        "30 particles died on the way10 of cause 4 one after 'text 4'8 of cause 3 one after "
        "'text 3'6 of cause 2 one after 'text 2'6 of 2 other causes"
    )
    (warning,) = page(posterior(["x", "y"], deaths=[Death(0, "me", 1, "")])).warnings
    assert warning == "1 particle died on the way1 of me"


def test_a_dead_population():
    shown = page(DEAD)
    assert shown.rows == []
    assert shown.warnings == [
        "every particle died: there is no posterior",
        "3 particles died on the way2 of condition at die:3 one after 'a<b'1 of factor at die:4",
    ]
    assert "<b>-inf</b>" in DEAD._repr_html_()


@pytest.mark.parametrize("name", ["1", "16", "256", "dead"])
def test_runs_are_shown(runs, name):
    shown = page(runs[name])
    assert len(shown.rows) == 0 if name == "dead" else 2 <= len(shown.rows) <= 1 + ROWS
    assert ("every particle died" in "".join(shown.warnings)) == (name == "dead")


# Plans


@smc_program
def inner():
    return gen(regex("<b>[a-z]+"), max_tokens=4)


@smc_program
def outer(potential):
    for _ in range(2):
        gen(lm**2, reward(len), reward(len, every="block"), potential)
    return inner()


def test_a_plan_shows_what_explain_says():
    plan = outer.plan()
    html = plan._repr_html_()
    shown = Page(html)
    tags = [attrs["class"] for _, attrs in shown.attributes if "tag" in attrs.get("class", "")]
    assert tags == ["tag score", "tag end", "tag block", "tag later", "tag mask", "tag score"]
    text = " ".join(plan.explain().split())
    for row in shown.rows:
        assert " ".join(filter(None, row)) in text
    numbers = [attrs for _, attrs in shown.attributes if attrs.get("class") == "line"]
    assert len(numbers) == 4  # for, gen, the call, its gen
    assert html.count("<ul>") == 3
    assert "&lt;b&gt;" in html and "<b>" not in html


def test_a_program_shows_its_plan():
    assert inner._repr_html_() == inner.plan()._repr_html_()


def test_a_program_without_source():
    names = {"smc_program": smc_program}
    exec("@smc_program\nasync def unread():\n    pass", names)
    assert "its source cannot be read" in names["unread"]._repr_html_()


# Plots


def test_descent_of_two_slots(plt):
    # Slot 1 takes over after the first round; a sync then swaps the slots, and draws no tokens.
    rounds = [
        record(0, (1, 1), drawn=(2, 3)),
        record(1, (1, 0), drawn=(0, 0)),
        record(2, drawn=(1, 0)),
    ]
    ax = posterior(["x", None], [1, 0], roots=[1, 1], rounds=rounds).plot_genealogy()
    died, lasting = ax.collections
    lines = [[tuple(point) for point in line] for line in lasting.get_segments()]
    assert lines == [[(0, 1), (1.5, 1), (3, 1)], [(3, 1), (3.5, 0), (4, 0)]]
    assert len(died.get_segments()) == 2
    assert died.get_alpha() < lasting.get_alpha() == 1
    assert len({tuple(colour[:3]) for colour in lasting.get_edgecolors()}) == 1
    assert [line.get_xdata()[0] for line in ax.lines] == [3, 3]
    assert ax.get_xlim() == (0, 4)


def test_roots_have_colours_of_their_own(plt):
    ax = posterior(["x", "y"], rounds=[record(0)]).plot_genealogy()
    _, lasting = ax.collections
    assert len({tuple(colour) for colour in lasting.get_edgecolors()}) == 2


def test_a_resampling_at_the_end_is_drawn(plt):
    rounds = [record(0, (0, 0), drawn=(2, 2))]
    ax = posterior(["x", "x"], roots=[0, 0], rounds=rounds).plot_genealogy()
    assert ax.get_xlim() == (0, 3)
    assert len(ax.collections[1].get_segments()) == 3


def test_without_rounds(plt):
    shown = posterior(["x", "y"])
    assert len(shown.plot_genealogy().collections[1].get_segments()) == 2
    for ax in (shown.plot_ess(), shown.plot_timing()):
        assert "no rounds" in ax.texts[0].get_text()


@pytest.mark.parametrize("name", ["1", "16", "256", "dead"])
def test_the_genealogy_of_runs(runs, plt, name):
    shown = runs[name]
    ax = shown.plot_genealogy()
    died, lasting = ax.collections
    n, last = len(shown.rounds[0].ancestors), ax.get_xlim()[1]
    segments = [*died.get_segments(), *lasting.get_segments()]
    assert len(segments) % n == 0
    ends = sorted(line[-1][1] for line in lasting.get_segments() if line[-1][0] == last)
    assert ends == [i for i, w in enumerate(shown.log_weights) if w > -np.inf]
    first = {line[0][1] for line in lasting.get_segments() if line[0][0] == 0}
    weights = shown.log_weights
    assert first == {r for r, w in zip(shown.roots, weights, strict=True) if w > -np.inf}
    assert ax.title.get_text() == ("every particle died: there is no posterior" * (not first))


@pytest.mark.parametrize("name", ["1", "16", "256", "dead"])
def test_ess_and_timing_of_runs(runs, plt, name):
    shown = runs[name]
    n = len(shown.rounds[0].ancestors)
    limit, ess, *marks = shown.plot_ess().lines
    assert list(limit.get_ydata()) == [n, n]
    assert list(ess.get_ydata()) == [record.ess for record in shown.rounds]
    resampled = [record.round for record in shown.rounds if record.resampled]
    assert [list(mark.get_xdata()) for mark in marks] == ([resampled] if resampled else [])

    bars = shown.plot_timing().patches
    phases = {phase for record in shown.rounds for phase in record.seconds}
    assert len(bars) == len(phases) * len(shown.rounds)
    total = sum(sum(record.seconds.values()) for record in shown.rounds)
    assert sum(bar.get_height() for bar in bars) == pytest.approx(total)


def test_phases_are_in_their_order(plt):
    rounds = [record(0), record(1, seconds={"other": 1.0, "draft": 2.0})]
    ax = posterior(["x", "y"], rounds=rounds).plot_timing()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["draft", "score", "host", "other"]
    assert [(bar.get_y(), bar.get_height()) for bar in ax.patches] == [
        *[(0, 0), (0, 2), (0, 1), (2, 0), (1, 0.5), (2, 0), (1.5, 0), (2, 1)]
    ]


@pytest.mark.parametrize("name", ["1", "16", "256"])
def test_weights_and_marginals_of_runs(runs, plt, name):
    shown = runs[name]
    heights = [bar.get_height() for bar in shown.plot_weights().patches]
    assert heights == sorted(shown.weights, reverse=True)
    marginal = shown.marginal()
    widths = [bar.get_width() for bar in shown.plot_marginal(top=3).patches]
    assert len(widths) == min(len(marginal), 4)
    assert widths[:3] == list(marginal.values())[:3]
    assert sum(widths) == pytest.approx(1)


def test_a_dead_population_is_said_to_be_dead(plt):
    for ax in (DEAD.plot_weights(), DEAD.plot_marginal("k"), posterior([]).plot_genealogy()):
        assert "every particle died" in ax.texts[0].get_text()


@pytest.mark.filterwarnings("error")
def test_labels_of_a_marginal(plt):
    values = ["$x_1$ costs $5", "a\nb", "", "中" * 30, "x" * 100, 7, "שלום"]
    ax = posterior([{"k": value} for value in values], range(7, 0, -1)).plot_marginal("k")
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels[:3] == ["$x_1$ costs $5", "a\\nb", "''"]
    escapes = labels[3].startswith("\\u4e2d") and labels[3].endswith("d…") and len(labels[3]) <= 40
    assert labels[3] == "中" * 30 or escapes  # by the fonts that are installed
    assert labels[4:] == ["x" * 39 + "…", "7", "שלום"]
    ax.figure.canvas.draw()


def test_the_other_values_share_a_bar(plt):
    shown = posterior(["x", "y", "z"], [3, 2, 1])
    ax = shown.plot_marginal(top=2)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["x", "y", "1 other"]
    assert [text.get_text() for text in ax.texts] == ["50.0%", "33.3%", "16.7%"]
    with pytest.raises(ValueError, match="at least one"):
        shown.plot_marginal(top=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["1", "16", "256", "dead"])
@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_of_every_run_is_drawn(runs, plt, plot, name):
    figure, ax = plt.subplots()
    assert getattr(runs[name], plot)(ax=ax) is ax
    figure.canvas.draw()


def test_a_figure_of_its_own_is_transparent(plt):
    ax = posterior(["x"]).plot_weights()
    assert ax.figure.patch.get_alpha() == ax.patch.get_alpha() == 0
    theirs = plt.subplots()[1]
    posterior(["x"]).plot_weights(ax=theirs)
    assert theirs.figure.patch.get_alpha() is None


# Imports


@pytest.mark.parametrize("plot", PLOTS)
def test_without_matplotlib(monkeypatch, plot):
    found = builtins.__import__

    def missing(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError("No module named 'matplotlib'")
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r'pip install "smcprog\[notebook\]"'):
        getattr(posterior(["x"]), plot)()


def test_nothing_is_imported_before_it_is_shown():
    heavy = "('matplotlib', 'smcprog.notebook')"
    code = f"import sys, smcprog; print([m for m in sys.modules if m.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
