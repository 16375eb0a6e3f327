"""The interactive page in real browsers: what it draws, filters, zooms and sorts, and that it does nothing else.

`make browser` runs these in Chromium and Firefox, whichever are there.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from bertlab.studies.explore import explore_page
from bertlab.studies.measurements import load
from tests.studies.conftest import objectives_study, write_study

api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed here; `make browser` installs it")

HOSTILE = '</script><img src=x onerror="document.title=1">\u2028'
SAY_VIOLATIONS = "addEventListener('securitypolicyviolation', (event) => console.error('violates', event.violatedDirective))"
LOSS, SCORE = "curve/ltr/loss", "result/finetune/package/test/accuracy"


def executable(kind):
    """The browser that Playwright installed, or else a Chromium of this machine; None without one."""
    if Path(kind.executable_path).exists():
        return kind.executable_path
    return (os.environ.get("CHROMIUM") or shutil.which("chromium")) if kind.name == "chromium" else None


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def browser(request):
    with api.sync_playwright() as playwright:
        kind = getattr(playwright, request.param)
        if (path := executable(kind)) is None:
            pytest.skip(f"no {request.param} here; `.venv-browser/bin/playwright install {request.param}` brings one")
        as_root = request.param == "chromium" and os.geteuid() == 0  # its sandbox refuses root
        with kind.launch(executable_path=path, args=["--no-sandbox"] if as_root else []) as opened:
            yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of a study with two axes and two seeds; one label is hostile."""
    study = objectives_study()
    axes = {
        "objective": study.axes["objective"],
        "size": {name: {"model.size": name} for name in ("tiny", "mini")},
        "seed": [1, 2],
    }
    directory = write_study(tmp_path_factory.mktemp("study"), dataclasses.replace(study, axes=axes, title=HOSTILE))
    described = json.loads((directory / "study.json").read_text())
    for run in described["runs"]:
        run["labels"]["objective"] = run["labels"]["objective"].replace("MLM+NSP", HOSTILE)
    (directory / "study.json").write_text(json.dumps(described))
    path = directory / "explore.html"
    path.write_text(explore_page(load(directory)), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser, file):
    """(a fragment and a context's options): the page opened so; afterwards nothing may have gone wrong in any of them."""
    contexts, wrong = [], []

    def opened(fragment="", **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 1000}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url.split("#")[0] not in allowed else None)
        page.add_init_script(SAY_VIOLATIONS)
        page.goto(f"{file.as_uri()}#{fragment}")
        return page

    allowed = (file.as_uri(), "data:,")
    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def data_of(page):
    return json.loads(page.locator("#data").text_content())


def lines(page):
    """The `d` of each mean's line."""
    return page.locator("#chart path.line").evaluate_all("all => all.map((of) => of.getAttribute('d'))")


def ticks(page):
    return page.locator("#chart .tick").all_text_contents()


def shown(page):
    """The names in the first column of the table."""
    return page.locator("#table tbody th").all_text_contents()


def state(page):
    return dict(part.split("=") for part in page.evaluate("location.hash.slice(1)").split("&"))


def drag(page, start, end):
    """Drags from one place of the chart to another, in shares of its width and height."""
    box = page.locator("#chart svg").bounding_box()
    at = lambda share: (box["x"] + share[0] * box["width"], box["y"] + share[1] * box["height"])
    page.mouse.move(*at(start))
    page.mouse.down()
    page.mouse.move(*at(end), steps=4)
    page.mouse.up()


def test_a_violation_and_an_error_would_be_seen(browser, file):
    context = browser.new_context()
    page, seen = context.new_page(), []
    page.on("console", lambda message: seen.append(message.text) if message.type == "error" else None)
    page.add_init_script(SAY_VIOLATIONS)
    page.goto(file.as_uri())
    page.evaluate("document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.invalid/x'}))")
    attribute = "document.body.setAttribute('onclick', 'document.title = 1'); document.body.click()"
    page.evaluate(f"try {{ {attribute} }} catch (error) {{ console.error(error) }}")
    page.wait_for_timeout(200)
    assert "violates img-src" in seen and page.title() != "1"
    context.close()


