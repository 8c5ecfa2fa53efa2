#!/usr/bin/env python3
"""Drives the server's web page in a headless Chromium: a real kilnd, real compiles.

Usage: page_test.py --kilnd PROGRAM --kiln PROGRAM [--screenshots DIR]. Needs Python and Chromium only;
exits with 77, which ctest counts as skipped, where there is no Chromium.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import graphs  # noqa: E402
from cdp import Chromium  # noqa: E402

MARK = '"><img src=x onerror=window.hacked=1>'
HOSTILE = f"<img src=x onerror='window.hacked=1'>{MARK}"
OPTIONS = None
SKIPPED = 77


def find_chromium():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Server:
    def __init__(self, folder: str):
        self.process = subprocess.Popen(
            [OPTIONS.kilnd, "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", f"--data-dir={folder}/data",
             "--workers=2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        match = re.search(r"grpc ([^,]+), http ([^,]+),", line)
        if not match:
            raise RuntimeError(f"kilnd did not start: {line!r}")
        self.grpc, self.http = match[1], f"http://{match[2]}"
        self.folder = folder

    def compile(self, graph: bytes, name: str) -> int:
        path = f"{self.folder}/{name}.kgraph"
        with open(path, "wb") as file:
            file.write(graph)
        # No answer of an earlier server may stand in the way.
        environment = {**os.environ, "HOME": self.folder, "XDG_CONFIG_HOME": self.folder}
        return subprocess.run([OPTIONS.kiln, "compile", path, "--server", self.grpc, "--arch", "x86-64-v3"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment).returncode

    def get(self, path: str, method: str = "GET", headers: dict | None = None):
        """Status, headers, body."""
        request = urllib.request.Request(self.http + path, method=method, headers=headers or {},
                                         data=b"" if method == "POST" else None)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def stop(self) -> float:
        """How long it took, in seconds."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stdout.close()
        return time.monotonic() - start


