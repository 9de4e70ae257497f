"""The page of every system: small, whole, hostile texts escaped, legible on any screen."""

import builtins
import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from privbo_plugins.drawing import BAND, POINTS, Picture, Series
from privbo_plugins.page import Report, Section, Table
from privbo_plugins.plots import (
    FederationHistory,
    History,
    RewardHistory,
    Round,
    RowHistory,
    picture_of_scores,
    picture_of_values,
)
from privbo_plugins.privacy.guarantee import (
    FederationGuarantee,
    Guarantee,
    LocalGuarantee,
    OutsourcedGuarantee,
)
from privbo_plugins.reports import federation_report, records_report, reward_report, rows_report

pytest.importorskip("matplotlib", reason="matplotlib is not installed (the viz extra)")

HOSTILE = (
    "</td></svg><script>alert(1)</script><img src=x onerror=alert(1)>$\\frac{$ _x 'q' \"q\" &amp;"
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""A browser lets such a page load nothing, run nothing and send nothing."""

LIMIT = 480_000
"""Bytes of a page."""


def records(n, d, name):
    rng = np.random.default_rng(0)
    names = [f"{name} {j}" for j in range(d)]
    path = rng.random((max(n // 4, 1), d))
    told = Guarantee(
        True, "Gaussian", "replace-one", "records", 900, 1.0, 0.9, n, parameters={name: name}
    )
    history = History(
        values=[
            ("start" if i < n // 4 else "step", i, float(v)) for i, v in enumerate(rng.random(n))
        ],
        value_noise=0.1,
        names=names,
        path=path,
        centres=[dict(zip(names, x.tolist(), strict=True)) for x in path],
        spent=np.sqrt(np.arange(1, n + 1) / n).tolist(),
        budget=1.0,
        places=rng.random((n, d)),
        aim=np.full(d, 0.5),
        scores={f"{name} {own}": rng.random((n, 2)).tolist() for own in "ab"},
        correlations={f"{name} b": [math.nan, *rng.uniform(-1, 1, n - 1)] if n else []},
        front=[(True, False, None)[i % 3] for i in range(n)],
        undefined={f"{name} {own}": [i % 7 == 0 for i in range(n)] for own in "ab"},
        front_of=[name],
        trials=[str(i) for i in range(n)],
        last={name: (0.5, 0.125)},
    )
    return records_report(name, told, history, dict.fromkeys(names, 1 / 3))


def rewards(n, d, name, summary=None):
    rng = np.random.default_rng(0)
    names = [f"{name} {j}" for j in range(d)]
    path = rng.integers(0, 3, (n, d)) / 2
    points = [dict(zip(names, x.tolist(), strict=True)) for x in path]
    told = LocalGuarantee(True, name, 1.0, 0.0, n, 1, 1.0, 0.0, False)
    history = RewardHistory(rng.random(n).tolist(), 2.16, points, names, path)
    return reward_report(name, told, history, points[0], summary)


def shared_work(n, d, name):
    epochs = [
        {"epoch": e, "length": n // 20, "inducing": 7, "share": 0.8**e, "components": 1,
         "per_agent": 10.0 * e, "up": 30.0 * e, "down": 8.0 * e}
        for e in range(1, 6)
    ]  # fmt: skip
    return rewards(n, d, name, {"agents": 4, "epoch": 6, "epochs": epochs})


def rows(n, d, name):
    rng = np.random.default_rng(0)
    told = OutsourcedGuarantee(
        True, "gaussian", 2.0, 1e-5, 0.5, 5000, parameters={"d": d}, n_answers=n
    )
    history = RowHistory(
        list(range(n)), rng.random(n).tolist(), True, 0.2, rng.random(n).tolist(), [0.1] * n
    )
    certificate = {"columns": [f"{name} {j}" for j in range(d)], "digest": "0" * 64}
    return rows_report(name, told, history, certificate, {name: 1})


def federation(n, d, name):
    told = FederationGuarantee(True, 29, 3.9, 0.02, 3.9, n, n, parameters={name: d})
    rounds = [Round(t, 1.0 / t + 0.1, 0.1) for t in range(1, n + 1)]
    spent = [(t, math.sqrt(t)) for t in range(1, n + 1)]
    return federation_report(name, told, FederationHistory(rounds, n, spent))


SYSTEMS = {
    "DP-GIBO": records, "rewards": rewards, "DUETS": shared_work, "PO-GP-UCB": rows,
    "DP-FTS-DE": federation,
}  # fmt: skip


@pytest.fixture(params=SYSTEMS)
def make(request):
    return SYSTEMS[request.param]


def page_of(picture):
    told = Guarantee(True, "m", "n", "p", 9, 1.0, 0.5, 3)
    return Report("R", told, [Section("Picture", picture)]).to_html()


class _Read(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize(("n", "d"), [(12, 2), (3000, 30)])
def test_a_page_is_small_however_long_the_run(make, n, d):
    page = make(n, d, "x").to_html()
    assert len(page.encode()) <= LIMIT
    assert page.count("<svg ") == page.count("</svg>") >= 1
    assert ("is drawn, and the last" in page) == (n > 12)


def test_a_page_stands_alone_is_the_same_again_and_says_how_each_picture_is_read(make):
    page = make(40, 3, "x").to_html()
    assert not re.search(r"https?:|@import|url\((?!#)|//", page.replace("xmlns", ""))
    assert _POLICY in page
    for tag, given in _Read(page).tags:
        assert tag not in {"script", "link", "iframe", "img", "object", "embed", "base"}
        assert all(value is None or value.startswith("#") for name, value in given.items()
                   if name in {"href", "src"})  # fmt: skip
    said = re.findall(r"<figcaption><strong>.*?</strong> (.*?)</figcaption>", page)
    assert len(said) == page.count("<svg ")
    assert all(len(text) > 30 and text.endswith(".") for text in said)
    assert page.index('id="guarantee"') < page.index("<figure>")
    assert make(40, 3, "x").to_html() == page


def test_hostile_texts_stay_texts(make):
    page = make(40, 3, HOSTILE).to_html()
    read = _Read(page)
    assert not {"script", "img"} & {tag for tag, _ in read.tags}
    assert not [name for _, given in read.tags for name in given if name.startswith("on")]
    assert HOSTILE not in page
    assert page.count("&lt;script&gt;alert(1)") >= 3


def test_pictures_are_whole_and_no_name_is_given_twice(make):
    page = make(40, 3, HOSTILE).to_html()
    pictures = re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL)
    for picture in pictures:
        root = ET.fromstring(picture)
        assert root.get("role") == "img"
        assert root.get("aria-label")
    ids = [given["id"] for _, given in _Read(page).tags if "id" in given]
    assert len(ids) == len(set(ids))
    used = {ref for ref in re.findall(r"(?:href=\"#|url\(#)([^\")]+)", page)}
    assert used <= set(ids)


def test_the_points_of_a_picture_stand_in_numbers_beside_it():
    series = Series("a", [1, 2], [0.1 + 0.2, math.nan], texts=["one", "<two>"])
    page = page_of(Picture("t", "r.", "x", "y", [series]))
    assert "<td>a</td><td>1</td><td>0.30000000000000004</td><td>one</td>" in page
    assert "<td>nan</td><td>&lt;two&gt;</td>" in page


def test_each_score_stands_in_numbers_with_its_noise_and_what_is_recommended_is_marked():
    told = {"a": [(0.5, 0.125), (0.25, 0.0625)], "b": [(0.75, 0.03125), (0.375, 0.015625)]}
    history = History(
        [("start", 0, 0.5), ("start", 0, 0.25)], 0.1, ["x"], np.zeros((1, 1)), [{"x": 0.0}], [1.0],
        1.0, np.array([[0.25], [0.5]]), np.array([0.5]), scores=told, front=[True, False],
        correlations={"b": [0.5, -0.25]}, trials=["0", "3"], front_of=["a", "c"],
        undefined={"a": [False, False], "b": [False, False]},
    )  # fmt: skip
    page = re.sub("</?data[^>]*>", "", page_of(picture_of_scores(history, "b")))
    assert '<th scope="col">noise of a (sd)</th>' in page
    assert "On the front of a and c none" in page
    assert '<th scope="col">correlation of both noises</th>' in page
    assert page.count("39 % of") == 3  # caption, its label, legend
    noise = "<td>0.0625</td><td>0.01562</td><td>-0.25</td>"
    cells = f"<td>0.25</td><td>0.375</td>{noise}<td>trial 3</td>"
    for name, row in (("other trials", cells), ("recommended", cells), ("front", "<td>0.5</td>")):
        assert f"<tr><td>{name}</td>{row}" in page
    assert "<td>0.5</td><td>0.125</td>" in page_of(picture_of_values(history))
    drawn = picture_of_scores(history, "b").to_dict()["data"]
    outlined = [one["legendgroup"] for one in drawn if one["mode"] == "lines"]
    assert outlined == ["front", "recommended"]
    assert {one["name"]: one["marker"] for one in drawn if "marker" in one} == {
        "other trials": {"opacity": 0.45}, "recommended": {"symbol": "circle-open", "size": 13},
    }  # fmt: skip
    unknown = picture_of_scores(replace(history, undefined={"a": [False] * 2, "b": [1, 0]}), "b")
    first = next(one for one in unknown.series if one.name == "a score is undefined")
    assert (first.texts, first.outlined) == (("trial 0",), False)


@pytest.mark.parametrize("tilt", [-1.0, -0.4, 0.0, 0.9, math.nan])
def test_an_ellipse_is_a_contour_of_the_noise_that_holds_39_percent_of_its_draws(tilt):
    """Of 100,000 draws, 1,000 fewer or more with probability < 10^-10."""
    told = Series("a", [0.5, 2.0], [0.25, 3.0], POINTS, [0.1, 1.0], [0.2, 1.0], [tilt, math.nan])
    picture = Picture("t", "r.", "x", "y", [told])
    outline, points = json.loads(json.dumps(picture.to_dict(), allow_nan=False))["data"]
    noise = {"sd_x": [0.2, 1.0], "sd_y": [0.1, 1.0], "correlation": [None, None]}
    assert outline["y"][-34:] == [None] * 34  # of a release without it no ellipse is known
    assert "<svg" in picture.to_svg()
    if math.isfinite(tilt):
        noise["correlation"][0] = tilt
        x, y = (np.array(outline[key][:33]) - at for key, at in (("x", 0.5), ("y", 0.25)))
        S = np.array([[0.04, tilt * 0.02], [tilt * 0.02, 0.01]])
        inverse = np.linalg.pinv(S)
        assert np.einsum("in,ij,jn->n", [x, y], inverse, [x, y]).max() == pytest.approx(
            1, abs=1e-3
        )
        assert (np.abs(x).max(), np.abs(y).max()) == pytest.approx((0.2, 0.1), rel=5e-3)
    if abs(tilt) < 1:
        draws = np.random.default_rng(0).multivariate_normal([0, 0], S, 100_000).T
        inside = np.einsum("in,ij,jn->n", draws, inverse, draws) < 1
        assert inside.mean() == pytest.approx(0.3935, abs=0.01)
    assert points["meta"] == noise


AXES = [
    ([0.1225, 0.1275], False, {"0.123", "0.125", "0.127"}),
    ([1.0, 0.5, 1e-3], True, {"0.001", "0.1", "1"}),
    ([1.0, 0.5, 0.4], True, {"0.4", "1"}),
]


@pytest.mark.parametrize(("y", "log", "shown"), AXES)
def test_numbers_of_an_axis_are_plain_and_not_cut(y, log, shown):
    svg = Picture("t", "r.", "x", "y", [Series("a", [*range(len(y))], y)], log=log).to_svg()
    ticks = set(re.findall(r"<text [^>]*>([^<]*)</text>", svg))
    assert shown <= (ticks if log else {text.rstrip("0") for text in ticks})
    assert not [text for text in ticks if "$" in text]
    assert log or not re.search(r' (?:x|d)="[^"]*\d\.\d{3}', svg)


def test_a_long_series_keeps_its_last_point_and_says_that_it_was_thinned():
    x = list(range(5001))
    band = Series("", x, [1.0] * 5001, BAND, low=[0.0] * 5001)
    page = page_of(Picture("t", "r.", "x", "y", [Series("a", x, x), band]))
    assert "One point in 21 is drawn, and the last." in page
    shown = [int(i) for i in re.findall(r"<td>a</td><td>(\d+)</td>", page)]
    assert shown == [*range(0, 5001, 21), 5000]


def test_what_was_spent_is_never_printed_smaller_than_it_is():
    told = Guarantee(True, "m", "n", "p", 9, 1.0, 0.50000401234, 3)
    page = Report("R", told, []).to_html()
    assert "<td>mu spent</td><td>0.5001</td>" in page
    assert "<td>mu declared in all</td><td>1</td>" in page
    one = LocalGuarantee(True, "m", 1.0, 0.0, 3, 1, 1.0, 0.0, False)
    assert "<td>epsilon declared in all</td><td>no limit</td>" in Report("R", one, []).to_html()


def test_recommendations_have_four_digits_and_are_there_in_full():
    page = Report("R", records(4, 1, "x").guarantee, [
        Section("Recommendation", Table((), [("C", 1 / 3), ("n", 12345678), ("k", "rbf")], 4)),
    ]).to_html()  # fmt: skip
    assert f'<data value="{1 / 3!r}">0.3333</data>' in page
    assert "<td>12345678</td>" in page
    assert "<td>rbf</td>" in page


def _worth(report):
    (table,) = [s.content for s in report.sections if s.heading == "What it is worth"]
    return dict(table.rows)


@pytest.mark.parametrize("n", [1, 100])
def test_releases_at_one_place_are_worth_their_mean_and_what_their_noise_leaves(n):
    """Of one value nothing but the noise is known: 1.96 sigma each way."""
    y = 0.4 + 0.1 * np.random.default_rng(1).standard_normal(n)
    place = np.full((n, 1), 0.5)
    history = History([("start", i, float(v)) for i, v in enumerate(y)], 0.1, ["x"], place,
                      [{"x": 0.5}] * n, [1.0], 1.0, places=place, aim=place[0])  # fmt: skip
    told = Guarantee(True, "m", "n", "p", 900, 1.0, 1.0, n)
    found = _worth(records_report("R", told, history, {"x": 0.5}))
    low, high = map(float, found["95 % interval"].split(" to "))
    assert float(found["estimate"]) == pytest.approx(float(np.mean(y)), abs=1e-4)
    assert (high - low) / 2 == pytest.approx(1.96 * 0.1 / math.sqrt(n), rel=0.02)


def test_of_rewards_the_worth_is_the_mean_of_what_was_asked_there():
    points = [{"arm": 1}, {"arm": 2}, {"arm": 1}]
    history = RewardHistory([1.0, 9.0, 2.0], 2.0, points, ["arm"], np.zeros((3, 1)))
    told = LocalGuarantee(True, "m", 1.0, 0.0, 3, 1, 1.0, 0.0, False)
    found = _worth(reward_report("R", told, history, {"arm": 1, "constant": "c"}))
    assert found["estimate"] == "1.5"
    reach = 1.96 * 2.0 / math.sqrt(2)
    assert found["95 % interval"] == f"{1.5 - reach:.4g} to {1.5 + reach:.4g}"
    never = reward_report("R", told, history, {"arm": 3}).to_html()
    assert "Nobody was asked for this very setting" in never


def test_an_unprotected_run_has_no_worth_and_no_figures():
    history = History([("start", 0, 0.25)], 0.0, ["x"], np.zeros((1, 1)), [{"x": 0.0}], [1.0],
                      math.inf, places=np.zeros((1, 1)), aim=np.zeros(1))  # fmt: skip
    told = Guarantee(False, "m", "n", "p", 9, math.inf, 0.0, 0, reasons=("a reason",))
    page = records_report("R", told, history, None).to_html()
    assert "What it is worth" not in page
    assert 'class="claim not-protected' in page
    assert "NOT PROTECTED. No privacy guarantee holds for this run: a reason" in page
    assert "<li>a reason</li>" in page


def test_texts_from_outside_are_no_links_in_figures_of_plotly(make):
    """Plotly makes links and images of what looks like them in names and texts."""
    go = pytest.importorskip("plotly.graph_objects", reason="plotly is not installed (dev extra)")
    link = "<a href='http://x.example'>here</a></script>"
    figures = [
        go.Figure(section.content.to_dict())  # which refuses what plotly does not know
        for section in make(12, 2, link).sections
        if isinstance(section.content, Picture)
    ]
    texts = [
        str(t) for f in figures for trace in f.data for t in (trace.name, *(trace.text or ()))
    ]
    texts += [str(f.layout[k].title) for f in figures for k in ("xaxis", "yaxis")]
    texts += [str(f.layout.title.text) for f in figures]
    assert texts
    assert not [text for text in texts if "<" in text]


def test_a_figure_of_plotly_has_every_point_and_no_infinities():
    x = list(range(5001))
    band = Series("", x, [1.0] * 5001, BAND, low=[0.0] * 5001)
    told = Picture("t", "r.", "x", "y", [Series("a", x, [math.nan, *x[1:]]), band]).to_dict()
    shown = json.loads(json.dumps(told, allow_nan=False))
    assert [len(trace["x"]) for trace in shown["data"]] == [5001] * 3
    assert shown["data"][0]["y"][:2] == [None, 1.0]


def test_without_matplotlib_a_report_says_what_to_install(monkeypatch):
    original = builtins.__import__

    def missing(name, *args, **more):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return original(name, *args, **more)

    report = records(12, 2, "x")
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'privbo-plugins\[viz\]'"):
        report.to_html()


# In a browser -----------------------------------------------------------------------------------

_NAMES = ("chromium", "chromium-browser", "google-chrome")

BROWSER = next(filter(None, map(shutil.which, _NAMES)), "")

_PROBE = (
    "<script>addEventListener('load', () => {"
    "document.querySelectorAll('details').forEach(part => part.open = true);"
    "const body = getComputedStyle(document.body);"
    "parent.postMessage([innerWidth, document.documentElement.scrollWidth,"
    "body.backgroundColor, body.color].join('|'), '*')})</script>"
)

_WINDOW = (
    "<!doctype html><meta name='color-scheme' content='light dark'><title></title><script>"
    "addEventListener('message', told => { document.title = told.data })</script>"
    "<iframe src='page.html' width='WIDTH' height='900' style='border:0'></iframe>"
)
"""A browser without a head has no window of less than 500 points, but frames of any width."""


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
@pytest.mark.parametrize(
    ("system", "width", "scheme"), [("DUETS", 390, "dark"), ("PO-GP-UCB", 1280, "light")]
)
def test_a_page_fits_its_window_and_follows_the_scheme(system, width, scheme, tmp_path):
    """Nothing reaches beyond the window, also of names of 200 letters; the ink is on the paper."""
    path, window = tmp_path / "page.html", tmp_path / "window.html"
    window.write_text(_WINDOW.replace("WIDTH", str(width)))
    page = SYSTEMS[system](40, 3, "w" * 200).to_html()
    path.write_text(page.replace(_POLICY, "").replace("</head>", f"{_PROBE}</head>"))
    done = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={tmp_path}/profile", "--window-size=1400,900",
         f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
         "--virtual-time-budget=5000", window.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found = re.search(r"<title>([^<]*)</title>", done.stdout)
    inner, content, paper, ink = found[1].split("|")
    assert int(content) <= int(inner) == width
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (paper, ink)]
    assert (brightness[0] < brightness[1]) == (scheme == "dark")
    assert abs(brightness[0] - brightness[1]) > 400