def test_it_draws_every_variant_with_the_measure_and_reads_out_its_mean(visit):
    page = visit(f"y={LOSS}&x=flops")
    data = data_of(page)
    [measure] = [measure for measure in data["measures"] if measure["id"] == LOSS]
    assert len(lines(page)) == len(measure["curves"]) == 4
    assert page.locator("#legend li").all_text_contents() == [data["series"][of["series"]]["name"] for of in measure["curves"]]
    page.focus("#chart")
    page.keyboard.press("ArrowRight")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    first = measure["curves"][0]
    said = page.inner_text("#readout")
    assert said.startswith(data["series"][first["series"]]["name"])
    assert f"{first['mean'][3]:.3f} ± {first['sd'][3]:.3f}" in said
    assert f"95 % interval {first['low'][3]:.3f} to {first['high'][3]:.3f}" in said
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#readout").startswith(data["series"][measure["curves"][1]["series"]]["name"])
    marker = page.locator("#chart .marker").last.bounding_box()
    page.mouse.move(marker["x"] + marker["width"] / 2, marker["y"] + marker["height"] / 2)
    last = measure["curves"][-1]
    assert f"{last['mean'][-1]:.3f} ± " in page.inner_text("#readout")


def test_variants_are_filtered_by_words_labels_and_boxes(visit):
    page = visit(f"y={SCORE}")
    everything = shown(page)
    assert len(everything) == 10 and f"{HOSTILE}, tiny" in everything
    page.fill("#search", "ltr mini")
    assert shown(page) == ["LTR, mini"] and page.locator("#chart .mark").count() == 1
    page.fill("#search", "")
    page.locator("#facets label", has_text="tiny").click()
    assert shown(page) == [name for name in everything if name.endswith("mini")]
    page.locator("#legend label", has_text="biLM").click()
    assert len(shown(page)) == page.locator("#chart .mark").count() == 4
    assert page.locator("#legend input:checked").count() == 4
    page.click("#none")
    assert shown(page) == [] and "Nothing to show" in page.text_content("#chart svg")
    page.click("#all")
    assert len(shown(page)) == 5


def test_seeds_are_drawn_on_demand_and_chosen_by_label(visit):
    page = visit(f"y={LOSS}")
    means, single = lines(page), page.locator("#chart path.single")
    assert single.count() == 0
    page.check("#seeds")
    assert single.count() == 8 and lines(page) == means
    page.locator("#facets label", has_text="2").click()
    assert single.count() == 4 and lines(page) == means, "means are over all seeds"
    page.select_option("#rows", "runs")
    assert len(shown(page)) == 10 and all("seed=1" in name for name in shown(page))


def test_axes_are_chosen_and_can_be_logarithmic(visit):
    page = visit(f"y={LOSS}")
    by_tokens = lines(page), ticks(page)
    page.select_option("#axis", "flops")
    assert "FLOPs" in page.inner_text("#heading") and any(text.endswith((" T", " G")) for text in ticks(page))
    page.select_option("#axis", "seconds")
    assert lines(page) != by_tokens[0]
    page.select_option("#axis", "tokens")
    assert (lines(page), ticks(page)) == by_tokens
    page.check("#log-x")
    assert lines(page) != by_tokens[0] and "log axis" in page.inner_text("#note"), "step 0 has no place"
    page.select_option("#axis", "step")
    assert ticks(page)[:4] == ["200", "300", "500", "1000"]
    page.select_option("#axis", "tokens")
    page.check("#log-y")
    page.uncheck("#log-x")
    assert lines(page) != by_tokens[0]
    page.uncheck("#log-y")
    assert (lines(page), ticks(page)) == by_tokens
    page.select_option("#spread", "none")
    assert page.locator("#chart path.band").count() == 0 and lines(page) != []


def test_scores_stand_in_rows_or_against_a_cost(visit):
    page = visit()
    page.select_option("#measure", label="package/accuracy (%)")
    assert state(page)["x"] == "variant" and page.locator("#chart .mark").count() == 10
    names = page.locator("#chart svg > text:has(title)").count()
    page.select_option("#axis", "seconds")
    assert names == 10 and page.locator("#chart svg > text:has(title)").count() == 0
    assert "time (min)" in page.text_content("#chart svg")


def test_dragging_zooms_and_is_reset(visit):
    page = visit(f"y={LOSS}")
    before = lines(page), ticks(page)
    assert page.locator("#reset").is_disabled()
    drag(page, (0.3, 0.3), (0.7, 0.8))
    assert ticks(page) != before[1] and "zoom" in state(page) and page.locator("#reset").is_enabled()
    drag(page, (0.4, 0.5), (0.8, 0.51))
    low, high = map(float, state(page)["zoom"].split("%2C")[:2])
    assert 0 < low < high
    page.click("#reset")
    assert (lines(page), ticks(page)) == before and "zoom" not in state(page)
    page.focus("#chart")
    page.keyboard.press("+")
    assert "zoom" in state(page)
    page.keyboard.press("Escape")
    assert (lines(page), ticks(page)) == before
    drag(page, (0.3, 0.3), (0.3, 0.3))
    assert "zoom" not in state(page), "a click is no zoom"