# The ratio of WCAG between an element's text and what is behind it.
CONTRAST = """(selector) => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const shine = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let worst = 99, where = '';
  for (const element of document.querySelectorAll(selector)) {
    if (!element.textContent.trim() || !element.checkVisibility()) continue;
    let behind = element;
    while (behind && (parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const a = shine(parse(getComputedStyle(element).color));
    const b = shine(parse(getComputedStyle(behind || document.body).backgroundColor));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst) [worst, where] = [ratio, element.outerHTML.slice(0, 120)];
  }
  return [worst, where];
}"""


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Cleanups also run where this method fails half-way.
        cls.folder = tempfile.TemporaryDirectory(prefix="kiln-page-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.server = Server(cls.folder.name)
        cls.addClassCleanup(lambda: cls.server.process.poll() is None and cls.server.stop())
        cls.browser = cls.enterClassContext(Chromium(find_chromium()))
        cls.empty = cls.browser.new_page()
        cls.empty.open(cls.server.http + "/")
        cls.empty.wait("document.body.innerText.includes('Nothing has been compiled yet')", "the empty state")
        cls.shoot(cls.empty, "empty")
        for name, graph, code in (("hostile", graphs.attention_like(HOSTILE, 48, MARK), 0),
                                  ("plain", graphs.attention_like("attention", 64), 0),
                                  ("broken", graphs.unknown_operator("broken", "aten.<b>no</b>.default"), 4)):
            got = cls.server.compile(graph, name)
            if got != code:
                raise AssertionError(f"kiln compile of {name} ended with {got}, expected {code}")
        cls.server.compile(graphs.attention_like("attention", 64), "plain")  # a hit
        activity = json.loads(cls.server.get("/api/v1/activity")[2])
        cls.keys = {r["graph"]: r["key"] for r in activity["recent"]}

    @classmethod
    def shoot(cls, page, name: str):
        if OPTIONS.screenshots:
            os.makedirs(OPTIONS.screenshots, exist_ok=True)
            page.screenshot(f"{OPTIONS.screenshots}/{name}.png", whole=True)

    def setUp(self):
        self.page = self.browser.new_page()
        self.page.size(1280, 900)

    def open(self, path: str, wait: str, what: str):
        self.page.open(self.server.http + path)
        self.page.wait(wait, what)

    def open_compile(self, graph: str, tab: str, wait: str):
        self.open(f"/#/compiles/{self.keys[graph]}/{tab}", wait, f"the tab {tab}")

    def check_clean(self):
        self.assertEqual(self.page.problems, [])
        self.assertFalse(self.page.evaluate("'hacked' in window"))
        for url in self.page.requests:
            self.assertTrue(url.startswith(self.server.http) or url == "about:blank", url)

    def check_no_sideways_scroll(self):
        self.assertLessEqual(self.page.evaluate("document.documentElement.scrollWidth"),
                             self.page.evaluate("window.innerWidth"))

    ROWS = "document.querySelectorAll('#compiles tbody tr').length >= 3"

    def test_an_open_page_shows_new_compiles_by_itself(self):
        self.empty.call("Page.bringToFront")
        self.empty.wait(self.ROWS, "rows on the page that was opened first")
        self.assertEqual(self.empty.problems, [])
        figures = self.empty.evaluate("[...document.querySelectorAll('.tile')].map((t) => t.innerText)")
        self.assertIn("Compile latency", figures[2])
        self.assertIn("median of 2", figures[2])
        self.assertIn("median of 1", figures[1])
        self.assertIn("25.0", figures[0])  # a hit and three misses
        charts = self.empty.evaluate(
            "[...document.querySelectorAll('.chart svg')].map((s) => [s.getAttribute('aria-label'), s.querySelectorAll('.line, .dot, .bar').length])")
        self.assertEqual(len(charts), 4)
        for label, marks in charts:
            self.assertIn("last five minutes", label)
            self.assertGreater(marks, 0, label)

    def test_hostile_names_are_text(self):
        self.open("/", self.ROWS, "rows")
        names = self.page.evaluate("[...document.querySelectorAll('#compiles .name')].map((n) => n.textContent)")
        self.assertIn(HOSTILE, names)
        self.assertEqual(self.page.evaluate("document.querySelectorAll('main img, main b, main script').length"), 0)
        outcome = self.page.evaluate(
            "[...document.querySelectorAll('#compiles td[data-label=Outcome]')].map((c) => c.title).join()")
        self.assertIn("expected a qualified overload", outcome)
        self.open_compile(HOSTILE, "fusion", "!!document.querySelector('.node')")
        self.assertEqual(self.page.evaluate("document.querySelector('h1').textContent"), HOSTILE)
        for tab in ("kernels", "ir", "decisions"):
            self.open_compile(HOSTILE, tab, "!!document.querySelector('.code, td .mono')")
            self.assertIn("scores", self.page.evaluate("document.getElementById('inside').textContent"))
            self.assertEqual(self.page.evaluate("document.querySelectorAll('main img').length"), 0)
        self.check_clean()

    def test_a_compile_opens_to_timeline_fusion_kernels_ir_and_decisions(self):
        self.open("/", self.ROWS, "rows")
        self.page.evaluate("[...document.querySelectorAll('#compiles .name')].find((n) => n.textContent === 'attention').focus()")
        self.page.press("Enter")
        self.page.wait("document.querySelectorAll('.node').length >= 2", "the fusion picture")
        stages = self.page.evaluate("[...document.querySelectorAll('.tl-name')].map((n) => n.textContent)")
        for stage in ("plan", "fuse", "kernel lookup", "compile", "link"):
            self.assertIn(stage, stages)
        # Where every operator went is on the picture, and each decision's reason beside it.
        drawn = self.page.evaluate("[...document.querySelectorAll('.node')].map((n) => n.getAttribute('aria-label')).join('\\n')")
        for op in ("scores", "shifted", "positive", "weights", "mixed"):
            self.assertIn(op, drawn)
        self.assertGreater(self.page.evaluate("document.querySelectorAll('.edge').length"), 0)
        self.page.evaluate("document.querySelector('.node').focus()")
        self.page.press("Enter")
        self.page.wait("/Fused because|Kept apart because/.test(document.querySelector('.aside').innerText)", "reasons")
        self.assertRegex(self.page.evaluate("location.hash"), r"fusion\?step=\d+$")
        self.shoot(self.page, "fusion")
        # Operator -> kernel -> source -> assembly -> IR, by the page's own links.
        self.page.evaluate("[...document.querySelectorAll('.aside a')].find((a) => a.textContent.startsWith('Source')).click()")
        self.page.wait("document.querySelectorAll('.panes .code').length === 2", "source and assembly")
        source, assembly = self.page.evaluate("[...document.querySelectorAll('.panes .code')].map((c) => c.textContent)")
        symbol = re.search(r"int (kiln_\w+)\(", source)[1]
        self.assertIn(f"{symbol}:", assembly)
        self.assertRegex(assembly, r"\tret")
        self.page.evaluate("document.querySelectorAll('.panes .code')[0].querySelector('a.entry').click()")
        # A line of the source shows what it became, and an instruction where it came from.
        self.assertNotIn(".loc", assembly)
        self.page.evaluate("[...document.querySelectorAll('.panes .code')[1].querySelectorAll('.linked')].at(-1).click()")
        chosen = self.page.evaluate("[...document.querySelectorAll('.panes .code')].map((c) => [...c.querySelectorAll('.hit')].map((l) => l.textContent.trim()))")
        self.assertEqual(len(chosen[0]), 1, chosen)
        self.assertGreater(len(chosen[1]), 0)
        self.page.evaluate("document.querySelectorAll('.panes .code')[0].querySelector('.linked').click()")
        other = self.page.evaluate("[...document.querySelectorAll('.panes .code')].map((c) => c.querySelectorAll('.hit').length)")
        self.assertEqual(other[0], 1)
        self.assertGreater(other[1], 0)
        self.shoot(self.page, "kernel")
        self.page.evaluate("[...document.querySelectorAll('#inside a')].find((a) => a.textContent === 'in its place').click()")
        self.page.wait("!!document.querySelector('#ir-text .hit')", "the kernel's place in the IR")
        self.assertIn("kernel @", self.page.evaluate("document.querySelector('#ir-text .hit').textContent"))
        self.page.evaluate("[...document.querySelectorAll('[role=tab]')].find((t) => t.textContent === 'after lower').click()")
        self.page.wait("document.querySelector('#ir-text .code')?.getAttribute('aria-label') === 'IR after lower'", "IR after lowering")
        self.page.evaluate("[...document.querySelectorAll('[role=tab]')].find((t) => t.textContent === 'Decisions').click()")
        self.page.wait("document.querySelectorAll('#inside tbody tr').length > 0", "decisions")
        self.check_clean()

    def test_the_inside_is_compiled_at_warmup_for_the_page_alone(self):
        self.open_compile("attention", "fusion", "!!document.querySelector('.node')")
        activity = json.loads(self.server.get("/api/v1/activity")[2])
        self.assertEqual(len([r for r in activity["recent"] if r["graph"] == "attention"]), 1)
        self.assertEqual(int(activity["compiles"]), 2)

    def test_the_filter_and_the_keyboard_work(self):
        self.open("/", self.ROWS, "rows")
        type_in = "((text) => { const i = document.querySelector('input[type=search]'); i.value = text; i.dispatchEvent(new Event('input')); })"
        self.page.evaluate(f"{type_in}('atten')")
        self.assertEqual(self.page.evaluate("document.querySelectorAll('#compiles tbody tr').length"), 1)
        self.page.evaluate(f"{type_in}('<nothing>')")
        self.assertIn("No compile matches", self.page.evaluate("document.getElementById('compiles').innerText"))
        self.page.evaluate(f"{type_in}('')")
        self.page.evaluate("document.querySelector('[role=tab][aria-selected=true]').focus()")
        self.page.press("ArrowRight")
        self.assertEqual(self.page.evaluate("document.activeElement.textContent"), "Slowest of a day")
        self.assertEqual(self.page.evaluate("document.activeElement.getAttribute('aria-selected')"), "true")
        # Everything that can be pressed has a name.
        self.assertEqual(self.page.evaluate(
            "[...document.querySelectorAll('a, button, input, select')].filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label'))).length"), 0)
        self.check_clean()

    def test_dark_and_light_have_contrast(self):
        grounds = set()
        for scheme in ("light", "dark"):
            self.page.color_scheme(scheme)
            for path, wait in (("/", self.ROWS), (f"/#/compiles/{self.keys['attention']}/kernels", "!!document.querySelector('.panes .code')")):
                self.page.open("about:blank")
                self.open(path, wait, path)
                worst, where = self.page.evaluate(f"({CONTRAST})('main *, header *')")
                self.assertGreaterEqual(worst, 4.5, f"{scheme}: {where}")
            grounds.add(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            self.shoot(self.page, f"kernels-{scheme}")
        self.assertEqual(len(grounds), 2)
        self.check_clean()

    def test_a_phone_shows_it_without_scrolling_sideways(self):
        self.page.size(390, 844, phone=True)
        self.open("/", self.ROWS, "rows")
        self.check_no_sideways_scroll()
        self.shoot(self.page, "phone")
        for tab, wait in (("fusion", ".node"), ("kernels", ".panes .code"), ("ir", "#ir-text .code"), ("decisions", "td .mono")):
            self.open_compile(HOSTILE, tab, f"!!document.querySelector('#inside {wait}')")
            self.check_no_sideways_scroll()
            self.shoot(self.page, f"phone-{tab}")
        self.check_clean()

    def test_nothing_is_asked_while_nobody_looks(self):
        self.open("/", self.ROWS, "rows")
        hide = "((on) => { Object.defineProperty(document, 'hidden', { value: on, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); })"
        self.page.evaluate(f"{hide}(true)")
        self.page.evaluate("new Promise((done) => setTimeout(done, 500))")  # one may be under way
        before = len(self.page.requests)
        self.page.evaluate("new Promise((done) => setTimeout(done, 3500))")
        self.assertEqual(len(self.page.requests), before)
        self.page.evaluate(f"{hide}(false)")
        self.page.wait("true", "the next message")
        self.page.evaluate("new Promise((done) => setTimeout(done, 300))")
        self.assertGreater(len(self.page.requests), before)

    def test_links_to_nothing_say_so(self):
        self.open(f"/#/compiles/{'0' * 64}", "document.body.innerText.includes('does not remember')", "a compile that is gone")
        self.open("/#/nonsense/%E0%A4%A", "document.body.innerText.includes('There is no such page')", "no such page")

    def test_the_interface_has_limits_and_says_what_is_wrong(self):
        status, headers, _ = self.server.get("/")
        self.assertEqual(status, 200)
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertEqual(self.server.get("/", headers={"If-None-Match": headers["ETag"]})[0], 304)
        self.assertEqual(self.server.get("/api/v1/activity")[1]["Cache-Control"], "no-store")
        self.assertEqual(len(json.loads(self.server.get("/api/v1/activity?recent=1")[2])["recent"]), 1)
        key = self.keys["attention"]
        for path, method, code in (("/api/v1/activity?recent=x", "GET", 400), ("/api/v1/activity?recent=-1", "GET", 400),
                                   ("/api/v1/compiles/zz", "GET", 400), (f"/api/v1/compiles/{'0' * 64}", "GET", 404),
                                   (f"/api/v1/compiles/{key}/nothing", "GET", 404),
                                   (f"/api/v1/compiles/{key}/details", "POST", 403),  # as another site's page would
                                   (f"/api/v1/compiles/{key}/kernels/99/source", "GET", 404),
                                   ("/api/v1/activity", "POST", 405), ("/ui/../main.cc", "GET", 404)):
            status, _, body = self.server.get(path, method)
            self.assertEqual(status, code, path)
            if code in (400, 403):
                self.assertTrue(json.loads(body)["error"], path)

    def test_z_launches_stand_beside_what_the_simulator_says(self):
        path = f"{self.folder.name}/gcu.kgraph"
        with open(path, "wb") as file:
            file.write(graphs.attention_like("launches", 96))
        environment = {**os.environ, "HOME": self.folder.name, "XDG_CONFIG_HOME": self.folder.name}
        told = subprocess.run(
            [OPTIONS.kiln, "explain", path, "--server", self.server.grpc, "--target", "gcu", "--arch", "gcu-16m", "--json"],
            capture_output=True, text=True, check=True, env=environment)
        artifact = json.loads(told.stdout)
        times = artifact["debug"]["device_times"]
        plans = {k["symbol"]: k["plans"][0] for k in artifact["debug"]["kernels"] if "plans" in k}
        self.open(f"/#/compiles/{artifact['header']['key']}/launches",
                  "document.querySelectorAll('#launches tbody tr').length > 0", "the launches")
        rows = self.page.evaluate("[...document.querySelectorAll('#launches tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")
        self.assertEqual(len(rows), len(times["launches"]))
        for row, time_ in zip(rows, times["launches"]):
            plan = plans[time_["kernel"]]
            self.assertEqual(row[1], plan["strategy"])
            self.assertEqual(row[3], str(plan["kernels"]))
            self.assertEqual(row[4], f"{int(plan.get('l2_peak_bytes', 0)) / 2**20:.2f} of 16")
            self.assertEqual([float(x) for x in row[5:8]],
                             [round(x, 1) for x in (plan["predicted_us"], plan["unfused_us"], time_["mean_us"])])
            self.assertAlmostEqual(float(row[8]), (plan["predicted_us"] / time_["mean_us"] - 1) * 100, places=0)
        sums = self.page.evaluate("document.querySelector('#launch-sums').textContent")
        self.assertIn(f"simulated {sum(t['mean_us'] * t['launches'] for t in times['launches']):.1f}", sums)
        # What lies in L2, and the lanes of the timeline below it.
        drawn = self.page.evaluate("[...document.querySelectorAll('.drawing text')].map((t) => t.textContent)")
        for lane in ("compute", "L3", "L2"):
            self.assertIn(lane, drawn)
        self.shoot(self.page, "launches")
        self.check_no_sideways_scroll()
        self.check_clean()

    def test_zz_a_server_that_stops_does_so_soon_and_the_page_says_so(self):
        self.open("/", self.ROWS, "rows")
        self.assertLess(self.server.stop(), 4)
        self.page.wait("document.getElementById('status').textContent === 'Unreachable'", "the status")
        self.page.wait("document.querySelector('.notice[role=alert]')?.checkVisibility()", "the notice")
        self.assertIn("What you see is from", self.page.evaluate("document.querySelector('.notice').textContent"))
        self.shoot(self.page, "offline")


def main() -> int:
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kilnd", required=True)
    parser.add_argument("--kiln", required=True)
    parser.add_argument("--screenshots", help="folder for pictures of what the tests saw")
    parser.add_argument("--only", help="part of a test's name")
    OPTIONS = parser.parse_args()
    if find_chromium() is None:
        print("skipped: there is no chromium on this machine")
        return SKIPPED
    loader = unittest.TestLoader()
    if OPTIONS.only:
        loader.testNamePatterns = [f"*{OPTIONS.only}*"]
    result = unittest.TextTestRunner(verbosity=2).run(loader.loadTestsFromTestCase(PageTest))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