def test_a_view_is_shared_by_its_address(visit):
    page = visit(f"y={LOSS}")
    page.select_option("#axis", "seconds")
    page.check("#log-y")
    page.check("#seeds")
    page.locator("#facets label", has_text="mini").click()
    page.locator("#legend label", has_text=HOSTILE).or_(page.locator("#legend label", has_text="LTR")).first.click()
    page.fill("#columns", "code_spans")
    page.locator("#table thead button").nth(1).click()
    drag(page, (0.2, 0.2), (0.7, 0.9))
    looks = lambda of: (lines(of), ticks(of), shown(of), of.inner_text("#legend"), of.locator("#table thead").inner_text())
    other = visit(page.evaluate("location.hash.slice(1)"))
    assert looks(other) == looks(page) and state(other) == state(page)
    other.evaluate("location.hash = ''")
    other.wait_for_function("!location.hash.includes('zoom')")
    assert looks(other) == looks(visit())


def test_an_address_that_makes_no_sense_gives_the_page(visit):
    page = visit("y=nothing&x=__proto__&zoom=9,1,NaN&spread=x&rows=y&sort=z&off=nobody&only&without:size=large&%zz")
    assert page.locator("#legend li").count() > 0 and state(page)["x"] == "variant"


def test_the_page_opens_on_a_score_that_all_variants_have(visit):
    page = visit()
    assert page.inner_text("#heading") == "package/accuracy (%)" and page.locator("#chart .mark").count() == 10


def test_the_table_is_sorted_and_its_columns_are_chosen(visit):
    page = visit()
    column = lambda: page.locator("#table tbody tr").evaluate_all(
        "all => all.map((row) => parseFloat(row.cells[1].textContent))"
    )
    page.fill("#columns", "package accuracy test fine-tuning")
    heads = page.locator("#table thead th")
    assert heads.all_inner_texts() == ["variant", "package/accuracy (%)"]
    for order, least_first in (("ascending", True), ("descending", False)):
        heads.nth(1).locator("button").click()
        assert heads.nth(1).get_attribute("aria-sort") == order
        assert column() == sorted(column(), reverse=not least_first) and len(column()) == 10
        assert page.evaluate("document.activeElement.dataset.sort") == SCORE, "the keyboard stays there"
    heads.first.locator("button").click()
    assert shown(page) == sorted(shown(page), key=str.casefold) or page.locator("th[aria-sort]").count() == 1
    page.fill("#columns", "all")
    assert heads.count() > 20


def test_text_of_a_study_is_text(visit):
    page = visit()
    assert page.inner_text("h1") == HOSTILE.strip("\u2028") or HOSTILE.rstrip("\u2028") in page.inner_text("h1")
    assert page.locator("img").count() == 0 and HOSTILE.rstrip("\u2028") in page.inner_text("#legend")
    assert "explore" in page.title()


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(visit, width):
    for fragment in ("", f"y={SCORE}", f"y={SCORE}&x=tokens"):
        page = visit(fragment, viewport={"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#chart svg").bounding_box()["width"] <= width


def test_it_is_dark_where_the_reader_wants_that_and_light_on_paper(visit):
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)"
    assert visit(color_scheme="light").evaluate(brightness) > 700
    page = visit(color_scheme="dark")
    assert page.evaluate(brightness) < 150
    page.emulate_media(media="print")
    assert page.evaluate(brightness) > 700 and not page.locator("#controls").is_visible()
    assert page.locator("#chart svg").is_visible() and page.locator("#table").is_visible()


def test_all_controls_have_names_and_are_reached_by_keyboard(visit):
    page = visit(f"y={LOSS}")
    nameless = page.locator("select, input, button").evaluate_all(
        "all => all.filter((of) => !of.hidden && !of.labels?.length && !of.textContent.trim()).map((of) => of.outerHTML)"
    )
    assert nameless == []
    page.locator("#measure").focus()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"axis", "spread", "seeds", "log-x", "log-y", "chart", "search", "all", "none"} <= reached
